"""Several calls at once, never more than asked for, from threads that nobody has to wait for.

An executor of the standard library is joined when the program ends: Ctrl-C would then wait for
every answer that is under way. These threads are daemons.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def leave(code: int) -> NoReturn:
    """End the program without waiting for its threads.

    Work may still be under way in them, for minutes, or in libraries that crash if Python ends
    around them.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None is closed
        with suppress(OSError):
            stream.flush()
    os._exit(code)


class Crew:
    """Some threads that work side by side."""

    def __init__(self, size: int) -> None:
        """Start `size` threads, which live as long as the program."""
        self._size = size
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        for _ in range(size):
            threading.Thread(target=self._work, daemon=True).start()

    def start(self, work: Callable[[Item], Result], item: Item) -> Future[Result]:
        """Let the next free thread do `work`."""
        future: Future[Result] = Future()

        def task() -> None:
            try:
                future.set_result(work(item))
            except BaseException as error:  # noqa: BLE001  raised where the result is asked for
                future.set_exception(error)

        self._tasks.put(task)
        return future

    def in_order(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield what `work` makes of each item, in order; raise what `work` raises.

        No more items are taken from `items` than there are threads, beyond those yielded.
        """
        running: deque[Future[Result]] = deque()
        for item in items:
            running.append(self.start(work, item))
            if len(running) == self._size:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()

    def as_done(
        self, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Future[Result]]]:
        """Yield each item with its finished future, the first to finish first."""
        running: dict[Future[Result], Item] = {}
        for item in items:
            running[self.start(work, item)] = item
            if len(running) == self._size:
                yield from _finished(running)
        while running:
            yield from _finished(running)

    def _work(self) -> None:
        while True:
            self._tasks.get()()


def _finished(running: dict[Future[Any], Item]) -> Iterator[tuple[Item, Future[Any]]]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future
