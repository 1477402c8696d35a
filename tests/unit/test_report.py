"""What a run tells at its end."""

from pathlib import Path

import pytest

from styleserve.errors import RequestError
from styleserve.plan import Job
from styleserve.report import Report

JOB = Job(Path("a.jpg"), Path("out/a.jpg"), "dots")
ENTRY = {"source": "a.jpg", "target": "out/a.jpg", "style": "dots"}


def test_failures_are_named_and_counted() -> None:
    report = Report(planned=2, skipped=[ENTRY], seconds=1.25)
    report.done(JOB)
    report.failed(JOB, RequestError("it is damaged"))
    assert report.lines() == [
        "a.jpg in dots: it is damaged",
        "1 done, 1 failed, 1 skipped in 1.2 s",
    ]


def test_what_a_result_lacks_is_told() -> None:
    report = Report(planned=1)
    report.done(JOB, ["no sound", "cut short"])
    assert report.lines() == ["a.jpg in dots: no sound; cut short", "1 done in 0.0 s"]


def test_an_interrupted_run_tells_how_to_go_on() -> None:
    report = Report(planned=3, interrupted=True)
    report.done(JOB)
    assert report.lines() == ["1 done, 2 not done, run it again with --skip in 0.0 s"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied", "a.jpg"), "Permission denied"),
        (OSError("odd"), "odd"),
        (RequestError("one", "two"), "one; two"),
    ],
)
def test_reasons_are_for_people(error: Exception, told: str) -> None:
    report = Report(planned=1)
    report.failed(JOB, error)
    assert report.failures == [ENTRY | {"error": told}]


def test_all_of_it_is_there_for_scripts() -> None:
    report = Report(planned=1)
    report.done(JOB)
    assert report.as_dict() == {
        "planned": 1,
        "results": [ENTRY],
        "failures": [],
        "skipped": [],
        "seconds": 0.0,
        "interrupted": False,
    }
