"""Channels of similar range, which 8 bits serve better: the same network with other weights.

A channel on its way through ReLUs, borders and sums may be divided by a factor where it is made and
multiplied by it where it is read (Nagel et al. 2019, "Data-Free Quantization Through Weight
Equalization and Bias Correction", section 4.1). Factors are powers of two, so nothing is rounded.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from styleserve.rewrite import Graph

Array = NDArray[np.float32]

_MAKERS, _READERS = {"InstanceNormalization", "Conv"}, {"Conv"}
# What is gained in what passes is lost in the weights: measured, this share of the way is best
# (in the manner of Xiao et al. 2023, "SmoothQuant"), and a channel may be still on some pictures.
_SHARE, _SMALLEST = 0.75, 0.02


def equalised(model: ModelProto, peaks: Mapping[str, Array]) -> ModelProto:
    """Return a copy whose channels have similar ranges, where that can be had.

    Args:
        model: any model.
        peaks: of what convolutions read, the largest absolute value in each channel.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = Graph(copy)
    if graph.has_bodies:
        return copy
    ends = {value.name for value in (*copy.graph.input, *copy.graph.output)}
    others = [node for node in copy.graph.node if not _keeps_factors(graph, node)]
    for stream in _streams(copy, graph):
        seen = [peaks[name] for name in stream if name in peaks]
        makers = [node for node in others if stream & set(node.output)]
        readers = [node for node in others if stream & set(node.input)]
        if seen and not stream & ends and _can_scale(graph, makers, readers):
            factors = _factors(np.max(seen, axis=0))
            for node in makers:
                _scale(graph, node, (1, 2), 1 / factors, axis=0)
            for node in readers:
                _scale(graph, node, (1,), factors, axis=1)
    graph.drop_unused()
    return copy


def _keeps_factors(graph: Graph, node: NodeProto) -> bool:
    """Tell whether what goes in scaled comes out scaled alike, channel by channel."""
    if node.op_type == "Pad":
        values = [graph.constants.get(name) for name in node.input[1:] if name]
        if not values or any(value is None for value in values) or len(node.input) > 3:
            return False
        border, *filling = (np.asarray(value) for value in values)
        return not border.reshape(2, -1)[:, :2].any() and not any(each.any() for each in filling)
    return node.op_type in {"Relu", "Add"} and not set(node.input) & set(graph.constants)


def _streams(model: ModelProto, graph: Graph) -> list[set[str]]:
    """Group the values whose channels must be scaled alike."""
    streams: list[set[str]] = []
    for node in model.graph.node:
        values = set(node.output)
        if _keeps_factors(graph, node):
            values |= set(node.input) - {"", *graph.constants}
        met = [stream for stream in streams if stream & values]
        streams = [stream for stream in streams if not stream & values]
        streams.append(values.union(*met))
    return streams


def _can_scale(graph: Graph, makers: Sequence[NodeProto], readers: Sequence[NodeProto]) -> bool:
    grouped = (each.i != 1 for node in readers for each in node.attribute if each.name == "group")
    names = {name for node in (*makers, *readers) for name in node.input[1:3] if name}
    unknown = {node.op_type for node in makers} - _MAKERS
    unknown |= {node.op_type for node in readers} - _READERS
    if unknown or not names <= set(graph.constants) or any(grouped):
        return False
    sizes = {len(graph.constants[node.input[1]]) for node in makers}
    sizes |= {graph.constants[node.input[1]].shape[1] for node in readers}
    return len(sizes) == 1 and all(graph.constants[name].dtype == np.float32 for name in names)


def _factors(peaks: Array) -> Array:
    least = max(_SMALLEST * float(peaks.max()), float(np.finfo(np.float32).tiny))
    exponents = np.log2(np.maximum(peaks, least))
    return np.asarray(np.exp2(np.rint(_SHARE * (exponents - exponents.mean()))), np.float32)


def _scale(
    graph: Graph, node: NodeProto, places: tuple[int, ...], factors: Array, axis: int
) -> None:
    for place in places:
        if place < len(node.input) and node.input[place]:
            old = graph.constants[node.input[place]]
            shape = [-1 if each == axis else 1 for each in range(old.ndim)]
            # Under a name of its own: another node may use the same weights.
            name = f"{node.input[place]}_{place}_of_{node.output[0]}"
            node.input[place] = graph.constant(name, old * factors.reshape(shape))
