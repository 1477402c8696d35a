"""Models in half precision: layers in fp16, the same files outside, the same pictures."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

from styleserve.half import halved
from styleserve.probe import photo, psnr
from styleserve.trial import load
from tests import tiny_models as tiny


@pytest.mark.parametrize("made", [tiny.residual(), tiny.residual((96, 128)), tiny.mask()])
def test_layers_are_in_fp16_and_pictures_as_good(tmp_path: Path, made: ModelProto) -> None:
    path = tiny.save(made, tmp_path / "a-18.onnx")
    data = halved(path)

    before, after = onnx.load(path), onnx.load_model_from_string(data)
    assert after.graph.input == before.graph.input
    assert after.graph.output == before.graph.output
    kinds = {each.data_type for each in after.graph.initializer}
    assert TensorProto.FLOAT not in kinds
    picture = photo(96, 128)
    expected, answer = load(path.read_bytes(), "fp32")(picture), load(data, "fp16")(picture)
    assert answer.dtype == np.float32
    assert psnr(answer, expected) > 60
