"""Conversion of tiny models with known answers, of broken files, and of the real models."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

from styleserve import convert, metadata
from styleserve.errors import ModelError
from styleserve.probe import Tensor, photo
from tests import tiny_models as tiny

ROOT = Path(__file__).parents[2]
OPSET = 18


def converted(made: ModelProto, folder: Path, opset: int = OPSET) -> tuple[convert.Report, Path]:
    target = folder / "out" / "made.onnx"
    report = convert.convert(tiny.save(made, folder / "made-9.onnx"), target, opset)
    return report, target


def run(path: Path, pictures: Tensor) -> Tensor:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    result: Tensor = session.run(None, {session.get_inputs()[0].name: pictures})[0]
    return result


def labels(path: Path) -> dict[str, str]:
    return {prop.key: prop.value for prop in onnx.load(path).metadata_props}


@pytest.mark.parametrize("size", [None, (40, 64)])
@pytest.mark.parametrize(
    ("make", "multiple", "answer"),
    [
        (tiny.identity, 1, lambda picture: picture),
        (tiny.invert, 1, lambda picture: 255 - picture),
        (tiny.swap_red_blue, 1, lambda picture: picture[:, ::-1]),
        (tiny.old_style, 1, lambda picture: 255 - picture),
        (tiny.stride_two, 4, lambda picture: _pooled(picture, 4)),
        (tiny.mask, 1, lambda picture: picture.mean(axis=1, keepdims=True) / 255),
    ],
)
def test_served_model_takes_any_size_and_computes_the_same(
    tmp_path: Path,
    make: Callable[[tiny.Size], ModelProto],
    multiple: int,
    answer: Callable[[Tensor], Tensor],
    size: tiny.Size,
) -> None:
    report, target = converted(make(size), tmp_path)

    assert report.multiple == multiple
    assert report.difference < 0.001
    assert labels(target)[metadata.SIZE_MULTIPLE] == str(multiple)
    for shape in ((32, 48), (52, 36)):
        pictures = photo(*shape, count=2)
        np.testing.assert_allclose(run(target, pictures), answer(pictures), atol=1e-3)


def _pooled(picture: Tensor, side: int) -> Tensor:
    count, channels, height, width = picture.shape
    blocks = picture.reshape(count, channels, height // side, side, width // side, side)
    means: Tensor = blocks.mean(axis=(3, 5))
    return means.repeat(side, axis=2).repeat(side, axis=3)


def test_size_stays_fixed_where_it_is_written_into_the_graph(tmp_path: Path) -> None:
    report, target = converted(tiny.baked_size((32, 48)), tmp_path)

    assert (report.multiple, report.size) == (None, (32, 48))
    assert metadata.SIZE_MULTIPLE not in labels(target)
    session = ort.InferenceSession(target, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [1, 3, 32, 48]
    assert session.get_outputs()[0].shape == [1, 3, 32, 48]


def test_size_stays_fixed_where_only_odd_sides_are_kept(tmp_path: Path) -> None:
    report, _ = converted(tiny.odd_only((33, 33)), tmp_path)

    assert report.multiple is None


def test_batch_stays_one_where_pictures_of_a_batch_mix(tmp_path: Path) -> None:
    report, target = converted(tiny.mean_of_batch((32, 32)), tmp_path)

    shape = ort.InferenceSession(target, providers=["CPUExecutionProvider"]).get_inputs()[0].shape
    assert shape[0] == 1
    assert isinstance(shape[2], str)
    assert report.multiple == 1


def test_provenance_is_in_the_model(tmp_path: Path) -> None:
    source = tiny.save(tiny.invert((32, 32)), tmp_path / "deep" / "invert-9.onnx")
    target = tmp_path / "invert-18.onnx"

    convert.convert(source, target, OPSET, "White is black")

    assert labels(target) == {
        metadata.SOURCE_SHA256: hashlib.sha256(source.read_bytes()).hexdigest(),
        metadata.SOURCE_NAME: "invert-9.onnx",
        metadata.SIZE_MULTIPLE: "1",
        metadata.TOOLS: f"onnx {onnx.__version__}, onnxruntime {ort.__version__}",
        metadata.DESCRIPTION: "White is black",
        metadata.OPSET: "18",
    }
    assert str(tmp_path).encode() not in target.read_bytes()


def test_weights_are_no_inputs_and_the_opset_is_the_one_asked_for(tmp_path: Path) -> None:
    _, target = converted(tiny.old_style((32, 32)), tmp_path, opset=17)

    served = onnx.load(target)
    assert [value.name for value in served.graph.input] == ["image"]
    assert [(entry.domain, entry.version) for entry in served.opset_import] == [("", 17)]
    onnx.checker.check_model(served, full_check=True)


def test_a_converted_model_converts_again(tmp_path: Path) -> None:
    _, target = converted(tiny.stride_two((32, 32)), tmp_path)

    again = convert.convert(target, tmp_path / "again.onnx", OPSET)

    assert (again.opsets, again.multiple) == ((18, 18), 4)
    assert labels(tmp_path / "again.onnx")[metadata.SOURCE_NAME] == "made.onnx"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (tiny.linear_upsample(), ["up to 64.", "on average 9.", "1 is allowed", "linear Upsample"]),
        (tiny.blurred_mask(), ["up to 59.", "on average 8.", "1 is allowed"]),
        (tiny.half_size((32, 32)), ["1x3x16x16", "of the size of the picture"]),
        (tiny.half_size(), ["1x3x128x96", "of the size of the picture"]),
        (tiny.unit_range(), ["at most 1.00", "0..255"]),
        (tiny.not_a_number(), ["NaN"]),
        (tiny.two_inputs(), ["2 inputs", "other float 1", "one picture"]),
        (tiny.uint8_input(), ["image uint8", "float32 is wanted"]),
        (tiny.channels_last(), ["1x32x32x3", "1 x 3 x height x width"]),
        (tiny.four_at_a_time(), ["4x3x32x32", "1 x 3 x height x width"]),
        (tiny.unknown_operator(), ["Swirl", f"ONNX Runtime {ort.__version__}", "export it again"]),
        (tiny.invert((32, 32), opset=27), ["IR version", "export it again"]),
    ],
)
def test_refuses_models_that_cannot_be_served(
    tmp_path: Path, made: ModelProto, words: list[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        converted(made, tmp_path)

    for word in [*words, "made-9.onnx"]:
        assert word in str(caught.value)
    assert not (tmp_path / "out" / "made.onnx").exists()


def test_names_the_operator_that_has_no_way_to_the_opset(tmp_path: Path) -> None:
    made = tiny.invert((32, 32), opset=18)

    words = r"from opset 18 to 9 \(No Adapter From Version .* for Sub\): export it again"
    with pytest.raises(ModelError, match=words):
        converted(made, tmp_path, opset=9)


def test_refuses_weights_in_another_file(tmp_path: Path) -> None:
    source = tmp_path / "apart-9.onnx"
    apart = tiny.invert((32, 32))
    onnx.save(apart, source, save_as_external_data=True, size_threshold=0, location="weights.bin")

    with pytest.raises(ModelError, match="keeps its weights in another file"):
        convert.convert(source, tmp_path / "out.onnx", OPSET)


def test_only_the_pinned_checksum_is_taken(tmp_path: Path) -> None:
    source = tiny.save(tiny.invert((32, 32)), tmp_path / "invert-9.onnx")
    md5 = hashlib.md5(source.read_bytes()).hexdigest()

    convert.convert(source, tmp_path / "right.onnx", OPSET, md5=md5)
    with pytest.raises(ModelError, match=f"has the md5 {md5}, not the pinned {'0' * 32}"):
        convert.convert(source, tmp_path / "wrong.onnx", OPSET, md5="0" * 32)
    assert not (tmp_path / "wrong.onnx").exists()


WHOLE = tiny.invert((32, 32)).SerializeToString()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 6728029\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (LFS, ["Git-LFS pointer", "git lfs pull"]),
        (b"\n<!DOCTYPE html><html>404</html>", ["web page", "download"]),
        (b"", ["empty file"]),
        (b" \n", ["empty file"]),
        (WHOLE[:-7], ["cut short", f"{len(WHOLE) - 7} bytes", "download it again"]),
        (b"\x00\x01\x02" * 100, ["no complete ONNX model"]),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", ["JPEG picture"]),
        (b"\x89PNG\r\n\x1a\n", ["PNG picture"]),
        (b"\x1c\0\0\0TFL3\x14\0\x20\0", ["TensorFlow Lite"]),
        (b"PK\x03\x04\x14\0", ["zip archive", "PyTorch"]),
        (b"\x1f\x8b\x08\0", ["gzip archive", "unpack"]),
        (b"\x80\x02}q\0", ["pickle"]),
        (b"\x89HDF\r\n", ["HDF5"]),
        (b"Not Found\n", ["text file"]),
        (b'{"error": "no access"}', ["text file"]),
    ],
)
def test_says_what_stands_in_place_of_a_model(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    source = tmp_path / "raw.onnx"
    source.write_bytes(content)

    with pytest.raises(ModelError) as caught:
        convert.convert(source, tmp_path / "out" / "served.onnx", OPSET)

    for word in [*words, str(source)]:
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == [source]


def test_no_prefix_of_a_model_is_taken_for_one(tmp_path: Path) -> None:
    source, target = tmp_path / "raw.onnx", tmp_path / "served.onnx"
    for length in range(0, len(WHOLE), 5):
        source.write_bytes(WHOLE[:length])
        with pytest.raises(ModelError):
            convert.convert(source, target, OPSET)
    assert not target.exists()


def test_newest_opset_is_what_the_runtime_loads(tmp_path: Path) -> None:
    newest = convert.newest_opset()
    report, _ = converted(tiny.invert((32, 32)), tmp_path, opset=newest)
    assert report.opsets == (9, newest)

    with pytest.raises(ModelError, match=rf"opset {newest + 1} is outside 7\.\.{newest}"):
        converted(tiny.invert((32, 32)), tmp_path, opset=newest + 1)


def test_replaces_a_link_and_never_what_it_points_to(tmp_path: Path) -> None:
    source = tiny.save(tiny.invert((32, 32)), tmp_path / "invert-9.onnx")
    for kind in ("symlink_to", "hardlink_to"):
        cached, target = tmp_path / f"{kind}.cached", tmp_path / f"{kind}.onnx"
        cached.write_bytes(b"the cache")
        cached.chmod(0o444)
        getattr(target, kind)(cached)

        convert.convert(source, target, OPSET)

        assert cached.read_bytes() == b"the cache"
        assert not target.is_symlink()
        assert labels(target)[metadata.SOURCE_NAME] == "invert-9.onnx"


def test_a_failure_leaves_the_old_result(tmp_path: Path) -> None:
    _, target = converted(tiny.invert((32, 32)), tmp_path)
    before = target.read_bytes()

    with pytest.raises(ModelError):
        converted(tiny.linear_upsample(), tmp_path)

    assert target.read_bytes() == before
    assert list(target.parent.iterdir()) == [target]


def test_refuses_to_overwrite_its_source(tmp_path: Path) -> None:
    source = tiny.save(tiny.invert((32, 32)), tmp_path / "invert-9.onnx")

    with pytest.raises(ModelError, match="would be overwritten"):
        convert.convert(source, source, OPSET)


def test_says_that_the_target_cannot_be_written(tmp_path: Path) -> None:
    source = tiny.save(tiny.invert((32, 32)), tmp_path / "invert-9.onnx")
    (tmp_path / "file").touch()

    with pytest.raises(ModelError, match=r"out\.onnx cannot be written \(.*\): check the folder"):
        convert.convert(source, tmp_path / "file" / "out.onnx", OPSET)


def test_command_line_tells_one_line(tmp_path: Path) -> None:
    source = tiny.save(tiny.stride_two((32, 32)), tmp_path / "made-9.onnx")
    target = tmp_path / "made-18.onnx"

    done = _command(source, target)
    assert done.stdout == (
        f"{source} -> {target}: opset 9 -> 18, dynamic (multiple of 4), "
        "max difference 0.0000 of 255\n"
    )
    assert (done.returncode, done.stderr) == (0, "")

    source.write_bytes(LFS)
    failed = _command(source, target)
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert failed.stderr.startswith(f"error: {source} is a Git-LFS pointer")
    assert failed.stderr.count("\n") == 1


def test_same_source_gives_the_same_bytes_in_another_process_and_place(tmp_path: Path) -> None:
    results = []
    for place in ("one", "another/deeper"):
        source = tiny.save(tiny.stride_two((32, 32)), tmp_path / place / "made-9.onnx")
        target = tmp_path / place / "out" / "made.onnx"
        assert _command(source, target).returncode == 0
        results.append(target.read_bytes())

    assert results[0] == results[1]


def _command(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "styleserve.convert",
        *map(str, (source, target, "--opset", OPSET)),
    ]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "rewritten"),
    [
        ("pointilism", "1 output, 2 upsample"),
        ("udnie", "1 output, 2 upsample"),
        ("rain-princess-tf", "1 output"),
    ],
)
def test_real_models_open_to_any_size(
    tmp_path: Path, real_models: Path, name: str, rewritten: str
) -> None:
    target = tmp_path / f"{name}-{OPSET}.onnx"

    report = convert.convert(real_models / f"{name}-9.onnx", target, OPSET)

    assert (report.opsets, report.multiple) == ((9, OPSET), 4)
    assert report.rewritten == rewritten
    assert report.difference < 0.01
    pictures = photo(228, 304, count=2)
    assert run(target, pictures).shape == pictures.shape
