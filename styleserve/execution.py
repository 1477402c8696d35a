"""The nodes of one request, run side by side.

    wanted: the output -> wanted: what it reads -> run what is ready -> the answer

A node runs only if its result is needed: of a `select` the one choice that is picked, a fallback
only after a failure. A result is dropped as soon as nobody can need it any more. A failure goes on
from node to node until one has a fallback; at the output it is the failure of the whole.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, cast

from styleserve.declaration import IMAGE, Graph, Node
from styleserve.errors import InferenceError, RequestError
from styleserve.image import Image
from styleserve.operations import Value

LOGGER = logging.getLogger(__name__)

POLL_S = 0.1  # between two looks at whether the caller is still there
SELECT = "select"

IsOver = Callable[[], bool]
Values = Sequence[Any]  # pictures and masks
# Starts a node on the results that it needs; a `select` gives the position of its choice. It may
# ask at any time whether the result is of use to anybody.
Start = Callable[[Node, Values, IsOver], Future[Any]]


class Execution:
    """The nodes of one request: which are wanted, running or done."""

    def __init__(self, graph: Graph, start: Start, is_gone: IsOver, at_once: int) -> None:
        """Run `graph` by `start`, `at_once` nodes at most, unless the caller `is_gone`."""
        self._graph = graph
        self._start = start
        self._is_gone = is_gone
        self._at_once = at_once
        self._has_ended = threading.Event()
        # Whose results a node may still need, and how many may still need its own.
        self._reads = {name: list(node.reads) for name, node in graph.nodes.items()}
        self._readers = Counter(name for reads in self._reads.values() for name in reads)
        self._readers[graph.output] += 1
        self._wanted: list[str] = []  # and not started
        self._running: dict[Future[Any], Node] = {}
        self._results: dict[str, Value] = {}
        self._failed: dict[str, BaseException] = {}
        self._same_as: dict[str, str] = {}  # what is picked, or falls back: {node: other node}

    def answer(self, image: Image) -> Image:
        """Return what the output node gives; call it once.

        Raises what the nodes raise, and:
            InferenceError: after the time limit.
            RequestError: if the caller has gone.
        """
        deadline = time.monotonic() + self._graph.timeout_s
        self._results[IMAGE] = image
        self._want(self._graph.output)
        try:
            while True:
                self._start_ready()
                if self._graph.output in self._results:
                    return cast(Image, self._results[self._graph.output])
                self._check(deadline)
                self._wait(min(deadline - time.monotonic(), POLL_S))
        finally:
            self._has_ended.set()
            for future in self._running:
                future.cancel()

    def _is_over(self) -> bool:
        return self._has_ended.is_set() or self._is_gone()

    def _want(self, name: str) -> None:
        running = [node.name for node in self._running.values()]
        if any(name in known for known in (self._results, self._failed, self._wanted, running)):
            return
        self._wanted.append(name)
        for other in self._needs(name):
            self._want(other)

    def _needs(self, name: str) -> tuple[str, ...]:
        """Return the nodes without which this one cannot go on."""
        if name in self._same_as:
            return (self._same_as[name],)
        node = self._graph.nodes[name]
        return node.inputs[:1] if node.op == SELECT else node.inputs

    def _start_ready(self) -> None:
        """Start all that is ready, nodes nearer to the output first: they free what they read."""
        self._spread_failures()
        while ready := [name for name in self._wanted if self._is_ready(name)]:
            name = ready[0]
            self._wanted.remove(name)
            values = [self._results[other] for other in self._needs(name)]
            if name in self._same_as:
                self._keep(name, values[0])
            else:
                node = self._graph.nodes[name]
                self._running[self._start(node, values, self._is_over)] = node

    def _is_ready(self, name: str) -> bool:
        has_room = name in self._same_as or len(self._running) < self._at_once
        return has_room and all(other in self._results for other in self._needs(name))

    def _check(self, deadline: float) -> None:
        """Stop what has lasted too long, or what nobody waits for."""
        where = f"pipeline {self._graph.name}: "
        if self._is_gone():
            raise RequestError(f"{where}stopped, nobody waits for its answer any more")
        if time.monotonic() >= deadline:
            nodes = ", ".join(node.name for node in self._running.values())
            raise InferenceError(
                f"{where}not done within its timeout of {self._graph.timeout_s:g} s, still at "
                f"{nodes}; send a smaller picture or max_side, or ask for a longer timeout"
            )

    def _wait(self, seconds: float) -> None:
        done, _ = wait(self._running, max(seconds, 0), FIRST_COMPLETED)
        for future in done:
            self._finish(self._running.pop(future), future)

    def _finish(self, node: Node, future: Future[Any]) -> None:
        if not self._readers[node.name]:
            self._keep(node.name, None)
        elif error := future.exception():
            self._fail(node.name, error)
        elif node.op == SELECT:
            self._redirect(node, node.inputs[1 + future.result()], node.fallback)
        else:
            self._keep(node.name, future.result())

    def _fail(self, name: str, error: BaseException) -> None:
        node = self._graph.nodes[name]
        if node.fallback and self._same_as.get(name) != node.fallback:
            LOGGER.warning("%s; using %s instead", error, node.fallback, exc_info=error.__cause__)
            self._redirect(node, node.fallback)
        elif name == self._graph.output:
            raise error
        else:
            self._failed[name] = error
            self._release(self._reads[name])

    def _spread_failures(self) -> None:
        """Let those fail that need what has failed."""
        while failing := [
            (name, other)
            for name in self._wanted
            for other in self._needs(name)
            if other in self._failed
        ]:
            name, other = failing[0]
            self._wanted.remove(name)
            self._fail(name, self._failed[other])

    def _redirect(self, node: Node, other: str, fallback: str = "") -> None:
        """Let a node have the result of another one, and give up all else but its `fallback`."""
        self._same_as[node.name] = other
        self._want(node.name)
        given_up, kept = self._reads[node.name], [other, *filter(None, [fallback])]
        for name in kept:
            given_up.remove(name)
        self._reads[node.name] = kept
        self._release(given_up)

    def _keep(self, name: str, value: Value | None) -> None:
        """Take the result of a node, which from now on reads nothing."""
        if self._readers[name] and value is not None:
            self._results[name] = value
        self._release(self._reads[name])

    def _release(self, names: Iterable[str]) -> None:
        """Note that one reader less needs each of `names`; forget what nobody needs any more."""
        for name in names:
            self._readers[name] -= 1
            if self._readers[name] or name == IMAGE or name in self._failed:
                continue
            is_running = any(node.name == name for node in self._running.values())
            if self._results.pop(name, None) is None and not is_running:
                if name in self._wanted:
                    self._wanted.remove(name)
                self._release(self._reads[name])  # it will never run
