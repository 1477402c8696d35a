"""What a request has beside its tensors: has its caller gone, and what is to be counted?"""

import threading
from collections.abc import Callable
from contextvars import ContextVar

Figure = tuple[str, dict[str, str], float]  # a metric, its labels, by how much it grows


class Ticket:
    """The notes of one worker, which answers one request at a time, so that no two mix."""

    def __init__(self, is_gone: Callable[[], bool] = lambda: False) -> None:
        """Note figures; `is_gone` tells whether nobody waits for the answer any more."""
        self.is_gone = is_gone
        self._figures: list[Figure] = []
        self._lock = threading.Lock()

    def add(self, metric: str, value: float, /, **labels: str) -> None:
        """Note that a metric grows by `value`; `styleserve.worker` describes each."""
        with self._lock:
            self._figures.append((metric, labels, value))

    def total(self, metric: str) -> float:
        """Return by how much a metric has grown in this request, whatever its labels."""
        with self._lock:
            return sum(value for name, _, value in self._figures if name == metric)

    def hand_over(self) -> list[Figure]:
        """Return all figures since the last call."""
        with self._lock:
            figures, self._figures = self._figures, []
        return figures


# Whether what a thread does is of use to nobody any more.
IS_OVER: ContextVar[Callable[[], bool]] = ContextVar("is_over", default=lambda: False)
CURRENT: ContextVar[Ticket] = ContextVar("ticket")  # of the request that a thread answers
