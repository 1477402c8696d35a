"""Graphs of numbers instead of pictures: order, side by side, freeing, failures, limits."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from styleserve.declaration import IMAGE, Graph, Node
from styleserve.errors import InferenceError, RequestError
from styleserve.execution import Execution, IsOver

PATIENCE_S = 10.0
POOL = ThreadPoolExecutor()


class Number:
    """A result; unlike an int it can tell when it is freed."""

    def __init__(self, value: int) -> None:
        self.value = value


def node(name: str, *inputs: str, op: str = "add", fallback: str = "") -> Node:
    return Node(name, 1, inputs, op=op, fallback=fallback)


def graph(*nodes: Node, timeout_s: float = PATIENCE_S) -> Graph:
    return Graph("p", 1, "", {one.name: one for one in nodes}, nodes[-1].name, timeout_s)


def add(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401  a number, or a choice
    """Give a sum that is different for each node, or pick a choice by the measured number."""
    total = sum(value.value for value in values)
    if one.op == "select":
        return total % (len(one.inputs) - 1)
    return Number((31 * total + sum(map(ord, one.name))) % 1009)


Work = Callable[[Node, Sequence[Number]], Any]


def run(
    of: Graph,
    work: Work = add,
    at_once: int = 2,
    is_gone: IsOver = lambda: False,
    image: int = 5,
) -> int:
    execution = Execution(
        of, lambda one, values, _: POOL.submit(work, one, values), is_gone, at_once
    )
    answer: Any = execution.answer(Number(image))  # type: ignore[arg-type]
    return int(answer.value)


def naive(of: Graph, failing: frozenset[str] = frozenset(), image: int = 5) -> int | None:
    """Evaluate one node after another, by recursion; None is a failure."""

    def value(name: str) -> int | None:
        if name == IMAGE:
            return image
        one = of.nodes[name]
        own = None if name in failing else evaluate(one)
        return value(one.fallback) if own is None and one.fallback else own

    def evaluate(one: Node) -> int | None:
        if one.op == "select":
            measured = value(one.inputs[0])
            if measured is None:
                return None
            return value(one.inputs[1 + add(one, [Number(measured)])])
        values = [value(name) for name in one.inputs]
        if any(each is None for each in values):
            return None
        return int(add(one, [Number(each) for each in values if each is not None]).value)

    return value(of.output)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Make nodes that read earlier ones; all that nobody reads is joined at the end."""
    names = [IMAGE]
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 9))):
        known = st.sampled_from(names)
        op = draw(st.sampled_from(["add", "add", "select"]))
        least = 2 if op == "select" else 1
        inputs = draw(st.lists(known, min_size=least, max_size=4))
        nodes.append(node(f"n{number}", *inputs, op=op))
        names.append(f"n{number}")
    read = {name for one in nodes for name in one.reads}
    return graph(*nodes, node("end", *(name for name in names[1:] if name not in read)))


@settings(deadline=None, max_examples=200)
@given(of=graphs(), at_once=st.integers(1, 4), image=st.integers(0, 50))
def test_the_result_is_that_of_one_node_after_another(of: Graph, at_once: int, image: int) -> None:
    assert run(of, at_once=at_once, image=image) == naive(of, image=image)


@settings(deadline=None, max_examples=200)
@given(data=st.data(), of=graphs(), at_once=st.integers(1, 4))
def test_fallbacks_take_the_place_of_any_failures(
    data: st.DataObject, of: Graph, at_once: int
) -> None:
    """Give some nodes a fallback and let some fail: what is answered, or fails, is as expected."""
    names = [IMAGE, *of.nodes]
    nodes = [
        node(
            one.name,
            *one.inputs,
            op=one.op,
            fallback=data.draw(st.sampled_from(["", *names[: number + 1]])),
        )
        for number, one in enumerate(of.nodes.values())
    ]
    failing = data.draw(st.frozensets(st.sampled_from(list(of.nodes))))
    changed = graph(*nodes)

    def work(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401
        if one.name in failing:
            raise InferenceError(f"node {one.name}: broken")
        return add(one, values)

    expected = naive(changed, failing)
    if expected is None:
        with pytest.raises(InferenceError, match="broken"):
            run(changed, work, at_once)
    else:
        assert run(changed, work, at_once) == expected


# --- only what is needed, side by side, and freed in time


def test_independent_nodes_run_side_by_side() -> None:
    both = threading.Barrier(2)

    def work(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401
        if one.name in "ab":
            both.wait(PATIENCE_S)
        return add(one, values)

    of = graph(node("a", IMAGE), node("b", IMAGE), node("c", "a", "b"))
    assert run(of, work) == naive(of)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_no_more_nodes_run_at_once_than_allowed(at_once: int) -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def work(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1
        return add(one, values)

    branches = [node(f"b{number}", IMAGE) for number in range(6)]
    run(graph(*branches, node("end", *(one.name for one in branches))), work, at_once)
    assert most[0] == at_once


def ran(of: Graph, *failing: str) -> list[str]:
    """Run a graph one node after another and tell which nodes ran."""
    names: list[str] = []

    def work(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401
        names.append(one.name)
        if one.name in failing:
            raise InferenceError(f"node {one.name}: broken")
        return 1 if one.op == "select" else add(one, values)

    run(of, work, at_once=1)
    return names


def test_of_a_select_only_the_picked_choice_runs() -> None:
    of = graph(
        node("measured", IMAGE),
        node("deep", IMAGE),
        node("first", "deep"),
        node("second", IMAGE),
        node("end", "measured", "first", "second", op="select"),
    )
    assert ran(of) == ["measured", "end", "second"]


def test_a_fallback_runs_only_after_a_failure() -> None:
    of = graph(node("plain", IMAGE), node("end", IMAGE, fallback="plain"))
    assert ran(of) == ["end"]
    assert ran(of, "end") == ["end", "plain"]


def test_a_failure_is_handled_anywhere_further() -> None:
    of = graph(
        node("a", IMAGE),
        node("b", "a"),
        node("plain", IMAGE),
        node("c", "b", fallback="plain"),
        node("end", "c"),
    )
    assert ran(of, "a") == ["a", "plain", "end"]


def test_a_failing_fallback_is_the_failure() -> None:
    of = graph(node("plain", IMAGE), node("end", IMAGE, fallback="plain"))
    with pytest.raises(InferenceError, match="node plain: broken"):
        ran(of, "end", "plain")


def test_a_result_is_freed_when_its_last_reader_is_done() -> None:
    alive: dict[str, weakref.ref[Number]] = {}
    seen: dict[str, list[str]] = {}

    def work(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401
        gc.collect()
        seen[one.name] = [name for name, ref in alive.items() if ref() is not None]
        if one.op == "select":
            return 0
        result = add(one, values)
        alive[one.name] = weakref.ref(result)
        return result

    of = graph(
        node("a", IMAGE),
        node("b", "a"),
        node("c", "a", "b"),
        node("d", "c"),
        node("spare", "a", "d"),
        node("e", "d", "c", "spare", op="select"),
        node("f", "e"),
        node("end", "f"),
    )
    run(of, work, at_once=1)
    assert seen["b"] == ["a"]
    assert seen["c"] == ["a", "b"]
    assert seen["d"] == ["a", "c"]  # spare may still need a
    assert seen["e"] == ["a", "c", "d"]
    assert seen["f"] == ["c"]
    assert seen["end"] == ["f"]


# --- failures and limits


DIAMOND = graph(
    node("a", IMAGE), node("b", "a"), node("c", "a"), node("d", "b", "c"), node("end", "d")
)


@pytest.mark.parametrize("failing", list(DIAMOND.nodes))
@pytest.mark.parametrize("kind", [InferenceError, RequestError])
def test_a_failure_at_any_node_stops_what_has_not_started(
    failing: str, kind: type[Exception]
) -> None:
    started: list[str] = []

    def work(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401
        started.append(one.name)
        if one.name == failing:
            raise kind("broken")
        return add(one, values)

    with pytest.raises(kind, match="broken"):
        run(DIAMOND, work, at_once=1)
    time.sleep(0.02)
    assert started[-1] == failing


def test_a_failure_does_not_wait_for_other_branches() -> None:
    go_on = threading.Event()

    def work(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401
        if one.name == "slow":
            go_on.wait(PATIENCE_S)
        if one.name == "bad":
            raise InferenceError("broken")
        return add(one, values)

    of = graph(node("slow", IMAGE), node("bad", IMAGE), node("end", "slow", "bad"))
    start = time.monotonic()
    with pytest.raises(InferenceError, match="broken"):
        run(of, work)
    go_on.set()
    assert time.monotonic() - start < PATIENCE_S / 2


def test_the_time_limit_ends_a_request_and_names_what_lasted() -> None:
    go_on, started = threading.Event(), []

    def work(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401
        started.append(one.name)
        go_on.wait(PATIENCE_S)
        return add(one, values)

    of = graph(node("slow", IMAGE), node("end", "slow"), timeout_s=0.2)
    start = time.monotonic()
    with pytest.raises(
        InferenceError,
        match=r"pipeline p: not done within its timeout of 0.2 s, "
        r"still at slow; .* longer timeout",
    ):
        run(of, work)
    assert time.monotonic() - start < PATIENCE_S / 2
    go_on.set()
    time.sleep(0.05)
    assert started == ["slow"]


def test_nothing_starts_for_a_caller_who_has_gone() -> None:
    gone, started = threading.Event(), []

    def work(one: Node, values: Sequence[Number]) -> Any:  # noqa: ANN401
        started.append(one.name)
        gone.set()
        return add(one, values)

    of = graph(node("a", IMAGE), node("b", "a"), node("end", "b"))
    with pytest.raises(RequestError, match="pipeline p: stopped, nobody waits"):
        run(of, work, is_gone=gone.is_set)
    assert started == ["a"]


def test_a_node_is_told_that_the_request_has_ended() -> None:
    told, looked = [], threading.Event()

    def work(one: Node, values: Sequence[Any], is_over: IsOver) -> Any:  # noqa: ANN401
        deadline = time.monotonic() + PATIENCE_S
        while not is_over() and time.monotonic() < deadline:
            time.sleep(0.005)
        told.append(is_over())
        looked.set()

    slow = graph(node("a", IMAGE), timeout_s=0.1)
    execution = Execution(slow, lambda *all_of_it: POOL.submit(work, *all_of_it), lambda: False, 1)
    with pytest.raises(InferenceError, match="timeout"):
        execution.answer(Number(1))  # type: ignore[arg-type]
    assert looked.wait(PATIENCE_S)
    assert told == [True]
