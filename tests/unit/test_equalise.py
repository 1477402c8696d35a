"""Channels of similar range: another network on paper, the same one for every picture."""

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto

from styleserve import trial
from styleserve.equalise import equalised
from styleserve.probe import Tensor, photo
from tests import tiny_models as tiny
from tests.tiny_models import node

PICTURE = photo(40, 56)


def peaks(model: ModelProto) -> Mapping[str, Tensor]:
    """Give the largest value in each channel of what convolutions read."""
    reads = sorted({each.input[0] for each in model.graph.node if each.op_type == "Conv"})
    seen = trial.values(model, reads, [PICTURE])
    return {name: np.abs(values[0]).max(axis=(0, 2, 3)) for name, values in seen.items()}


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
    seen = [trial.values(each, [stream], [PICTURE])[stream][0] for each in (model, made)]
    np.testing.assert_array_equal(seen[0], seen[1])


def test_weights_that_two_nodes_share_are_scaled_for_each_alone() -> None:
    model = tiny.residual(blocks=2)
    kernels = [each for each in model.graph.node if each.op_type == "Conv"][1:5]
    for each in kernels:
        each.input[1] = kernels[0].input[1]
    np.testing.assert_allclose(run(equalised(model, peaks(model))), run(model), atol=1e-3)


def test_a_model_without_such_layers_is_left_alone() -> None:
    model = tiny.invert()
    assert equalised(model, {}).SerializeToString() == model.SerializeToString()
