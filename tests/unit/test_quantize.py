"""Layers in 8 bits: as many as no eye can tell, and the same file each time."""

import re
import resource
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import ModelProto

from styleserve import metadata, quantize, trial
from styleserve.errors import ModelError
from styleserve.probe import haze, photo, psnr
from tests import tiny_models as tiny
from tests.tiny_models import node

KERNEL = np.full((3, 3, 3, 3), 1 / 27)
EIGHT = "DequantizeLinear"


@pytest.mark.parametrize("size", [None, (96, 128)])
def test_late_layers_are_in_8_bits_and_the_picture_is_as_good(
    tmp_path: Path, size: tuple[int, int] | None
) -> None:
    source = tiny.save(tiny.residual(size), tmp_path / "a-18.onnx")
    target, report = quantize.quantize(source)
    assert target == source.with_suffix(metadata.INT8_SUFFIX)
    assert str(report).startswith(f"{report.layers} of 6 convolutions in 8 bits, ")
    nodes = onnx.load(target).graph.node
    weights = {node.input[1] for node in nodes if node.op_type == "Conv"}
    eights = [node for node in nodes if node.op_type == EIGHT]
    assert len(weights & {node.output[0] for node in eights}) == report.layers >= 2
    picture = photo(*(size or (60, 72)))
    before, after = (
        np.clip(trial.load(file.read_bytes(), file.name)(picture), 0, 255)
        for file in (source, target)
    )
    assert cv2.PSNR(after, before, 255) > quantize.WANTED_DB - 2


def test_little_that_is_sharp_in_haze_stays_in_the_range_of_8_bits(tmp_path: Path) -> None:
    source = tiny.save(tiny.residual(), tmp_path / "a-18.onnx")
    target, _ = quantize.quantize(source)
    picture = haze(200, 256)
    expected, answer = (
        trial.load(file.read_bytes(), file.name)(picture) for file in (source, target)
    )
    assert psnr(answer, expected) > quantize.WANTED_DB - 1


def test_borders_are_in_8_bits_too(tmp_path: Path) -> None:
    """Else the picture grows and shrinks again around each of them."""
    target, report = quantize.quantize(tiny.save(tiny.residual(), tmp_path / "a-18.onnx"))
    nodes = onnx.load(target).graph.node
    makers = {node.output[0]: node for node in nodes}
    pads = [node.input[0] for node in nodes if node.op_type == "Pad"]
    eights = [each for each in pads if each in makers and makers[each].op_type == EIGHT]
    assert len(eights) == report.layers


def test_each_run_writes_the_same(tmp_path: Path) -> None:
    source = tiny.save(tiny.residual(), tmp_path / "a-18.onnx")
    once, again = (quantize.quantize(source)[0].read_bytes() for _ in range(2))
    assert once == again


def test_more_is_not_asked_of_a_model_than_it_bears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny.save(tiny.residual(), tmp_path / "a-18.onnx")
    layers = []
    for wanted in (25, 43, 45, 48):
        monkeypatch.setattr(quantize, "WANTED_DB", wanted)
        _, report = quantize.quantize(source)
        assert report.decibels >= wanted
        layers.append(report.layers)
    assert layers == sorted(layers, reverse=True)
    assert layers[0] > layers[-1]


def classifier() -> ModelProto:
    nodes = [
        node("Conv", ["image", "kernel"], "first", pads=[1] * 4),
        node("Conv", ["first", "kernel"], "second", pads=[1] * 4),
        node("ReduceMean", ["second", "sides"], "mean", keepdims=0),
        node("Gemm", ["mean", "classes"]),
    ]
    sides, classes = np.array([2, 3]), np.ones((3, 5))
    made = tiny.model(nodes, size=None, opset=18, kernel=KERNEL, sides=sides, classes=classes)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def loud(weight: float) -> ModelProto:
    """Make a model with one weight that is no number, or too large a one."""
    kernel = KERNEL.copy()
    kernel[0, 0, 1, 1] = weight
    nodes = [
        node("Conv", ["image", "kernel"], "first", pads=[1] * 4),
        node("Conv", ["first", "kernel"], pads=[1] * 4),
    ]
    return tiny.model(nodes, size=None, opset=18, kernel=kernel)


@pytest.mark.parametrize(
    ("made", "wanted", "told"),
    [
        (tiny.residual(), 200, r"a-18\.onnx has 0 of 6 convolutions for which 8 bits are enough"),
        (tiny.invert(opset=18), 0, r"a-18\.onnx has no convolution that could be in 8 bits: do w"),
        (classifier(), 0, r"a-18\.onnx gives 1x5 for a picture 1x3x256x256"),
        (loud(np.nan), 0, r"a-18\.onnx gives NaN or infinite values"),
        (loud(1e38), 0, r"a-18\.onnx gives NaN or infinite values"),
    ],
)
def test_a_model_that_bears_too_little_is_told_and_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made: ModelProto,
    wanted: float,
    told: str,
) -> None:
    source = tiny.save(made, tmp_path / "a-18.onnx")
    monkeypatch.setattr(quantize, "WANTED_DB", wanted)
    assert quantize.main([str(source)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(told, captured.err)
    assert list(tmp_path.iterdir()) == [source]


def test_an_old_model_is_told_to_be_converted_first(tmp_path: Path) -> None:
    model = tiny.residual()
    model.opset_import[0].version = 12
    source = tiny.save(model, tmp_path / "a-12.onnx")
    with pytest.raises(ModelError, match=r"opset 12, 8 bits need 13: first python -m .*a-12"):
        quantize.quantize(source)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    source = tiny.save(tiny.residual(), tmp_path / "a-18.onnx")
    source.with_suffix(".int8").mkdir()
    with pytest.raises(ModelError, match=r"a-18\.int8 cannot be written \(Is a directory\)"):
        quantize.quantize(source)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0, 1.1])
def test_no_room_for_temporary_files_is_told(tmp_path: Path, share: float) -> None:
    source = tiny.save(tiny.residual(), tmp_path / "a-18.onnx")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * source.stat().st_size), limits[1]))
    try:
        with pytest.raises(ModelError, match=r"a-18\.onnx cannot be .* make room there or set TMP"):
            quantize.quantize(source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == [source]


def test_one_that_cannot_be_read_stops_none_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny.save(tiny.residual(), tmp_path / "a-18.onnx")
    assert quantize.main([str(tmp_path / "gone.onnx"), str(source)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "gone.onnx" in captured.err
    assert captured.out.startswith(f"{source} -> {source.with_suffix('.int8')}: ")
