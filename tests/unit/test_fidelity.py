"""Which backend is chosen: sessions that are off by a known amount stand for fast arithmetic."""

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from styleserve import backend
from styleserve.backend import PROVIDERS, REFERENCE, Backend
from styleserve.errors import ModelError
from styleserve.model import load_model
from styleserve.probe import Tensor
from styleserve.runtime import Runtime
from tests import tiny_models as tiny
from tests.pictures import noise

BF16, FP32 = Backend(("openvino", "cpu"), "bf16"), Backend(("openvino", "cpu"))
INT8 = Backend(("openvino", "cpu"), "int8")
FP16, TF32 = Backend(("cuda", "cpu"), "fp16"), Backend(("cuda", "cpu"), "tf32")
VISIBLE, HIDDEN, NONSENSE = 2.0, 1.0, float("nan")  # levels of 255: 42.1 and 48.1 dB


@dataclass(frozen=True)
class SkewedRuntime(Runtime):
    """Has backends that are off by so much, or cannot load anything (None)."""

    skews: dict[Backend, float | None] = field(default_factory=dict)

    def open(self, model: Path, backend: Backend, **_: bool) -> Any:  # noqa: ANN401  it has no types
        skew = self.skews.get(backend, 0.0)
        if skew is None:
            raise ModelError(f"{model}: no room")
        return SkewedSession(super().open(model, REFERENCE), skew)


class SkewedSession:
    def __init__(self, session: onnxruntime.InferenceSession, skew: float) -> None:
        self._session = session
        self._skew = skew

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def run(
        self, outputs: list[str], inputs: dict[str, Tensor], options: object = None
    ) -> list[Tensor]:
        (answer,) = self._session.run(outputs, inputs)
        level = 1 if answer.shape[1] == 3 else 1 / 255  # of a mask, which goes from 0 to 1
        signs = np.where(np.indices(answer.shape).sum(axis=0) % 2, 1, -1)  # none is clipped away
        return [(0.8 * answer + 25 * level + self._skew * level * signs).astype(np.float32)]


def described(
    folder: Path, skews: dict[Backend, float | None], made: ModelProto | None = None
) -> dict[str, Any]:
    """Load a model where these backends are off, and all others exact."""
    path = tiny.save(made or tiny.identity(), folder / "a-9.onnx")
    return load_model(path, skewed(skews)).describe()


def skewed(skews: dict[Backend, float | None]) -> SkewedRuntime:
    return SkewedRuntime((*skews, REFERENCE), 1, 1, threading.BoundedSemaphore(1), skews)


@pytest.mark.parametrize(
    ("skews", "precision", "figures"),
    [
        ({}, "fp32", {}),
        ({BF16: HIDDEN, FP32: 0.0}, "bf16", {"openvino bf16": 48.1}),
        ({BF16: VISIBLE, FP32: 0.1}, "fp32", {"openvino bf16": 42.1, "openvino fp32": 68.1}),
        ({BF16: VISIBLE, FP32: 10.0}, "fp32", {"openvino bf16": 42.1, "openvino fp32": 28.1}),
        ({BF16: NONSENSE, FP32: 0.1}, "fp32", {"openvino bf16": 0.0, "openvino fp32": 68.1}),
        ({BF16: None, FP32: None}, "fp32", {}),
    ],
)
@pytest.mark.parametrize("made", [tiny.identity(), tiny.identity((48, 32)), tiny.mask()])
def test_the_first_backend_that_shows_no_difference_is_taken(
    tmp_path: Path,
    made: ModelProto,
    skews: dict[Backend, float | None],
    precision: str,
    figures: dict[str, float],
) -> None:
    told = described(tmp_path, skews, made)

    assert told["precision"] == precision
    assert told["psnr_db"] == pytest.approx(figures, abs=0.3)


@pytest.mark.parametrize(
    ("has_file", "skew", "precision", "figures"),
    [
        (True, HIDDEN, "int8", {"openvino int8": 48.1}),
        (True, VISIBLE, "bf16", {"openvino int8": 42.1, "openvino bf16": 68.1}),
        (False, HIDDEN, "bf16", {"openvino bf16": 68.1}),
    ],
)
def test_8_bits_are_for_models_with_a_second_file_that_is_good_enough(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    has_file: bool,
    skew: float,
    precision: str,
    figures: dict[str, float],
) -> None:
    if has_file:
        tiny.save(tiny.identity(), tmp_path / "a-9.int8")

    told = described(tmp_path, {INT8: skew, BF16: 0.1})

    assert told["precision"] == precision
    assert told["psnr_db"] == pytest.approx(figures, abs=0.3)
    assert len(caplog.records) == (skew == VISIBLE)


def test_what_is_passed_over_is_told_with_its_figure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    described(tmp_path, {BF16: VISIBLE, FP32: None})

    seen = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(seen) == 2
    assert "openvino bf16 is 42.1 dB from fp32, at least 45 dB are wanted" in seen[0]
    assert "not on openvino fp32: " in seen[1]
    assert "no room" in seen[1]


class SpottedSession(SkewedSession):
    """Is far beyond what a mask may be, but in one pixel only."""

    def run(
        self, outputs: list[str], inputs: dict[str, Tensor], options: object = None
    ) -> list[Tensor]:
        (answer,) = self._session.run(outputs, inputs, options)
        answer[..., 0, 0] = 1.5
        return [answer]


class SpottedRuntime(SkewedRuntime):
    def open(self, model: Path, backend: Backend, **_: bool) -> Any:  # noqa: ANN401  it has no types
        session = super().open(model, backend)
        return session if backend == REFERENCE else SpottedSession(session, 0.0)


def test_a_backend_whose_masks_are_none_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny.save(tiny.mask(), tmp_path / "a-9.onnx")
    runtime = SpottedRuntime((BF16, REFERENCE), 1, 1, threading.BoundedSemaphore(1))

    told = load_model(path, runtime).describe()

    assert told["precision"] == "fp32"
    (record,) = caplog.records
    assert "not on openvino bf16: " in record.getMessage()
    assert "it answered values from" in record.getMessage()


def test_a_precision_that_is_demanded_and_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    path = tiny.save(tiny.identity(), tmp_path / "a-9.onnx")
    only = SkewedRuntime((BF16,), 1, 1, threading.BoundedSemaphore(1), {BF16: None})

    with pytest.raises(ModelError, match=r"a-9\.onnx: not on openvino bf16: .*no room; else set"):
        load_model(path, only)


def test_8_bits_that_are_demanded_and_have_no_file_are_told_how_to_get_one(tmp_path: Path) -> None:
    path = tiny.save(tiny.identity(), tmp_path / "a-9.onnx")
    only = SkewedRuntime((INT8,), 1, 1, threading.BoundedSemaphore(1), {})

    with pytest.raises(ModelError, match=r"needs a file a-9\.int8 beside it: try python -m .*a-9"):
        load_model(path, only)


def test_a_precision_that_is_demanded_and_too_far_is_refused(tmp_path: Path) -> None:
    path = tiny.save(tiny.identity(), tmp_path / "a-9.onnx")
    only = SkewedRuntime((BF16,), 1, 1, threading.BoundedSemaphore(1), {BF16: VISIBLE})

    with pytest.raises(ModelError, match=r"a-9\.onnx: openvino bf16 is 42\.1 dB .*PRECISION=auto"):
        load_model(path, only)


def test_a_gpu_that_loads_nothing_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no room"):
        described(tmp_path, {FP16: None, TF32: None})


def test_a_model_that_a_gpu_cannot_take_in_fp16_stays_on_it(tmp_path: Path) -> None:
    told = described(tmp_path, {FP16: None, TF32: HIDDEN})

    assert told["precision"] == "tf32"


@pytest.mark.parametrize("made", [tiny.invert(), tiny.stride_two(), tiny.mask()])
def test_openvino_gives_the_pictures_of_fp32(tmp_path: Path, made: ModelProto) -> None:
    if PROVIDERS["openvino"] not in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime is installed without OpenVINO")
    path = tiny.save(made, tmp_path / "a-9.onnx")

    told = load_model(path, Runtime.create("openvino", threads=1)).describe()

    assert told["provider"] == PROVIDERS["openvino"]
    assert told["precision"] == ("bf16" if backend.has("bf16") else "fp32")


@pytest.mark.parametrize("backend", [BF16, FP32], ids=str)
@pytest.mark.parametrize("size", [None, (48, 32)])
def test_a_smooth_picture_is_left_to_the_reference(
    tmp_path: Path, size: tuple[int, int] | None, backend: Backend
) -> None:
    path = tiny.save(tiny.identity(size), tmp_path / "a-9.onnx")
    fast, exact = load_model(path, skewed({backend: HIDDEN})), load_model(path, skewed({}))
    plain, busy = np.full((60, 50, 3), 99, np.uint8), noise(60, 50)

    assert (fast(plain, 0) == exact(plain, 0)).all()
    assert (fast(busy, 0) != exact(busy, 0)).any()
