"""What a request has beside its tensors: has its caller gone, and what did its nodes take?

Triton's worker process knows whether a caller has gone, this process runs the nodes, and PyTriton
carries only tensors between the two. So they leave each other notes, as files next to the worker's
code, named after the worker: it answers one request at a time, so that no two requests mix.
"""

import contextlib
import json
import threading
from contextvars import ContextVar
from pathlib import Path

GONE, FIGURES = ".gone", ".figures"  # `styleserve.worker` knows these names too


class Ticket:
    """The notes of one worker."""

    def __init__(self, folder: Path | None = None, worker: int = 0) -> None:
        """Leave notes in `folder`; without one, callers never go and figures interest nobody."""
        self._gone = folder and folder / f"{worker}{GONE}"
        self._file = folder and folder / f"{worker}{FIGURES}"
        self._figures: list[tuple[str, str, float, bool]] = []
        self._lock = threading.Lock()

    def is_gone(self) -> bool:
        """Tell whether nobody waits for the answer any more."""
        return self._gone is not None and self._gone.exists()

    def count(self, pipeline: str, node: str, seconds: float, failed: bool) -> None:
        """Note that a node has run."""
        if self._file:
            with self._lock:
                self._figures.append((pipeline, node, seconds, failed))

    def hand_over(self) -> None:
        """Give the worker all figures so far; call it before the answer."""
        with self._lock:
            figures, self._figures = self._figures, []
        if figures and self._file:
            with contextlib.suppress(OSError):  # an answer is worth more than its figures
                self._file.write_text(json.dumps(figures))


NOBODY = Ticket()
CURRENT: ContextVar[Ticket] = ContextVar("ticket")  # of the request that a thread answers
