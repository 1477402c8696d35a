"""Faster layers: what is rewritten computes the same, what does not fit stays as it is."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from styleserve import convert, metadata, rewrite
from styleserve.probe import Tensor, photo
from styleserve.trial import load, steady
from tests import tiny_models as tiny
from tests.tiny_models import Value, node

OPSET = 18
SIZES = ((32, 48), (34, 36), (46, 32))
REPEATING = [
    {},  # what the version converter writes
    {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "round_prefer_floor"},
]


def kernel(*shape: int) -> Tensor:
    values = np.random.default_rng(sum(shape)).normal(0, 0.1, shape)
    return np.asarray(values, np.float32)


def to_few(
    outputs: int = 3, side: int = 9, *, bias: bool = True, **attributes: Value
) -> ModelProto:
    """A model that ends in a convolution to few channels, which keeps the size."""
    inputs = 1 if "group" in attributes else 3
    names = ["kernel", "bias"] if bias else ["kernel"]
    return tiny.model(
        [node("Conv", ["image", *names], "styled", **({"pads": [side // 2] * 4} | attributes))],
        size=None,
        channels=outputs,
        opset=OPSET,
        kernel=kernel(outputs, inputs, side, side),
        bias=kernel(outputs),
    )


def enlarged(
    scale: float = 2.0,
    border: int = 1,
    fill: str = "reflect",
    conv: dict[str, Value] | None = None,
    modes: dict[str, str] | None = None,
) -> ModelProto:
    """A model that halves its picture, then enlarges, pads and convolves the half."""
    nodes = [
        node("AveragePool", ["image"], "half", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["half", "", "scales"], "big", **({"mode": "nearest"} | (modes or {}))),
        node("Pad", ["big", "border"], "padded", mode=fill),
        node("Conv", ["padded", "kernel", "bias"], "styled", **conv or {}),
    ]
    return tiny.model(
        nodes,
        size=None,
        channels=8,
        opset=OPSET,
        kernel=kernel(8, 3, 3, 3),
        bias=kernel(8),
        scales=np.array([1, 1, scale, scale]),
        border=np.array([0, 0, border, border] * 2),
    )


def traced() -> ModelProto:
    """Like `enlarged`, with the scales computed from the shape, as traced models do."""
    model = enlarged()
    (scales,) = (each for each in model.graph.initializer if each.name == "scales")
    scales.name = "doubled"
    added = [
        node("Shape", ["half"], "shape"),
        node("Cast", ["shape"], "sides", to=1),
        node("Mul", ["sides", "doubled"], "wanted"),
        node("Div", ["wanted", "sides"], "scales"),
    ]
    for number, each in enumerate(added, start=1):
        model.graph.node.insert(number, each)
    return model


def in_halves() -> ModelProto:
    """A model that keeps even sides only, and ends in a convolution to three channels."""
    nodes = [
        node("AveragePool", ["image"], "half", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("Resize", ["half", "", "scales"], "big", mode="nearest"),
        node("Conv", ["big", "kernel"], pads=[1] * 4),
    ]
    positive, scales = 3 * np.abs(kernel(3, 3, 3, 3)), np.array([1, 1, 2, 2.0])
    return tiny.model(nodes, size=None, opset=OPSET, kernel=positive, scales=scales)


def gap(before: ModelProto, after: ModelProto) -> float:
    one, other = (load(each.SerializeToString(), "tiny") for each in (before, after))
    return max(float(np.abs(one(photo(*size)) - other(photo(*size))).max()) for size in SIZES)


def kinds(model: ModelProto) -> list[str]:
    return [each.op_type for each in model.graph.node]


@pytest.mark.parametrize("side", [3, 5, 9])
@pytest.mark.parametrize("outputs", [1, 3, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_to_few_channels_is_exact(outputs: int, side: int, bias: bool) -> None:
    model = to_few(outputs, side, bias=bias)
    faster, counts = rewrite.faster(model, {})
    assert counts == {"output": 1}
    assert kinds(faster) == ["Conv", "DepthToSpace"]
    assert gap(model, faster) < 1e-3


def test_a_padding_of_unequal_sides_is_kept() -> None:
    model = to_few(side=3, pads=[2, 0, 0, 2])
    assert gap(model, rewrite.faster(model, {})[0]) < 1e-3


@pytest.mark.parametrize("fill", ["reflect", "edge"])
@pytest.mark.parametrize("modes", REPEATING)
def test_an_enlargement_is_exact(fill: str, modes: dict[str, str]) -> None:
    model = enlarged(fill=fill, modes=modes)
    faster, counts = rewrite.faster(model, {})
    assert counts == {"upsample": 1}
    assert kinds(faster) == ["AveragePool", "Pad", "Conv", "DepthToSpace", "Slice"]
    assert gap(model, faster) < 1e-3


def test_scales_that_are_computed_count_once_they_are_known() -> None:
    model = traced()
    assert rewrite.computed_scales(enlarged()) == []
    assert rewrite.computed_scales(model) == ["scales"]
    assert rewrite.faster(model, {})[1] == {}

    faster, counts = rewrite.faster(model, steady(model, ["scales", "wanted"], SIZES))

    assert counts == {"upsample": 1}
    assert gap(model, faster) < 1e-3


def test_a_model_with_branches_stays_as_it_is(tmp_path: Path) -> None:
    model = tiny.branching()
    assert rewrite.faster(model, {}) == (model, {})

    target = tmp_path / "a-18.onnx"
    convert.convert(tiny.save(model, tmp_path / "a.onnx"), target, OPSET)
    picture = photo(40, 56)
    before, after = (load(each.SerializeToString(), "a") for each in (model, onnx.load(target)))
    np.testing.assert_array_equal(before(picture), after(picture))


def test_only_values_that_are_the_same_for_all_sizes_are_steady() -> None:
    assert list(steady(traced(), ["scales", "wanted"], SIZES)) == ["scales"]


@pytest.mark.parametrize(
    "model",
    [
        to_few(outputs=5),
        to_few(side=1),
        to_few(group=3),
        to_few(side=3, dilations=[2, 2], pads=[2] * 4),
        to_few(side=3, auto_pad="SAME_UPPER"),
        enlarged(scale=3.0),
        enlarged(border=2, conv={"dilations": [2, 2]}),
        enlarged(fill="constant"),
        enlarged(modes={"nearest_mode": "ceil"}),
        enlarged(modes={"mode": "linear"}),
        enlarged(border=0, conv={"pads": [1] * 4}),
        tiny.invert(opset=OPSET),
    ],
)
def test_what_does_not_fit_stays(model: ModelProto) -> None:
    faster, counts = rewrite.faster(model, {})
    assert counts == {}
    assert faster == model


@pytest.mark.parametrize(
    ("model", "rewritten"),
    [(in_halves(), "1 output"), (to_few(side=3), ""), (tiny.invert(opset=OPSET), "")],
)
def test_a_conversion_rewrites_only_what_keeps_every_size(
    model: ModelProto, rewritten: str, tmp_path: Path
) -> None:
    source = tiny.save(model, tmp_path / "source.onnx")
    report = convert.convert(source, tmp_path / "served.onnx", OPSET)
    props = {each.key: each.value for each in onnx.load(tmp_path / "served.onnx").metadata_props}
    assert report.rewritten == rewritten
    assert props.get(metadata.REWRITTEN, "") == rewritten
    assert str(report).endswith(f"rewritten: {rewritten}" if rewritten else "of 255")
