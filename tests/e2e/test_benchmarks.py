"""The comparison with other servers runs, and its results are whole. Times are no matter here."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks.comparison import environments, report
from tests import tiny_models as tiny
from tests.e2e.running import ROOT

SIDES = ["styleserve", "FastAPI"]  # of the others, the one whose environment is soonest made
WORKLOADS = ["fixed", "json"]


def run(*command: object) -> str:
    """Run a benchmark from the root, as `make bench` does."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("comparison")
    raw = tiny.save(tiny.old_style((224, 224)), folder / "raw.onnx")
    file = folder / "results.jsonl"
    smoke = "--smoke", "--model", raw, "--out", file
    return file, run("benchmarks/compare.py", *smoke, "--sides", *SIDES, "--workloads", *WORKLOADS)


@pytest.mark.timeout(300)  # pip makes an environment at the first time
def test_each_side_has_its_figures_in_each_workload(results: tuple[Path, str]) -> None:
    lines = [json.loads(line) for line in results[0].read_text().splitlines()]

    everyone = {(workload, side) for workload in WORKLOADS for side in ["in process", *SIDES]}
    kinds = {
        kind: {(line["workload"], line["side"]) for line in lines if line["kind"] == kind}
        for kind in ("round", "server")
    }
    assert kinds == {"round": everyone, "server": everyone}
    assert lines[0]["versions"]["FastAPI"]["fastapi"]
    for figures in report.medians(lines[1:]).values():
        assert set(report.COLUMNS) <= set(figures)
        assert figures["max_difference"] <= 2
        assert all(figures[name] > 0 for name in report.COLUMNS if name != "max_difference")


@pytest.mark.timeout(300)
def test_the_table_has_a_row_for_each_side(results: tuple[Path, str]) -> None:
    rows = [line for line in results[1].splitlines() if line.startswith("| json | 2 |")]

    assert [row.split(" | ")[2] for row in rows] == ["in process", *SIDES]


@pytest.mark.timeout(300)
def test_the_results_can_be_drawn(results: tuple[Path, str], tmp_path: Path) -> None:
    figure = tmp_path / "figure.svg"

    run("benchmarks/plot.py", results[0], figure, "--concurrency", 2)

    assert figure.read_text().rstrip().endswith("</svg>")


def test_a_peer_runs_in_this_environment_where_it_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {name: metadata.version(name) for name in ("numpy", "nvidia-pytriton")}
    monkeypatch.setattr(environments, "needs", lambda peer: here)

    assert environments.python_for("pytriton") == Path(sys.executable)
