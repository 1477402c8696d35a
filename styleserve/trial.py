"""Run models on test photos: what a source gives, and whether its conversion gives the same."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnxruntime as ort
from onnx import ModelProto
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from styleserve import graph, rewrite
from styleserve.errors import ModelError
from styleserve.probe import Run, Tensor, photo, size_multiple

Size = tuple[int, int]

_OPEN_SIZES: tuple[Size, ...] = ((256, 192), (128, 320))  # where the source leaves its size open
_PROOF_SIZES: tuple[Size, ...] = ((32, 45), (97, 61), (120, 200))  # rounded up to the multiple
_BATCH_TOLERANCE = 0.1  # levels of 255 between a picture alone and in a batch of two
_EXACT = 1e-3  # levels of 255 that rewriting may add: float32 rounds sums in another order
_UNIT_PEAK = 2.0  # results that stay below it are no pixel values 0..255
_ORT_ERRORS = tuple(
    kind
    for kind in vars(ort_state).values()
    if isinstance(kind, type) and issubclass(kind, Exception)
)


def load(data: bytes, name: str) -> Run:
    """Load a model on the CPU provider. The callable too raises ModelError where it fails."""
    session = _session(data, name)
    return lambda pictures: _answers(session, None, pictures, name)[0]


def _answers(
    session: ort.InferenceSession, outputs: Sequence[str] | None, pictures: Tensor, name: str
) -> list[Tensor]:
    try:
        return list(session.run(outputs, {session.get_inputs()[0].name: pictures}))
    except _ORT_ERRORS as err:
        raise ModelError(f"{name} fails at {pictures.shape}: {err}") from err


def _session(data: bytes, name: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # to refuse a size is an answer here, not worth a log line
    # Layers in 8 bits are rounded, but computed in fp32: CPUs without VNNI overflow in between.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except _ORT_ERRORS as err:
        raise ModelError(
            f"{name} is not loaded by ONNX Runtime {ort.__version__}: export it again, for an "
            f"opset and with operators that it knows ({err})"
        ) from err


class Reference:
    """The results of a source model on test photos, by which its conversion is judged."""

    def __init__(self, data: bytes, size: Size | None, name: str) -> None:
        """Run the model, which takes pictures of `size` (None: of any). Raises ModelError."""
        run = load(data, name)
        self.fixed = size is not None
        self.sizes = (size,) if size else _OPEN_SIZES
        self.results = [run(photo(*each)) for each in self.sizes]
        for each, result in zip(self.sizes, self.results, strict=True):
            check_result(result, each, name)
        self.channels = int(self.results[0].shape[1])
        peak = max(float(np.abs(result).max()) for result in self.results)
        if self.channels == 3 and peak < _UNIT_PEAK:
            raise ModelError(
                f"{name} gives at most {peak:.2f} on a photo, but pixels 0..255 are wanted: "
                "scale its output before the export"
            )
        self._level = 1.0 if peak >= _UNIT_PEAK else 1 / 255  # a mask may be 0..1

    def difference(self, run: Run) -> tuple[float, float]:
        """Return the largest and the mean difference of `run` from the source, in 255ths."""
        largest, means = 0.0, []
        for size, expected in zip(self.sizes, self.results, strict=True):
            gap = np.abs(run(photo(*size)) - expected) / self._level
            largest = max(largest, float(gap.max()))
            means.append(float(gap.mean()))
        return largest, float(np.mean(means))


def check_result(result: Tensor, size: Size, name: str) -> None:
    """Refuse, by a ModelError, what is no picture or mask of this size with finite values."""
    shape = "x".join(map(str, result.shape))
    if result.ndim != 4 or result.shape[:2] not in ((1, 1), (1, 3)) or result.shape[2:] != size:
        raise ModelError(
            f"{name} gives {shape} for a picture 1x3x{size[0]}x{size[1]}: 3 channels, or 1 for a "
            "mask, of the size of the picture are wanted"
        )
    if not np.isfinite(result).all():
        raise ModelError(f"{name} gives NaN or infinite values on a photo: export it again")


def proved_multiple(run: Run, batch: bool) -> int | None:
    """Return the size multiple of a model that holds at three more sizes, else None.

    With `batch` each picture of a batch of two must also come out as it does alone.
    """
    try:
        multiple = size_multiple(run)
        if multiple and all(_holds(run, size, batch) for size in proof_sizes(multiple)):
            return multiple
    except ModelError:
        pass
    return None


def proof_sizes(multiple: int) -> list[Size]:
    """Return three sizes of different shape whose sides are multiples."""
    up = [[-(-side // multiple) * multiple for side in size] for size in _PROOF_SIZES]
    return [(height, width) for height, width in up]


def faster(
    served: ModelProto, run: Run, sizes: Sequence[Size], name: str
) -> tuple[ModelProto, str]:
    """Rewrite slow layers and tell which; leave a model alone whose rewriting is not exact.

    `run` runs the model as it is.
    """
    scales = steady(served, rewrite.computed_scales(served), sizes)
    quick, kinds = rewrite.faster(served, scales)
    if not kinds:
        return served, ""
    after = load(quick.SerializeToString(), name)
    try:
        is_exact = widest_gap(run, after, sizes) <= _EXACT
    except ModelError:  # a size that it does not take any more
        is_exact = False
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return (quick, told) if is_exact else (served, "")


def widest_gap(one: Run, other: Run, sizes: Sequence[Size]) -> float:
    """Return the largest difference between two models' results on photos of these sizes.

    It is infinite where the results differ in size.
    """
    pairs = [(one(photo(*size)), other(photo(*size))) for size in sizes]
    if any(ours.shape != theirs.shape for ours, theirs in pairs):
        return np.inf
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)


def steady(model: ModelProto, names: Sequence[str], sizes: Sequence[Size]) -> dict[str, Tensor]:
    """Return those inner values of a model that are the same for photos of all these sizes."""
    first, *others = values(model, names, [photo(*size) for size in sizes])
    return {
        name: value
        for name, value in first.items()
        if all(np.array_equal(value, other[name]) for other in others)
    }


def values(
    model: ModelProto, names: Sequence[str], pictures: Sequence[Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Yield the inner values of these names for each picture, one at a time. Raises ModelError."""
    if not names:  # which would stand for all outputs
        yield from ({} for _ in pictures)
        return
    name = "the model with its inner values"
    session = _session(graph.with_outputs(model, names).SerializeToString(), name)
    for picture in pictures:
        yield dict(zip(names, _answers(session, names, picture, name), strict=True))


def _holds(run: Run, size: Size, batch: bool) -> bool:
    height, width = size
    pictures = photo(height, width, count=2)
    alone = np.concatenate([run(pictures[:1]), run(pictures[1:])])
    if alone.shape[2:] != (height, width) or not np.isfinite(alone).all():
        return False
    return not batch or float(np.abs(run(pictures) - alone).max()) <= _BATCH_TOLERANCE
