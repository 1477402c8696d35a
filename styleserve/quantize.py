"""Layers in 8 bits, for CPUs with VNNI: `python -m styleserve.quantize MODEL` writes MODEL's .int8.

    file -> channels of similar range -> its last layers in 8 bits, as many as no eye can tell

Errors of early layers grow on their way to the picture, so it is the last ones. The server takes
the .int8 beside a model only where it, too, finds no difference: see `styleserve.fidelity`.
"""

import argparse
import bisect
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import onnx
from onnx import ModelProto, NodeProto
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from styleserve import graph, metadata, trial
from styleserve.convert import write
from styleserve.equalise import equalised
from styleserve.errors import ModelError
from styleserve.probe import Tensor, haze, photo, psnr, real_photo
from styleserve.recognise import read_model_bytes

WANTED_DB = 48.5  # the server asks for 45; bf16 in the other layers, and other photos, take some
_FEWEST = 4  # one layer in so many, else nothing is gained
_SIDE = 256
_OLDEST_OPSET = 13  # the first with a scale for each channel
# Else the tool advises to prepare the model, which our conversion has done.
_PREPARED = "onnx.quant.pre_process", "onnxruntime.quant"
_OPTIONS = {"OpTypesToExcludeOutputQuantization": ["Conv"], "QuantizeBias": False}

Limits = dict[str, np.float32]


@dataclass(frozen=True)
class Report:
    """How much of a model is in 8 bits, and how far its pictures are from fp32."""

    layers: int
    of: int
    decibels: float

    def __str__(self) -> str:
        """Tell it in one line."""
        return f"{self.layers} of {self.of} convolutions in 8 bits, {self.decibels:.1f} dB"


def quantize(source: Path) -> tuple[Path, Report]:
    """Write `source` with as many of its last convolutions in 8 bits as no eye can tell.

    Returns:
        The file, beside `source`, and what was done.

    Raises:
        ModelError: if the file cannot be read or written, or too few layers bear it.
    """
    name = str(source)
    model = graph.parse(read_model_bytes(source), name)
    if (opset := graph.opset_of(model)) < _OLDEST_OPSET:
        raise ModelError(f"{name} has opset {opset}, 8 bits need {_OLDEST_OPSET}: convert it first")
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    model.metadata_props.add(key=_PREPARED[0], value=_PREPARED[1])
    candidates = _Candidates(model, name)
    nodes = candidates.nodes

    @functools.cache
    def tried(first: int) -> tuple[ModelProto, float]:
        made = candidates.in_8_bits(nodes[first:])
        return made, candidates.decibels(made)

    first = bisect.bisect(range(len(nodes)), False, key=lambda n: tried(n)[1] >= WANTED_DB)
    count = len(nodes) - first
    if count * _FEWEST < max(len(nodes), 1):
        raise ModelError(
            f"{name} has {count} of {len(nodes)} convolutions for which 8 bits are enough, one in "
            f"{_FEWEST} is wanted: leave it out of int8 in params.yaml"
        )
    target = source.with_suffix(metadata.INT8_SUFFIX)
    made, decibels = tried(first)
    write(target, graph.label(made, {_PREPARED[0]: ""}, name))
    return target, Report(count, len(nodes), decibels)


class _Candidates:
    """The convolutions of a model, and what becomes of its pictures if some are in 8 bits."""

    def __init__(self, model: ModelProto, name: str) -> None:
        """Run the model in fp32, and let its channels have similar ranges."""
        self._name = name
        self._image = model.graph.input[0].name
        self._pictures = _pictures(*graph.picture_size(model, name))
        run = trial.load(model.SerializeToString(), name)
        self._expected = [run(picture) for picture in self._pictures]
        reads = sorted({node.input[0] for node in _convolutions(model)} - {self._image})
        seen = trial.values(model, reads, self._pictures)
        peaks = {read: np.max([_peaks(each) for each in seen[read]], axis=0) for read in reads}
        self._model = equalised(model, peaks)
        seen = trial.values(self._model, reads, self._pictures)
        self._limits = {read: _limits(seen[read]) for read in reads}

    @property
    def nodes(self) -> list[NodeProto]:
        """List them in the order in which they run, but for those that read the bare picture."""
        return [node for node in _convolutions(self._model) if node.input[0] in self._limits]

    def decibels(self, made: ModelProto) -> float:
        """Return how far the pictures of `made` are from those in fp32: the lowest PSNR."""
        run = trial.load(made.SerializeToString(), self._name)
        pairs = zip(self._pictures, self._expected, strict=True)
        return min(psnr(run(picture), expected) for picture, expected in pairs)

    def in_8_bits(self, nodes: Sequence[NodeProto]) -> ModelProto:
        """Return a copy in which these, and the borders before them, are in 8 bits."""
        reads = {node.input[0]: node.input[0] for node in nodes}
        borders = (node for node in self._model.graph.node if node.op_type == "Pad")
        pads = [node for node in borders if node.output[0] in reads]
        reads |= {node.input[0]: node.output[0] for node in pads}
        limits = {value: [self._limits[read]] for value, read in reads.items()}
        with TemporaryDirectory() as folder:
            source, target = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
            onnx.save(self._model, source)
            quantize_static(
                *(source, target, _One({self._image: self._pictures[0]})),
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_quantize=[node.name for node in (*nodes, *pads)],
                extra_options=_OPTIONS | {"TensorQuantOverrides": limits},
            )
            return onnx.load(target)


class _One(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """One picture, for a calibration whose results are overridden."""

    def __init__(self, feed: Mapping[str, Tensor]) -> None:
        self._feeds = iter([feed])

    def get_next(self) -> Mapping[str, Tensor] | None:
        return next(self._feeds, None)


def _convolutions(model: ModelProto) -> list[NodeProto]:
    weights = {each.name for each in model.graph.initializer}
    nodes = (node for node in model.graph.node if node.op_type == "Conv")
    return [node for node in nodes if node.input[1] in weights]


def _pictures(height: int | None, width: int | None) -> list[Tensor]:
    """Return a real photo and two drawn ones, of this size where it is fixed."""
    size = height or _SIDE, width or _SIDE
    real = cv2.resize(real_photo(), size[::-1])
    return [np.asarray(cv2.dnn.blobFromImage(real), np.float32), photo(*size), haze(*size)]


def _peaks(values: Tensor) -> Tensor:
    return np.asarray(np.abs(values).max(axis=(0, 2, 3)), np.float32)


def _limits(values: Sequence[Tensor]) -> Limits:
    """Return the range, rounded: another CPU's rounding makes the same file."""
    ends = min(0.0, *(float(each.min()) for each in values)), max(map(np.max, values))
    low, high = (np.float32(f"{end:.3g}") for end in ends)
    return {"rmin": low, "rmax": high}


def main(argv: Sequence[str] | None = None) -> int:
    """Write models with layers in 8 bits; exit code 2 and one line where one cannot be."""
    parser = argparse.ArgumentParser(prog="python -m styleserve.quantize", description=main.__doc__)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="a served model")
    arguments = parser.parse_args(argv)
    code = 0
    for source in arguments.models:
        try:
            target, report = quantize(source)
            sys.stdout.write(f"{source} -> {target}: {report}\n")
        except ModelError as error:
            sys.stderr.write(f"error: {error}\n")
            code = 2
    return code


if __name__ == "__main__":
    sys.exit(main())
