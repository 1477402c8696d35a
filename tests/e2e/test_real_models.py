"""Published style models, converted and served."""

import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest

from styleserve import convert
from styleserve.fidelity import LEAST_DB
from styleserve.image import Image
from styleserve.quantize import quantize
from styleserve.runtime import Runtime
from tests.e2e.running import Running, serving

OPSET = 18


@pytest.fixture(scope="module")
def served(real_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("real")
    for raw in sorted(real_models.glob("*.onnx")):
        name = raw.stem.rsplit("-", 1)[0]
        convert.convert(raw, folder / f"{name}-{OPSET}.onnx", OPSET)
    quantize(folder / f"pointilism-{OPSET}.onnx")
    with serving(folder, tmp_path_factory.mktemp("real-server")) as running:
        yield running


def _source_answer(path: Path, image: Image) -> Image:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tensor = image.transpose(2, 0, 1)[None].astype(np.float32)
    (answer,) = session.run(None, {session.get_inputs()[0].name: tensor})
    return np.asarray(np.clip(np.rint(answer[0]), 0, 255).transpose(1, 2, 0), dtype=np.uint8)


@pytest.mark.parametrize("name", ["pointilism", "udnie", "rain-princess-tf"])
def test_the_answer_is_the_source_models(
    served: Running, real_models: Path, photo: Image, name: str
) -> None:
    square = np.ascontiguousarray(photo[:224, :224])
    wanted = _source_answer(real_models / f"{name}-9.onnx", square)
    styled = served.infer(name, image=square)
    assert cv2.PSNR(styled, wanted) >= LEAST_DB  # 1 level apart in fp32, and 48 dB


def test_8_bits_are_taken_where_the_cpu_has_them(served: Running) -> None:
    details = json.loads(served.infer("catalog", "details", name=b"pointilism").item())
    assert details["precision"] == Runtime.create().backends[0].precision
    assert all(decibels >= LEAST_DB for decibels in details["psnr_db"].values())


@pytest.mark.parametrize("name", ["pointilism", "udnie", "rain-princess-tf"])
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (33, 47), (227, 301)])
def test_any_size_is_styled_at_its_own_size(
    served: Running, photo: Image, name: str, size: tuple[int, int]
) -> None:
    image = np.resize(photo, (*size, 3))
    styled = served.infer(name, image=image)
    assert styled.shape == image.shape
    assert styled.std() > 0 or styled.shape[0] * styled.shape[1] == 1
