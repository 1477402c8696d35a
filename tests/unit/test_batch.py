"""Many tasks at once."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from styleserve.batch import AT_ONCE, at_once, report, unique_names
from styleserve.errors import RequestError


def refuse() -> int:
    raise RequestError("no picture")


def test_results_come_in_the_order_of_the_tasks() -> None:
    gate = threading.Event()

    def first() -> int:
        assert gate.wait(10)
        return 1

    def second() -> int:
        return 2

    states = []
    for done, failed in at_once([first, second]):
        states.append((dict(done), dict(failed)))
        gate.set()

    assert states == [({1: 2}, {}), ({0: 1, 1: 2}, {})]


def test_one_that_fails_stops_no_other() -> None:
    tasks: list[Callable[[], int]] = [partial(int, 5), refuse, partial(int, 7)]
    *_, (done, failed) = at_once(tasks)

    assert done == {0: 5, 2: 7}
    assert failed == {1: "No picture."}


def test_our_own_faults_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        list(at_once([lambda: 1 // 0]))


def test_tasks_run_side_by_side() -> None:
    together = threading.Barrier(AT_ONCE)

    *_, (done, _) = at_once([partial(together.wait, 10)] * AT_ONCE)

    assert sorted(done.values()) == list(range(AT_ONCE))


def test_who_leaves_ends_what_has_not_begun() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def task(number: int) -> None:
        begun.append(number)
        if number:
            gate.wait(10)

    running = at_once([partial(task, number) for number in range(50)])
    next(running)
    running.close()  # type: ignore[attr-defined]
    gate.set()

    assert len(begun) <= AT_ONCE + 1


def test_a_report_says_how_far_it_is_and_what_failed() -> None:
    assert report(4, 1, {}) == "**1 of 4** done"
    assert (
        report(4, 3, {"a.jpg": "Broken."}) == "**3 of 4** done, 1 failed:\n\n- **a.jpg**: Broken."
    )


def test_a_report_shows_names_as_they_are() -> None:
    text = report(1, 0, {"<b>*x*_[y](z).jpg": "No."})

    assert r"\<b\>\*x\*\_\[y\](z).jpg" in text


def test_names_that_come_again_are_numbered() -> None:
    names = ["a.png", "b.png", "a.png", "A.png", "a (2).png"]

    assert unique_names(names) == ["a.png", "b.png", "a (2).png", "A (3).png", "a (2) (2).png"]
