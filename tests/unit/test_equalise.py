"""Channels of similar range: another network on paper, the same one for every picture."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

from styleserve import trial
from styleserve.equalise import equalised
from styleserve.probe import Tensor, photo
from tests import tiny_models as tiny
from tests.tiny_models import node

PICTURE = photo(40, 56)


def peaks(model: ModelProto) -> Mapping[str, Tensor]:
    """Give the largest value in each channel of what convolutions read."""
    reads = sorted({each.input[0] for each in model.graph.node if each.op_type == "Conv"})
    (seen,) = trial.values(model, reads, [PICTURE])
    return {name: np.abs(value).max(axis=(0, 2, 3)) for name, value in seen.items()}


def spread(values: Tensor) -> float:
    moving = values[values > 0]
    return float(np.log2(moving.max() / moving.min()))


def run(model: ModelProto) -> Tensor:
    return trial.load(model.SerializeToString(), "tiny")(PICTURE)


def test_ranges_come_closer_and_the_picture_stays() -> None:
    model = tiny.residual()
    before = peaks(model)
    made = equalised(model, before)
    after = peaks(made)
    inner = [name for name in before if len(before[name]) > 3]
    assert len(inner) == 5
    for name in inner:
        assert spread(after[name]) < spread(before[name])
    np.testing.assert_allclose(run(made), run(model), atol=1e-3)
    assert {each.name for each in made.graph.initializer} <= {
        name for each in made.graph.node for name in each.input
    }


@pytest.mark.parametrize("kind", ["Sigmoid", "AveragePool"])
def test_what_another_operator_reads_keeps_its_range(kind: str) -> None:
    """Only what convolutions alone read may be scaled."""
    model = tiny.residual()
    stream = next(each.output[0] for each in model.graph.node if each.op_type == "Relu")
    attributes = {"kernel_shape": [1, 1]} if kind == "AveragePool" else {}
    model.graph.node.append(node(kind, [stream], "other", **attributes))
    made = equalised(model, peaks(model))
    before, after = (next(trial.values(each, [stream], [PICTURE])) for each in (model, made))
    np.testing.assert_array_equal(before[stream], after[stream])


def test_weights_that_two_nodes_share_are_scaled_for_each_alone() -> None:
    model = tiny.residual(blocks=2)
    kernels = [each for each in model.graph.node if each.op_type == "Conv"][1:5]
    for each in kernels:
        each.input[1] = kernels[0].input[1]
    np.testing.assert_allclose(run(equalised(model, peaks(model))), run(model), atol=1e-3)


def test_a_model_without_such_layers_is_left_alone() -> None:
    model = tiny.invert()
    assert equalised(model, {}).SerializeToString() == model.SerializeToString()


CHANNELS = np.random.default_rng(1).normal(0, 3, (16, 1, 1))
BORDER = [0, 0, 1, 1, 0, 0, 1, 1]


BETWEEN: dict[str, tuple[list[NodeProto], dict[str, Any]]] = {
    "bias": ([node("Add", ["stream", "w"], "other")], {"w": CHANNELS}),
    "one number": ([node("Add", ["w", "stream"], "other")], {"w": np.array([2.0])}),
    "weights only": (
        [node("Relu", ["w"], "more"), node("Add", ["stream", "more"], "other")],
        {"w": CHANNELS},
    ),
    "border": ([node("Pad", ["stream", "b"], "other")], {"b": BORDER}),
    "filling": (
        [node("Pad", ["stream", "b", "w"], "other")],
        {"b": BORDER, "w": np.array(2.0)},
    ),
    "more channels": (
        [
            node("Conv", ["image", "w"], "few", pads=[1] * 4),
            node("Pad", ["few", "b"], "more"),
            node("Add", ["stream", "more"], "other"),
        ],
        {"w": np.full((8, 3, 3, 3), 0.01), "b": [0, 4, 0, 0, 0, 4, 0, 0]},
    ),
    "one channel": (
        [
            node("Conv", ["image", "w"], "map", pads=[1] * 4),
            node("Add", ["stream", "map"], "other"),
        ],
        {"w": np.full((1, 3, 3, 3), 0.01)},
    ),
    "another operator": ([node("Concat", ["stream"], "other", axis=1)], {}),
    "itself": ([node("Add", ["stream", "stream"], "other")], {}),
}


@pytest.mark.parametrize(("nodes", "weights"), BETWEEN.values(), ids=BETWEEN)
def test_what_lies_between_two_convolutions_is_reckoned_with(
    nodes: list[NodeProto], weights: dict[str, Any]
) -> None:
    model = between(nodes, weights)
    np.testing.assert_allclose(run(equalised(model, peaks(model))), run(model), atol=1e-3)


def test_a_tensor_that_is_both_scale_and_bias_is_scaled_once_for_each() -> None:
    model = tiny.residual()
    for each in model.graph.node:
        if each.op_type == "InstanceNormalization":
            each.input[2] = each.input[1]
    made = equalised(model, peaks(model))
    names = [each.name for each in made.graph.initializer]
    assert len(names) == len(set(names))
    np.testing.assert_allclose(run(made), run(model), atol=1e-3)


def test_a_model_with_branches_is_left_alone() -> None:
    model = tiny.branching()
    assert equalised(model, peaks(model)).SerializeToString() == model.SerializeToString()


def between(nodes: list[NodeProto], weights: dict[str, Any]) -> ModelProto:
    """Put nodes from "stream" to "other" behind the first ReLU of a residual network."""
    model = tiny.residual()
    place = next(n for n, each in enumerate(model.graph.node) if each.op_type == "Relu")
    name = model.graph.node[place].output[0]
    for each in model.graph.node:
        for n, read in enumerate(each.input):
            each.input[n] = "other" if read == name else read
    for each in reversed(nodes):
        each = copy.deepcopy(each)
        for n, read in enumerate(each.input):
            each.input[n] = name if read == "stream" else read
        model.graph.node.insert(place + 1, each)
    for key, value in weights.items():
        array = np.asarray(value)
        kind = np.float32 if array.dtype == np.float64 else array.dtype
        model.graph.initializer.append(numpy_helper.from_array(array.astype(kind), key))
    return model
