"""Do the nodes of the declared pipelines fit together? Every fault is told, with its line.

    names -> no circle, nothing unused -> kinds of inputs -> sizes, by a trial

The trial runs the operations on small pictures, with stand-ins for the models: these keep the size.
"""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np

from styleserve import kinds
from styleserve.declaration import IMAGE, Declaration, Graph, Node, suggest
from styleserve.errors import StyleServeError
from styleserve.kinds import Kind
from styleserve.operations import OPERATIONS, Value
from styleserve.probe import picture

A = {"image": "an image", "mask": "a mask"}
TRIAL_SIZES = ((48, 64), (67, 45), (61, 61), (1, 3))  # (height, width)


def check(declared: Declaration, models: Mapping[str, Kind]) -> None:
    """Note in `declared` all that does not hold; `models` are known by name, with what they give.

    A pipeline can be a model of another one.
    """
    known: dict[str, Kind] = {**models, **{name: "image" for name in declared.lines}}
    for graph in declared.graphs:
        _Check(graph, declared, known).run()
    _check_nesting(declared, models)


def in_order(graph: Graph) -> list[Node]:
    """Return the nodes, each after all that it may read.

    Raises:
        CycleError: naming a circle.
    """
    reads = {name: node.reads for name, node in graph.nodes.items()}
    return [graph.nodes[name] for name in TopologicalSorter(reads).static_order() if name in reads]


def nested_first(graphs: Iterable[Graph]) -> list[Graph]:
    """Return the pipelines, each after those that it contains.

    Raises:
        CycleError: naming a circle.
    """
    named = {graph.name: graph for graph in graphs}
    contains = {
        name: {node.model for node in graph.nodes.values()} & set(named)
        for name, graph in named.items()
    }
    return [named[name] for name in TopologicalSorter(contains).static_order()]


def _check_nesting(declared: Declaration, models: Mapping[str, Kind]) -> None:
    try:
        nested_first(graph for graph in declared.graphs if graph.name not in models)
    except CycleError as error:
        names = error.args[1]
        what = f"it contains itself: {' -> '.join(reversed(names))}"
        declared.fault(declared.lines[names[0]], names[0], "", what)


class _Check:
    """One pipeline under examination."""

    def __init__(self, graph: Graph, declared: Declaration, known: Mapping[str, Kind]) -> None:
        self._graph = graph
        self._declared = declared
        self._known = known
        is_broken = any(node.is_broken for node in graph.nodes.values())
        self._is_sound = bool(graph.output) and not is_broken

    def run(self) -> None:
        self._check_names()
        order = self._check_order()
        if self._is_sound:
            self._check_kinds(order)
        for size in TRIAL_SIZES:
            if self._is_sound:
                self._try_size(order, size)

    def _fault(self, node: Node | None, what: str) -> None:
        line, name = (node.line, node.name) if node else (self._graph.line, "")
        self._declared.fault(line, self._graph.name, name, what)
        self._is_sound = False

    def _check_names(self) -> None:
        nodes = self._graph.nodes
        for node in nodes.values():
            if node.name == IMAGE:
                self._fault(node, f"{IMAGE} is the picture of the request; call the node otherwise")
                continue
            for name in dict.fromkeys(node.reads):
                if name not in (*nodes, IMAGE):
                    self._fault(
                        node, f"there is no node {name!r}; {suggest(name, (*nodes, IMAGE))}"
                    )
            if node.model and node.model not in self._known:
                near = suggest(node.model, self._known)
                self._fault(node, f"there is no model {node.model!r}; {near}")
        if self._graph.output and self._graph.output not in nodes:
            near = suggest(self._graph.output, nodes)
            self._fault(None, f"its output {self._graph.output!r} is no node of it; {near}")

    def _check_order(self) -> list[Node]:
        """Refuse circles and what nobody reads; return the nodes in order."""
        if IMAGE in self._graph.nodes:
            return []
        try:
            order = in_order(self._graph)
        except CycleError as error:
            names = error.args[1]
            self._fault(self._graph.nodes[names[0]], f"a circle: {' -> '.join(reversed(names))}")
            return []
        if self._is_sound:  # else who reads what is a guess
            read = {name for node in order for name in node.reads} | {self._graph.output}
            for node in order:
                if node.name not in read:  # those that only it reads are no cause of their own
                    what = f"its result is never used, the output is {self._graph.output!r}"
                    self._fault(node, f"{what}; lead it there, remove it or name another output")
        return order

    def _check_kinds(self, order: list[Node]) -> None:
        given: dict[str, Kind | None] = {IMAGE: "image"}
        for node in order:
            given[node.name] = own = self._kind(node, [given[name] for name in node.inputs])
            other = given[node.fallback or node.name]
            if own and other and own != other:
                self._fault(node, f"it gives {A[own]}, its fallback {node.fallback} {A[other]}")
        if given[self._graph.output] == "mask":
            what = "it is the output and gives a mask, but a pipeline answers an image"
            self._fault(self._graph.nodes[self._graph.output], what)

    def _kind(self, node: Node, given: Sequence[Kind | None]) -> Kind | None:
        """Return what a node gives, and refuse inputs that it does not take; None is unknown."""
        count = len(given)
        found: Kind | None = None
        wrong: dict[int, Kind] = {}
        if node.model:
            found = self._known[node.model]
            wrong = {0: "image"} if given[:1] == ["mask"] else {}
            if count != 1:
                self._fault(node, f"a model takes one input, got {count}")
        elif kinds.takes(node.op, count):
            found, wrong = kinds.result(node.op, given)
        else:
            self._fault(node, f"{node.op} takes the inputs {kinds.inputs_of(node.op)}; got {count}")
        for position, wanted in wrong.items():
            name = node.inputs[position]
            self._fault(
                node, f"its input {name} must be {A[wanted]}, and is {A[given[position] or wanted]}"
            )
        return found

    def _try_size(self, order: list[Node], size: tuple[int, int]) -> None:
        image = picture(*size)
        values: dict[str, Value] = {IMAGE: image}
        for node in order:
            try:
                values[node.name] = self._stand_in(node, [values[name] for name in node.inputs])
            except StyleServeError as error:
                self._fault(node, str(error))
                return
            if node.fallback and _size(values[node.fallback]) != _size(values[node.name]):
                self._fault(node, f"its fallback {node.fallback} gives another size than it does")
        answer = values[self._graph.output]
        if _size(answer) != _size(image):
            self._fault(
                self._graph.nodes[self._graph.output],
                f"it is the output and gives {_size(answer)} pixels for a picture of "
                f"{_size(image)}; bring it back: op resize, inputs [{self._graph.output}, {IMAGE}]",
            )

    def _stand_in(self, node: Node, values: list[Value]) -> Value:
        if node.op:
            result: Value = OPERATIONS[node.op](*values, **node.options)
            return result
        if self._known[node.model] == "mask":
            return np.full(values[0].shape[:2], 0.5, np.float32)
        return values[0]


def _size(value: Value) -> str:
    return f"{value.shape[1]}x{value.shape[0]}"
