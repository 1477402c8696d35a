"""Several models as one, declared as a graph: `python -m styleserve.pipeline draw` prints it."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from styleserve import diagram, reader, settings
from styleserve.declaration import PIPELINES, Graph, Node, find_file
from styleserve.errors import HIDDEN, ConfigError, InferenceError, RequestError
from styleserve.execution import SELECT, Execution, IsOver, Values
from styleserve.image import Image
from styleserve.operations import OPERATIONS, Value, choose
from styleserve.ticket import CURRENT, IS_OVER, Ticket

MOST_THREADS = 1024


class Model(Protocol):
    """What a node can run: a style, a mask or another pipeline."""

    def __call__(self, image: Image, max_side: int) -> Value:
        """Return a picture or a mask of the size of `image` (uint8 HxWx3 RGB)."""


class Pipeline:
    """A declared graph as a function from a picture to a picture of the same size."""

    kind = "pipeline"

    def __init__(self, graph: Graph, models: Mapping[str, Model], at_once: int) -> None:
        """Run the nodes of `graph`, which has been checked, with `models` by name.

        Of one request at most `at_once` nodes run at the same time; how many models run at the
        same time in all is for the models themselves to limit.
        """
        self._graph = graph
        self._models = models
        self._at_once = at_once
        # Threads that stay: in a fresh one the C library gives a model fresh memory, which costs up
        # to a twentieth of its time. There are never too few, or a node that outlives its request
        # would hold up the next one.
        self._pool = ThreadPoolExecutor(MOST_THREADS, graph.name)

    def __call__(self, image: Image, max_side: int) -> Image:
        """Return what the output node gives for `image`, at the same size.

        Args:
            image: uint8 HxWx3 RGB.
            max_side: longer side in pixels at which models work at the most; 0 for no limit.

        Raises:
            InferenceError: naming the node that failed, or those not done within the time limit.
            RequestError: if the caller has gone.
        """
        ticket = CURRENT.get(Ticket())
        # A node may outlive its request, whose picture lies in memory that is used again.
        return self._answer(image.copy(), _Request(max_side, ticket), ticket.is_gone)

    def describe(self) -> dict[str, Any]:
        """Tell what a caller may want to know."""
        nodes = self._graph.nodes.values()
        return {
            "kind": self.kind,
            "description": self._graph.description,
            "size": "any",
            "nodes": {node.name: node.model or node.op for node in nodes},
            "timeout": self._graph.timeout_s,
        }

    def _answer(self, image: Image, request: "_Request", is_gone: IsOver) -> Image:
        def start(node: Node, values: Values, is_over: IsOver) -> Future[Any]:
            return self._pool.submit(self._work, request, node, values, is_over)

        return Execution(self._graph, start, is_gone, self._at_once).answer(image)

    def _work(self, request: "_Request", node: Node, values: Values, is_over: IsOver) -> Any:  # noqa: ANN401
        """Run a node; count it, and name it where it fails."""
        where = f"pipeline {self._graph.name}: node {node.name}: "
        start, failed = time.perf_counter(), True
        IS_OVER.set(is_over)
        try:
            result = self._call(request, node, values)
            failed = False
            return result
        except (RequestError, InferenceError) as error:
            raise type(error)(f"{where}{error}") from error
        except Exception as error:
            raise InferenceError(f"{where}{HIDDEN}") from error
        finally:
            seconds = time.perf_counter() - start
            figures = {"count": 1, "failure": int(failed and not is_over()), "seconds": seconds}
            for kind, value in figures.items():
                labels = {"model": self._graph.name, "node": node.name}
                request.ticket.add(f"styleserve_node_{kind}", value, **labels)

    def _call(self, request: "_Request", node: Node, values: Values) -> Any:  # noqa: ANN401
        if node.op == SELECT:
            return choose(*values, **node.options)
        if node.op:
            return OPERATIONS[node.op](*values, **node.options)
        model = self._models[node.model]
        if isinstance(model, Pipeline):
            return model._answer(values[0], request, IS_OVER.get())
        return model(values[0], request.max_side)


@dataclass(frozen=True)
class _Request:
    """What all nodes of a request need to know."""

    max_side: int
    ticket: Ticket


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the declared pipelines as Mermaid flowcharts, in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m styleserve.pipeline", description=main.__doc__)
    parser.add_argument("command", choices=["draw"])
    parser.add_argument("file", type=Path, nargs="?", help="if none, that of the server")
    try:
        declared = reader.read(parser.parse_args(argv).file or _served_file())
        if declared.faults:
            raise ConfigError(*declared.faults)
    except ConfigError as error:
        sys.stderr.writelines(f"error: {problem}\n" for problem in error.problems)
        return 2
    for graph in declared.graphs:
        sys.stdout.write(f"## {graph.name}\n\n```mermaid\n{diagram.draw(graph)}```\n\n")
    return 0


def _served_file() -> Path:
    options = settings.load([])
    if path := find_file(options.pipelines, options.models_dir):
        return path
    raise ConfigError(
        f"no {PIPELINES} in {options.models_dir} or beside it; name the file: draw FILE, or set "
        "STYLESERVE_PIPELINES"
    )


if __name__ == "__main__":
    sys.exit(main())
