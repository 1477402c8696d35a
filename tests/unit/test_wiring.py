"""Which declared pipelines hold, and how each fault is told; first comes `test_reader`."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from styleserve import kinds, wiring
from styleserve.declaration import Declaration, Graph, Node
from styleserve.kinds import Kind
from styleserve.operations import OPERATIONS

MODELS: dict[str, Kind] = {"dots": "image", "swirl": "image", "person": "mask"}


def graph(output: str = "out", name: str = "p", **nodes: Node) -> Graph:
    return Graph(name, 1, "", nodes, output, 60.0)


def model(line: int, model: str = "dots", *inputs: str, fallback: str = "") -> Node:
    return Node("", line, inputs or ("image",), model=model, fallback=fallback)


def op(line: int, op: str, *inputs: str, fallback: str = "", **options: object) -> Node:
    return Node("", line, inputs, op=op, options=options, fallback=fallback)


def named(of: Graph) -> Graph:
    nodes = {
        name: Node(name, n.line, n.inputs, n.model, n.op, n.options, n.fallback)
        for name, n in of.nodes.items()
    }
    return Graph(of.name, of.line, of.description, nodes, of.output, of.timeout_s)


def faults(*graphs: Graph) -> list[str]:
    lines = {each.name: each.line for each in graphs}
    declared = Declaration(Path("f.yaml"), lines, [named(each) for each in graphs])
    wiring.check(declared, MODELS)
    return [fault.removeprefix("f.yaml:") for fault in declared.faults]


def test_what_holds_has_no_faults() -> None:
    whole = graph(
        mask=op(2, "saliency", "image"),
        person=model(3, "person"),
        inverse=op(4, "invert", "person"),
        dots=model(5, "dots", fallback="image"),
        inner=model(6, "other"),
        both=op(7, "composite", "dots", "inner", "inverse"),
        small=op(8, "crop", "both", region=(0.2, 0.2, 0.8, 0.7)),
        turned=op(9, "rotate", "small", degrees=90),
        back=op(10, "rotate", "turned", degrees=270),
        pasted=op(11, "paste", "both", "back", region=(0.2, 0.2, 0.8, 0.7)),
        picked=op(12, "select", "mask", "pasted", "both", measure="area", below=[0.3]),
        half=op(13, "resize", "picked", scale=0.5),
        out=op(14, "resize", "half", "image", scale=1.0),
    )
    other = graph("swirl", "other", swirl=model(2, "swirl"))
    assert faults(whole, other) == []


FAULTS = {
    "unknown model": (
        graph(out=model(4, "dot")),
        ["4: pipeline p: node out: there is no model 'dot'; did you mean dots?"],
    ),
    "unknown input": (
        graph(a=model(3), out=model(4, "dots", "aa")),
        ["4: pipeline p: node out: there is no node 'aa'; did you mean a?"],
    ),
    "unknown fallback": (
        graph(out=model(4, fallback="x")),
        ["4: pipeline p: node out: there is no node 'x'; there are image, out"],
    ),
    "unknown output": (
        graph("end", out=model(4)),
        ["1: pipeline p: its output 'end' is no node of it; there are out"],
    ),
    "the request's name": (
        graph("image", image=model(4)),
        ["4: pipeline p: node image: image is the picture of the request; call the node"],
    ),
    "circle": (
        graph(a=model(3, "dots", "b"), b=model(4, "dots", "a"), out=model(5, "dots", "b")),
        ["pipeline p: node ", "a circle: "],
    ),
    "reads itself": (
        graph(out=model(4, "dots", "out")),
        ["4: pipeline p: node out: a circle: out -> out"],
    ),
    "falls back to its reader": (
        graph(a=model(3, fallback="out"), out=model(4, "dots", "a")),
        ["a circle: "],
    ),
    "unused": (
        graph(a=model(3), b=model(4, "dots", "a"), out=model(5)),
        ["4: pipeline p: node b: its result is never used, the output is 'out'; lead it there"],
    ),
    "two unused": (
        graph(a=model(3), b=model(4), out=model(5)),
        [
            "3: pipeline p: node a: its result is never used, the output is 'out'",
            "4: pipeline p: node b: its result is never used, the output is 'out'",
        ],
    ),
    "output of another branch": (
        graph("mask", mask=op(2, "saliency", "image"), a=model(3), b=model(4, "dots", "a")),
        ["4: pipeline p: node b: its result is never used, the output is 'mask'"],
    ),
    "too few inputs": (
        graph(a=op(3, "saliency", "image"), out=op(4, "composite", "image", "a")),
        ["4: pipeline p: node out: composite takes the inputs front, back, mask; got 2"],
    ),
    "too many inputs": (
        graph(out=op(4, "invert", "image", "image")),
        ["4: pipeline p: node out: invert takes the inputs value; got 2"],
    ),
    "no inputs": (
        graph(out=op(4, "blend", weights=[1.0])),
        ["4: pipeline p: node out: blend takes the inputs images...; got 0"],
    ),
    "two pictures for a model": (
        graph(out=model(4, "dots", "image", "image")),
        ["4: pipeline p: node out: a model takes one input, got 2"],
    ),
    "mask for a picture": (
        graph(a=op(3, "saliency", "image"), out=model(4, "dots", "a")),
        ["4: pipeline p: node out: its input a must be an image, and is a mask"],
    ),
    "picture for a mask": (
        graph(out=op(4, "composite", "image", "image", "image")),
        ["4: pipeline p: node out: its input image must be a mask, and is an image"],
    ),
    "choices of two kinds": (
        graph(
            a=op(3, "saliency", "image"),
            out=op(4, "select", "a", "image", "a", measure="area", below=[0.5]),
        ),
        ["4: pipeline p: node out: its input a must be an image, and is a mask"],
    ),
    "fallback of another kind": (
        graph(a=op(3, "saliency", "image"), out=model(4, fallback="a")),
        ["4: pipeline p: node out: it gives an image, its fallback a a mask"],
    ),
    "mask as the answer": (
        graph(out=model(4, "person")),
        ["4: pipeline p: node out: it is the output and gives a mask"],
    ),
    "answer of another size": (
        graph(out=op(4, "crop", "image", region=(0.0, 0.0, 0.5, 1.0))),
        ["4: pipeline p: node out: it is the output and gives 32x48 pixels for a picture of 64x48"],
    ),
    "turned answer": (
        graph(out=op(4, "rotate", "image", degrees=90)),
        ["4: pipeline p: node out: it is the output and gives 48x64 pixels for a picture of 64x48"],
    ),
    "inputs of two sizes": (
        graph(
            a=op(3, "resize", "image", scale=0.5), out=op(4, "blend", "image", "a", weights=[1, 1])
        ),
        ["4: pipeline p: node out: its inputs differ in size, a picture of some size gives 64x48"],
    ),
    "fallback of another size": (
        graph(
            a=op(3, "resize", "image", scale=0.5),
            out=model(4, fallback="a"),
        ),
        ["4: pipeline p: node out: its fallback a gives another size than it does"],
    ),
    "weights for other inputs": (
        graph(out=op(4, "blend", "image", "image", weights=[1.0])),
        ["4: pipeline p: node out: it has 2 inputs, but 1 weights"],
    ),
    "measure for another kind": (
        graph(out=op(4, "select", "image", "image", "image", measure="area", below=[0.5])),
        ["4: pipeline p: node out: area is a measure of masks"],
    ),
}


@pytest.mark.parametrize(("wrong", "told"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_told_once_with_line_and_node(wrong: Graph, told: list[str]) -> None:
    found = faults(wrong)
    if "circle" in told[-1]:
        assert len(found) == 1
        assert all(text in found[0] for text in told)
    else:
        assert len(found) == len(told)
        for fault, text in zip(found, told, strict=True):
            assert fault.startswith(text), fault


def test_faults_of_all_pipelines_are_told_at_once() -> None:
    wrong = graph(a=model(3, "x"), b=model(4, "y", "z"), out=model(5, "dots", "a"))
    also = graph("end", "q", out=model(9))
    assert len(faults(wrong, also)) == 4


def test_pipelines_that_contain_each_other_are_a_circle() -> None:
    one = graph(name="one", out=model(3, "two"))
    two = graph(name="two", out=model(7, "three"))
    three = graph(name="three", out=model(9, "one"))
    (fault,) = faults(one, two, three)
    assert "it contains itself: " in fault
    assert fault.count("->") == 3


def test_a_broken_node_hides_no_other_fault_and_makes_none_up() -> None:
    broken = graph(a=model(3), b=Node("b", 4), out=model(5, "swrl", "b"))
    (fault,) = faults(broken)
    assert fault.startswith("5: pipeline p: node out: there is no model 'swrl'; did you mean swirl")


def test_nested_pipelines_come_first() -> None:
    outer = named(graph(name="outer", out=model(3, "inner")))
    inner = named(graph(name="inner", out=model(3)))
    assert [each.name for each in wiring.nested_first([outer, inner])] == ["inner", "outer"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_can_be_declared(operation: str) -> None:
    assert kinds.inputs_of(operation)
    assert not kinds.takes(operation, 0)
    count = next(count for count in range(1, 5) if kinds.takes(operation, count))
    found, _ = kinds.result(operation, [None] * count)
    assert found in ("image", "mask", None)


# --- random pipelines, broken in a known place


@st.composite
def sound(draw: st.DrawFn) -> list[Node]:
    """Make a chain with branches in which everything is used."""
    nodes: list[Node] = []
    last = "image"
    for number in range(draw(st.integers(2, 6))):
        name, line = f"n{number}", 10 + number
        made = draw(
            st.sampled_from(
                [
                    Node(name, line, (last,), model="dots"),
                    Node(name, line, (last,), op="invert"),
                    Node(name, line, (last, "image"), op="keep_color"),
                    Node(name, line, (last, "image"), op="blend", options={"weights": [1, 2]}),
                    Node(name, line, (last,), model="swirl", fallback="image"),
                ]
            )
        )
        nodes.append(made)
        last = name
    return nodes


def with_inputs(node: Node, *inputs: str) -> Node:
    return dataclasses.replace(node, inputs=(*node.inputs, *inputs))


BREAKS: dict[str, Callable[[Node], Node]] = {
    "there is no node 'nowhere'": lambda node: with_inputs(node, "nowhere"),
    "there is no model 'no'": lambda node: dataclasses.replace(node, model="no", op=""),
    "a circle: ": lambda node: with_inputs(node, node.name),
    "(takes .*; got|takes one input, got|but 2 weights)": lambda node: with_inputs(
        node, "image", "image"
    ),
    "its input image must be a mask": lambda node: Node(
        node.name, node.line, ("image", node.inputs[0], "image"), op="composite"
    ),
}


@settings(deadline=None)
@given(data=st.data(), nodes=sound())
def test_a_wrong_output_is_told_once_and_not_as_what_it_leaves_unused(
    data: st.DataObject, nodes: list[Node]
) -> None:
    wrong = data.draw(st.sampled_from(["nowhere", *(node.name for node in nodes[:-1])]))
    chain = Graph("p", 1, "", {node.name: node for node in nodes}, wrong, 60.0)
    assert len(faults(chain)) == 1


@settings(deadline=None, max_examples=100)
@given(data=st.data(), nodes=sound(), kind=st.sampled_from(["", *BREAKS]))
def test_random_pipelines_hold_until_one_node_is_broken(
    data: st.DataObject, nodes: list[Node], kind: str
) -> None:
    place = data.draw(st.integers(0, len(nodes) - 1))
    if kind:
        nodes[place] = BREAKS[kind](nodes[place])
    of = Graph("p", 1, "", {node.name: node for node in nodes}, nodes[-1].name, 60.0)
    declared = Declaration(Path("f.yaml"), {"p": 1}, [of])

    wiring.check(declared, MODELS)

    assert len(declared.faults) == (1 if kind else 0)
    for fault in declared.faults:
        assert re.match(rf"f.yaml:{10 + place}: pipeline p: node n{place}: .*{kind}", fault), fault
