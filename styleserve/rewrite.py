"""Faster layers for slow ones, exact up to rounding: what convolutions of style networks allow.

Both work at half the height and width, with four times the channels, which `DepthToSpace` then
lays out as blocks of 2 x 2 pixels (sub-pixel convolution: Shi et al. 2016, "Real-Time Single Image
and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural Network"). Gains are in
`benchmarks/README.md`. Whoever calls this has to prove the result: an output of odd sides is lost.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

_Array = NDArray[np.float32]

# Processors compute 8 or 16 channels at a time, so few outputs leave most of it unused.
_FEW_CHANNELS = 4
# Modes of Resize that repeat each pixel when they enlarge by 2.
_REPEATING = (
    (b"half_pixel", b"round_prefer_floor"),
    (b"asymmetric", b"round_prefer_floor"),
    (b"asymmetric", b"floor"),
)
# For each row of a block: how the three rows of a kernel fall on the two small rows below them.
_FOLD = np.array([[[1, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 1, 1]]], np.float32)


def computed_scales(model: ModelProto) -> list[str]:
    """Name the scales of enlargements that the graph computes, as traced models do."""
    constants = Graph(model).constants
    resizes = [node for node in model.graph.node if node.op_type == "Resize"]
    return [name for node in resizes for name in node.input[2:3] if name and name not in constants]


def faster(
    model: ModelProto, scales: Mapping[str, NDArray[np.generic]]
) -> tuple[ModelProto, dict[str, int]]:
    """Return a copy with faster layers, and how many of each kind there are (none: nothing fits).

    Kinds: `output`, a convolution to few channels; `upsample`, a nearest enlargement by 2, a border
    of one pixel and a 3 x 3 convolution. `scales` are computed ones that are always the same.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    graph, counts = Graph(copy), Counter[str]()
    if graph.has_bodies:
        return copy, {}
    graph.constants.update(scales)
    for conv in [node for node in copy.graph.node if node.op_type == "Conv"]:
        for kind, rewrite in (("upsample", _upsample), ("output", _output)):
            if nodes := rewrite(graph, conv):
                graph.replace(conv, nodes)
                counts[kind] += 1
                break
    graph.drop_unused()
    return copy, dict(counts)


class Graph:
    """A model's graph with its constants and the makers of its values at hand."""

    def __init__(self, model: ModelProto) -> None:
        """Look at `model`, which the methods change."""
        self._graph = model.graph
        self.constants = {
            each.name: numpy_helper.to_array(each) for each in self._graph.initializer
        }
        for node in self._graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self.makers = {name: node for node in self._graph.node for name in node.output}

    @property
    def has_bodies(self) -> bool:
        """Tell whether there are branches or loops, which read values that no node here does."""
        return any(each.HasField("g") for node in self._graph.node for each in node.attribute)

    def constant(self, name: str, value: NDArray[np.generic]) -> str:
        """Add a constant and return its name."""
        self._graph.initializer.append(numpy_helper.from_array(value, name))
        self.constants[name] = value
        return name

    def replace(self, old: NodeProto, nodes: list[NodeProto]) -> None:
        """Put nodes in the place of another."""
        place = list(self._graph.node).index(old)
        self._graph.node.remove(old)
        for node in reversed(nodes):
            self._graph.node.insert(place, node)

    def drop_unused(self) -> None:
        """Remove nodes and weights that no output needs."""
        wanted = {value.name for value in self._graph.output}
        kept = []
        for node in reversed(self._graph.node):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(node.input)
        del self._graph.node[:]
        self._graph.node.extend(reversed(kept))
        weights = [each for each in self._graph.initializer if each.name in wanted]
        del self._graph.initializer[:]
        self._graph.initializer.extend(weights)


def _output(graph: Graph, conv: NodeProto) -> list[NodeProto] | None:
    """One convolution, k x k to few channels: k+1 x k+1 with stride 2 to four times as many."""
    kernel = _plain_kernel(graph, conv)
    if kernel is None or len(kernel) > _FEW_CHANNELS or min(kernel.shape[2:]) < 3:
        return None
    count, depth, height, width = kernel.shape
    blocks = np.zeros((2, 2, count, depth, height + 1, width + 1), np.float32)
    for y, x in np.ndindex(2, 2):
        blocks[y, x, :, :, y : y + height, x : x + width] = kernel
    pads = _ints(conv, "pads") or [0] * 4
    return list(_in_blocks(graph, conv, conv.input[0], blocks, 2, pads))


def _upsample(graph: Graph, conv: NodeProto) -> list[NodeProto] | None:
    """Enlarge, pad by 1, convolve 3 x 3: pad by 1, convolve 2 x 2 to each pixel of a block."""
    kernel, pad = _plain_kernel(graph, conv), graph.makers.get(conv.input[0])
    if kernel is None or kernel.shape[2:] != (3, 3) or any(_ints(conv, "pads") or ()):
        return None
    if pad is None or not _pads_by_one(graph, pad):
        return None
    resize = graph.makers.get(pad.input[0])
    if resize is None or not _doubles(graph, resize):
        return None
    # Reflected by one, an enlarged picture repeats its border, and so does the small one.
    name = conv.output[0]
    border = graph.constant(f"{name}_border", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    edge = helper.make_node("Pad", [resize.input[0], border], [f"{name}_padded"], mode="edge")
    blocks = np.einsum("aip,ocpq,bjq->abocij", _FOLD, kernel, _FOLD)
    bounds = [graph.constant(f"{name}_{k}", np.array(v)) for k, v in _INNER.items()]
    *nodes, shuffle = _in_blocks(graph, conv, edge.output[0], blocks, 1, [0] * 4)
    shuffle.output[0] = f"{name}_outer"
    inner = helper.make_node("Slice", [shuffle.output[0], *bounds], [name])
    return [edge, *nodes, shuffle, inner]


_INNER = {"from": [1, 1], "to": [-1, -1], "axes": [2, 3]}


def _in_blocks(
    graph: Graph, conv: NodeProto, source: str, blocks: _Array, stride: int, pads: list[int]
) -> Iterator[NodeProto]:
    """Convolve with a kernel for each pixel of a block, `(2, 2, O, I, H, W)`, and lay them out."""
    name = conv.output[0]
    weights = graph.constant(f"{name}_blocks", blocks.reshape(-1, *blocks.shape[3:]))
    inputs = [source, weights]
    if len(conv.input) > 2 and conv.input[2]:
        bias = np.tile(graph.constants[conv.input[2]], 4)
        inputs.append(graph.constant(f"{name}_bias", bias))
    yield helper.make_node("Conv", inputs, [f"{name}_deep"], strides=[stride, stride], pads=pads)
    yield helper.make_node("DepthToSpace", [f"{name}_deep"], [name], blocksize=2, mode="DCR")


def _plain_kernel(graph: Graph, conv: NodeProto) -> _Array | None:
    """Return the kernel of a 2-D convolution without groups, strides, gaps or computed weights."""
    kernel = graph.constants.get(conv.input[1])
    known = all(name in graph.constants for name in conv.input[1:] if name)
    automatic = any(each.name == "auto_pad" and each.s != b"NOTSET" for each in conv.attribute)
    if kernel is None or not known or automatic or kernel.ndim != 4:
        return None
    ones = (_ints(conv, name) or [1] for name in ("strides", "dilations"))
    if kernel.dtype != np.float32 or any(one != 1 for values in ones for one in values):
        return None
    grouped = any(each.name == "group" and each.i != 1 for each in conv.attribute)
    return None if grouped else kernel


def _pads_by_one(graph: Graph, node: NodeProto) -> bool:
    modes = [each.s for each in node.attribute if each.name == "mode"]
    if node.op_type != "Pad" or len(node.input) > 3 or modes not in ([b"reflect"], [b"edge"]):
        return False
    pads = graph.constants.get(node.input[1])
    return pads is not None and pads.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def _doubles(graph: Graph, node: NodeProto) -> bool:
    if node.op_type != "Resize" or len(node.input) != 3:
        return False
    modes = {each.name: each.s for each in node.attribute}
    place = modes.get("coordinate_transformation_mode", b"half_pixel")
    nearest = modes.get("nearest_mode", b"round_prefer_floor")
    if modes.get("mode") != b"nearest" or (place, nearest) not in _REPEATING:
        return False
    scales = graph.constants.get(node.input[2])
    return scales is not None and scales.tolist() == [1, 1, 2, 2]


def _ints(node: NodeProto, name: str) -> list[int]:
    return next((list(each.ints) for each in node.attribute if each.name == name), [])
