"""Small ONNX models with known answers, made in memory: each function returns a ModelProto.

`size` None leaves batch, height and width open; (h, w) fixes the shape at 1 x 3 x h x w.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Size = tuple[int, int] | None
Value = int | str | list[int]


def identity(size: Size = None, opset: int = 9) -> ModelProto:
    return model([node("Identity", ["image"])], size=size, opset=opset)


def invert(size: Size = None, opset: int = 9) -> ModelProto:
    """Give 255 - x."""
    nodes = [node("Sub", ["white", "image"])]
    return model(nodes, white=np.array([255.0]), size=size, opset=opset)


def swap_red_blue(size: Size = None) -> ModelProto:
    nodes = [node("Gather", ["image", "order"], axis=1)]
    return model(nodes, order=np.array([2, 1, 0]), size=size)


def stride_two(size: Size = None, opset: int = 9) -> ModelProto:
    """Halve twice, then enlarge four times: only sides that are multiples of 4 are kept."""
    nodes = [
        node("AveragePool", ["image"], "half", **_HALVE),
        node("AveragePool", ["half"], "quarter", **_HALVE),
        node("Upsample", ["quarter", "scales"], mode="nearest"),
    ]
    return model(nodes, scales=np.array([1, 1, 4, 4.0]), size=size, opset=opset)


def linear_upsample(size: Size = (32, 32)) -> ModelProto:
    """Halve, then enlarge with interpolation, which newer opsets place otherwise."""
    nodes = [
        node("AveragePool", ["image"], "half", **_HALVE),
        node("Upsample", ["half", "scales"], mode="linear"),
    ]
    return model(nodes, scales=np.array([1, 1, 2, 2.0]), size=size)


def old_style(size: Size = (32, 32)) -> ModelProto:
    """Give 255 - x, in IR 3, where each weight is listed among the inputs too."""
    old = invert(size)
    old.ir_version = 3
    old.graph.input.append(helper.make_tensor_value_info("white", TensorProto.FLOAT, [1]))
    return old


def residual(size: Size = None, *, blocks: int = 2, channels: int = 16) -> ModelProto:
    """A style network in small: convolutions, normalised and rectified, and blocks that add."""
    random = np.random.default_rng(5)
    weights: dict[str, NDArray[Any]] = {"border": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    nodes: list[NodeProto] = []

    def add(kind: str, inputs: Sequence[str], **attributes: Value) -> str:
        output = f"{kind}{len(nodes)}"
        nodes.append(node(kind, inputs, output, **attributes))
        return output

    def convolve(value: str, ins: int, outs: int) -> str:
        name = f"kernel{len(nodes)}"
        weights[name] = random.normal(0, (9 * ins) ** -0.5, (outs, ins, 3, 3))
        return add("Conv", [add("Pad", [value, "border"], mode="reflect"), name])

    def normalise(value: str) -> str:
        scale, bias = f"scale{len(nodes)}", f"bias{len(nodes)}"
        weights[scale] = np.geomspace(0.3, 3, channels)  # which is hard for 8 bits
        weights[bias] = random.normal(0, 1, channels)
        return add("InstanceNormalization", [value, scale, bias])

    value = add("Relu", [normalise(convolve("image", 3, channels))])
    for _ in range(blocks):
        inner = add("Relu", [normalise(convolve(value, channels, channels))])
        value = add("Add", [normalise(convolve(inner, channels, channels)), value])
    weights["grey"], weights["gain"] = np.array([128.0]), np.array([9.0])
    loud = add("Mul", [convolve(value, channels, 3), "gain"])
    nodes.append(node("Add", [loud, "grey"]))
    return model(nodes, size=size, channels=3, opset=18, elem_type=TensorProto.FLOAT, **weights)


def branching(size: Size = None) -> ModelProto:
    """Convolve, in a branch that reads a value and weights from outside of it, then again."""
    bodies = {
        name: helper.make_graph(
            [node("Conv", ["first", weights], name, pads=[1] * 4)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, weights in (("one", "blur"), ("two", "copy"))
    }
    branches = {"then_branch": bodies["one"], "else_branch": bodies["two"]}
    copy = np.zeros((3, 3, 3, 3))
    copy[range(3), range(3), 1, 1] = 1
    nodes = [
        node("Conv", ["image", "copy"], "first", pads=[1] * 4),
        node("ReduceMax", ["image"], "brightest", keepdims=0),
        node("Greater", ["brightest", "zero"], "yes"),
        helper.make_node("If", ["yes"], ["chosen"], **branches),
        node("Conv", ["chosen", "copy"], pads=[1] * 4),
    ]
    blur = np.full((3, 3, 3, 3), 1 / 27)
    return model(nodes, size=size, opset=18, copy=copy, blur=blur, zero=np.array(0.0))


def odd_only(size: Size = None) -> ModelProto:
    """Give back odd sides only, and even ones a pixel short: no multiple fits."""
    kernel = np.zeros((3, 3, 3, 3))
    kernel[range(3), range(3), 1, 1] = 1
    nodes = [
        node("Conv", ["image", "kernel"], "half", pads=[1] * 4, strides=[2, 2]),
        node("ConvTranspose", ["half", "kernel"], pads=[1] * 4, strides=[2, 2]),
    ]
    return model(nodes, kernel=kernel, size=size)


def baked_size(size: tuple[int, int] = (32, 48)) -> ModelProto:
    """Invert, with its size written into the graph: it cannot be opened."""
    nodes = [
        node("Sub", ["white", "image"], "inverted"),
        node("Reshape", ["inverted", "shape"]),
    ]
    return model(nodes, white=np.array([255.0]), shape=np.array([1, 3, *size]), size=size)


def mean_of_batch(size: Size = (32, 32)) -> ModelProto:
    """Move the mean of the whole batch to 128: a picture alone differs from one in a batch."""
    nodes = [
        node("ReduceMean", ["image"], "mean", axes=[0, 1, 2, 3], keepdims=1),
        node("Sub", ["image", "mean"], "centred"),
        node("Add", ["centred", "grey"]),
    ]
    return model(nodes, grey=np.array([128.0]), size=size)


def mask(size: Size = None) -> ModelProto:
    """Give one channel, 0..1: the brightness."""
    nodes = [
        node("ReduceMean", ["image"], "grey", axes=[1], keepdims=1),
        node("Div", ["grey", "white"]),
    ]
    return model(nodes, white=np.array([255.0]), size=size, channels=1)


def blurred_mask(size: Size = (32, 32)) -> ModelProto:
    """Give one channel, 0..1, enlarged with interpolation: newer opsets place it otherwise."""
    nodes = [
        node("AveragePool", ["image"], "half", **_HALVE),
        node("Upsample", ["half", "scales"], "blurred", mode="linear"),
        node("ReduceMean", ["blurred"], "grey", axes=[1], keepdims=1),
        node("Div", ["grey", "white"]),
    ]
    scales, white = np.array([1, 1, 2, 2.0]), np.array([255.0])
    return model(nodes, size=size, channels=1, scales=scales, white=white)


def half_size(size: Size = None) -> ModelProto:
    return model([node("AveragePool", ["image"], "styled", **_HALVE)], size=size)


def unit_range(size: Size = None) -> ModelProto:
    """Give 0..1 in place of 0..255."""
    return model([node("Div", ["image", "white"])], white=np.array([255.0]), size=size)


def not_a_number(size: Size = None) -> ModelProto:
    nodes = [node("Sub", ["image", "image"], "zero"), node("Div", ["zero", "zero"])]
    return model(nodes, size=size)


def two_inputs() -> ModelProto:
    two = model([node("Add", ["image", "other"])], size=(32, 32))
    two.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1]))
    return two


def uint8_input() -> ModelProto:
    nodes = [node("Cast", ["image"], to=TensorProto.FLOAT)]
    return model(nodes, size=(32, 32), elem_type=TensorProto.UINT8)


def channels_last() -> ModelProto:
    last = identity((32, 32))
    for value in (last.graph.input[0], last.graph.output[0]):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [1, 32, 32, 3]))
    return last


def four_at_a_time() -> ModelProto:
    four = invert((32, 32))
    four.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    return four


def unknown_operator() -> ModelProto:
    return model([node("Swirl", ["image"])], size=(32, 32))


def save(made: ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)
    return path


_HALVE: dict[str, Value] = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1]}


def node(
    kind: str, inputs: Sequence[str], output: str = "styled", **attributes: Value
) -> NodeProto:
    made = helper.make_node(kind, inputs, [output])
    made.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
    return made


def model(
    nodes: Sequence[NodeProto],
    *,
    size: Size,
    channels: int = 3,
    opset: int = 9,
    elem_type: int = TensorProto.FLOAT,
    **weights: NDArray[Any],
) -> ModelProto:
    tensors = [numpy_helper.from_array(_as_onnx(value), name) for name, value in weights.items()]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [_ends("image", 3, size, elem_type)],
        [_ends("styled", channels, size, TensorProto.FLOAT)],
        tensors,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=max(4, opset - 10)
    )


def _ends(name: str, channels: int, size: Size, elem_type: int) -> ValueInfoProto:
    shape: list[int | str]
    shape = [1, channels, *size] if size else ["n", channels, f"{name}_h", f"{name}_w"]
    return helper.make_tensor_value_info(name, elem_type, shape)


def _as_onnx(value: NDArray[Any]) -> NDArray[Any]:
    return value.astype(np.int64 if value.dtype.kind == "i" else np.float32)
