"""The convolutions of a model, and what becomes of its pictures if some of them are in 8 bits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import cv2
import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from styleserve import graph, trial
from styleserve.equalise import equalised
from styleserve.errors import ModelError
from styleserve.probe import Tensor, haze, photo, psnr, real_photo

_SIDE = 256
_EQUAL_DB = 90  # a hundredth of a level of 255
_OPTIONS = {"OpTypesToExcludeOutputQuantization": ["Conv"], "QuantizeBias": False}

Limits = dict[str, np.float32]


class Candidates:
    """The convolutions of a model, and what becomes of its pictures if some are in 8 bits."""

    def __init__(self, model: ModelProto, name: str) -> None:
        """Run the model in fp32, and let its channels have similar ranges.

        Raises:
            ModelError: if it cannot be run, or its answers are no pictures.
        """
        self._name = name
        self._image = model.graph.input[0].name
        self._pictures = _pictures(*graph.picture_size(model, name))
        run = trial.load(model.SerializeToString(), name)
        self._expected = [run(picture) for picture in self._pictures]
        for picture, result in zip(self._pictures, self._expected, strict=True):
            trial.check_result(result, (picture.shape[2], picture.shape[3]), name)
        reads = sorted({node.input[0] for node in _convolutions(model)} - {self._image})
        ranges = _ranges(model, reads, self._pictures)
        equal = equalised(model, {read: np.abs(each).max(axis=0) for read, each in ranges.items()})
        self._model = equal if self.decibels(equal) > _EQUAL_DB else model
        ranges = _ranges(self._model, reads, self._pictures)
        self._limits = {read: _limits(each) for read, each in ranges.items()}

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
        """Return a copy in which these, and the borders before them, are in 8 bits.

        Raises:
            ModelError: if ONNX Runtime's quantizer fails, as for want of room for its files.
        """
        reads = {node.input[0]: node.input[0] for node in nodes}
        borders = (node for node in self._model.graph.node if node.op_type == "Pad")
        pads = [node for node in borders if node.output[0] in reads]
        reads |= {node.input[0]: node.output[0] for node in pads}
        limits = {value: [self._limits[read]] for value, read in reads.items()}
        names = [node.name for node in (*nodes, *pads)]
        try:
            return self._quantized(names, _OPTIONS | {"TensorQuantOverrides": limits})
        except Exception as error:  # on a full disk, one of many that reading a cut file raises
            raise ModelError(
                f"{self._name} cannot be tried in 8 bits ({type(error).__name__}: {error}): if "
                f"{gettempdir()} is full, make room there or set TMPDIR"
            ) from error

    def _quantized(self, names: list[str], options: dict[str, object]) -> ModelProto:
        with TemporaryDirectory() as folder:
            source, target = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
            onnx.save(self._model, source)
            quantize_static(
                *(source, target, _One({self._image: self._pictures[0]})),
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_quantize=names,
                extra_options=options,
            )
            return onnx.load(target)


class _One(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """One picture, for a calibration whose results are overridden."""

    def __init__(self, feed: Mapping[str, Tensor]) -> None:
        self._feeds = iter([feed])

    def get_next(self) -> Mapping[str, Tensor] | None:
        return next(self._feeds, None)


def _convolutions(model: ModelProto) -> list[NodeProto]:
    weights = {
        each.name
        for each in model.graph.initializer
        if len(each.dims) == 4 and each.data_type == TensorProto.FLOAT
    }
    nodes = (node for node in model.graph.node if node.op_type == "Conv")
    return [node for node in nodes if node.input[1] in weights]


def _pictures(height: int | None, width: int | None) -> list[Tensor]:
    """Return a real photo and two drawn ones, of this size where it is fixed."""
    size = height or _SIDE, width or _SIDE
    real = cv2.resize(real_photo(), size[::-1])
    return [np.asarray(cv2.dnn.blobFromImage(real), np.float32), photo(*size), haze(*size)]


def _ranges(
    model: ModelProto, reads: Sequence[str], pictures: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the lowest and the highest value of each channel, 2 x C. Raises ModelError."""
    found: dict[str, Tensor] = {}
    for values in trial.values(model, reads, pictures):
        for name, value in values.items():
            both = value.min(axis=(0, 2, 3)), value.max(axis=(0, 2, 3))
            low, high = found.get(name, both)
            found[name] = np.stack([np.minimum(low, both[0]), np.maximum(high, both[1])])
    return found


def _limits(ends: Tensor) -> Limits:
    """Return the range of all channels, rounded: another CPU's rounding makes the same file."""
    low, high = (np.float32(f"{end:.3g}") for end in (min(0.0, ends.min()), ends.max()))
    return {"rmin": low, "rmax": high}
