"""What a request has beside its tensors: has its caller gone, and what is to be counted?

Triton's worker process knows whether a caller has gone, this process does the work, and PyTriton
carries only tensors between the two. So they leave each other notes, as files next to the worker's
code, named after the worker: it answers one request at a time, so that no two requests mix.
"""

import contextlib
import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

GONE, FIGURES = ".gone", ".figures"  # `styleserve.worker` knows these names too


class Ticket:
    """The notes of one worker."""

    def __init__(self, folder: Path | None = None, worker: int = 0) -> None:
        """Leave notes in `folder`; without one, callers never go and figures interest nobody."""
        self._gone = folder and folder / f"{worker}{GONE}"
        self._file = folder and folder / f"{worker}{FIGURES}"
        self._figures: list[tuple[str, dict[str, str], float]] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Let all callers be gone: their server ends."""
        self._is_closed = True

    def is_gone(self) -> bool:
        """Tell whether nobody waits for the answer any more."""
        return self._is_closed or (self._gone is not None and self._gone.exists())

    def add(self, metric: str, value: float, /, **labels: str) -> None:
        """Note that a metric grows by `value`; `styleserve.worker` describes each."""
        if self._file:
            with self._lock:
                self._figures.append((metric, labels, value))

    def total(self, metric: str) -> float:
        """Return by how much a metric has grown in this request, whatever its labels."""
        with self._lock:
            return sum(value for name, _, value in self._figures if name == metric)

    def hand_over(self) -> None:
        """Give the worker all figures so far; call it before the answer."""
        with self._lock:
            figures, self._figures = self._figures, []
        if figures and self._file:
            with contextlib.suppress(OSError):  # an answer is worth more than its figures
                self._file.write_text(json.dumps(figures))


NOBODY = Ticket()
# Whether what a thread does is of use to nobody any more.
IS_OVER: ContextVar[Callable[[], bool]] = ContextVar("is_over", default=lambda: False)
CURRENT: ContextVar[Ticket] = ContextVar("ticket")  # of the request that a thread answers
