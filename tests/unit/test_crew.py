"""Several calls at once, never more than asked for."""

import threading
import time
from collections.abc import Iterator

import pytest

from styleserve.crew import Crew

SIZE = 3
WAIT_S = 10


class Work:
    """Doubles a number, the even ones slowly; counts how many run at once."""

    def __init__(self) -> None:
        self.running, self.most, self._lock = 0, 0, threading.Lock()

    def __call__(self, number: int) -> int:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.02 if number % 2 == 0 else 0.001)
        with self._lock:
            self.running -= 1
        return 2 * number


def test_the_order_is_kept_whatever_finishes_first() -> None:
    work = Work()
    assert list(Crew(SIZE).in_order(work, range(20))) == [2 * number for number in range(20)]
    assert work.most == SIZE


def test_answers_come_as_they_are_done_each_with_its_item() -> None:
    work = Work()
    answers = [(item, done.result()) for item, done in Crew(SIZE).as_done(work, range(20))]
    assert sorted(answers) == [(number, 2 * number) for number in range(20)]
    assert answers[0][0] != 0  # 0 is slow
    assert work.most == SIZE


@pytest.mark.parametrize("method", ["in_order", "as_done"])
def test_few_items_are_taken_ahead(method: str) -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    answers = iter(getattr(Crew(SIZE), method)(Work(), items()))
    for _ in range(5):
        next(answers)
    assert len(taken) <= 5 + SIZE


def test_few_items_are_fewer_than_threads() -> None:
    assert list(Crew(SIZE).in_order(Work(), [1])) == [2]
    assert list(Crew(SIZE).in_order(Work(), [])) == []
    assert list(Crew(SIZE).as_done(Work(), [])) == []


def test_errors_come_where_the_result_is_asked_for_and_the_crew_goes_on() -> None:
    crew = Crew(1)
    with pytest.raises(ZeroDivisionError):
        crew.start(lambda number: 1 // number, 0).result(WAIT_S)
    assert crew.start(lambda number: 1 // number, 1).result(WAIT_S) == 1
    ((item, failed),) = crew.as_done(lambda number: 1 // number, [0])
    assert item == 0
    assert isinstance(failed.exception(), ZeroDivisionError)


def test_nobody_waits_for_the_threads_at_the_end_of_the_program() -> None:
    before = set(threading.enumerate())
    Crew(SIZE)
    new = set(threading.enumerate()) - before
    assert len(new) == SIZE
    assert all(thread.daemon for thread in new)
