"""The whole way from a toy picture to an ONNX file that runs, with a tiny random loss network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WHY = "training has requirements of its own: pip install -r training/requirements.txt"
torch = pytest.importorskip("torch", reason=WHY)
pytest.importorskip("h5py", reason=WHY)
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
Image = pytest.importorskip("PIL.Image")

from training import __main__ as command  # noqa: E402
from training import assets, canvas, qtrcc, sheet, styles  # noqa: E402
from training import run as preview  # noqa: E402
from training.errors import TrainingError  # noqa: E402
from training.export import export_onnx  # noqa: E402
from training.loop import Recipe, Training, learning_rate  # noqa: E402
from training.losses import (  # noqa: E402
    colours_along_lines,
    gram,
    grid_pattern,
    luminance_mismatch,
    out_of_range,
    palette_distance,
    relative_error,
)
from training.network import StyleNetwork, folded  # noqa: E402
from training.pictures import Photos, load_picture  # noqa: E402
from training.vgg import LossNetwork, load_loss_network  # noqa: E402

RECIPE = Recipe(style_side=64, crop=64, batch=1)
Command = Callable[..., int]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "style.png"
    Image.fromarray(rng.integers(0, 256, (80, 96, 3), np.uint8)).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(3):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
        coarse.resize((200, 160)).save(folder / f"{number}.jpg")
    return folder


def tiny_loss_network(_: Path = Path()) -> LossNetwork:
    torch.manual_seed(7)
    return LossNetwork(channels=(4, 4, 8, 8))


@pytest.fixture
def train(picture: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, with everything it writes in `tmp_path`; gives its exit code."""
    start = tmp_path / "start.pt"
    torch.save(StyleNetwork().state_dict(), start)
    monkeypatch.setattr(command, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(command, "EXAMPLES", photos)
    monkeypatch.setattr(preview, "_PREVIEW_SIDE_PX", 64)
    monkeypatch.setattr(command, "load_loss_network", tiny_loss_network)

    def run(*options: str, style: Path = picture) -> int:
        fixed = ["--photos", str(photos), "--output", str(tmp_path / "out"), "--batch", "1"]
        return command.main([str(style), "--name", "toy", "--start", str(start), *fixed, *options])

    return run


def new_training(picture: Path, photos: Path, recipe: Recipe = RECIPE) -> Training:
    return Training(load_picture(picture), Photos(photos), tiny_loss_network(), recipe)


def weights_of(training: Training) -> list[Any]:
    return [value.clone() for value in training.network.state_dict().values()]


# From a picture to a model


def test_the_command_ends_in_a_model_that_runs(train: Command, tmp_path: Path) -> None:
    assert train("--iterations", "3") == 0
    path = tmp_path / "out" / "toy-9.onnx"
    assert path.stat().st_size <= 2_000_000
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert (session.get_inputs()[0].name, session.get_inputs()[0].shape) == (
        "input1",
        [1, 3, 224, 224],
    )
    (result,) = session.run(["output1"], {"input1": np.full((1, 3, 224, 224), 99, np.float32)})
    assert result.shape == (1, 3, 224, 224)
    assert np.isfinite(result).all()
    assert (tmp_path / "runs" / "toy" / "preview.png").exists()


def test_the_model_is_of_opset_9_with_its_weights_among_the_inputs(tmp_path: Path) -> None:
    export_onnx(StyleNetwork(), tmp_path / "x-9.onnx")
    model = onnx.load(tmp_path / "x-9.onnx")
    onnx.checker.check_model(model)
    assert [entry.version for entry in model.opset_import] == [9]
    names = {value.name for value in model.graph.input}
    assert names == {"input1"} | {value.name for value in model.graph.initializer}
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("Conv"), kinds.count("InstanceNormalization")) == (15, 14)


def test_folding_the_scaling_changes_nothing() -> None:
    torch.manual_seed(0)
    network, pixels = StyleNetwork(), torch.rand(1, 3, 32, 48) * 255
    with torch.no_grad():
        torch.testing.assert_close(folded(network)(pixels), network(pixels), rtol=1e-3, atol=1e-2)


def test_the_loss_falls(picture: Path, photos: Path) -> None:
    training = new_training(picture, photos)
    totals = [training.step(1000)["total"] for _ in range(16)]
    assert np.mean(totals[-4:]) < np.mean(totals[:4])


# Interruptions


def test_a_resumed_training_equals_an_uninterrupted_one(
    picture: Path, photos: Path, tmp_path: Path
) -> None:
    whole, first = new_training(picture, photos), new_training(picture, photos)
    for _ in range(6):
        whole.step(6)
    for _ in range(3):
        first.step(6)
    first.save(tmp_path / "checkpoint.pt")
    second = new_training(picture, photos)
    second.resume(tmp_path / "checkpoint.pt")
    assert second.iteration == 3
    while second.iteration < 6:
        second.step(6)
    for ours, theirs in zip(weights_of(second), weights_of(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_the_same_command_goes_on_after_ctrl_c(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, seen = Training.step, []

    def interrupted(training: Training, iterations: int) -> dict[str, float]:
        seen.append(training.iteration)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return step(training, iterations)

    monkeypatch.setattr(Training, "step", interrupted)
    assert train("--iterations", "4") == 130
    assert train("--iterations", "4") == 0
    assert seen == [0, 1, 2, 2, 3]
    assert (tmp_path / "out" / "toy-9.onnx").exists()


def test_a_checkpoint_of_other_options_is_refused(
    train: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--iterations", "1") == 0
    assert train("--iterations", "1", "--style", "7") == 2
    assert "--restart" in one_sentence(capsys)
    assert train("--iterations", "1", "--style", "7", "--restart") == 0


# Refusals


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def write_missing(path: Path) -> None:
    pass


def write_empty(path: Path) -> None:
    path.write_bytes(b"")


def write_html(path: Path) -> None:
    path.write_text("<!doctype html><title>404 Not Found</title>")


def write_truncated(path: Path) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (300, 300, 3), np.uint8)
    Image.fromarray(noise).save(path, "PNG")
    path.write_bytes(path.read_bytes()[:20_000])


def write_tiny(path: Path) -> None:
    Image.new("RGB", (1, 1)).save(path, "PNG")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (write_missing, "no picture"),
        (write_empty, "cannot be read"),
        (write_html, "cannot be read"),
        (write_truncated, "cannot be read"),
        (write_tiny, "1x1 pixels, but both sides must be at least 64"),
    ],
)
def test_an_unfit_picture_is_refused_in_one_sentence(
    write: Callable[[Path], None],
    words: str,
    train: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "unfit.png"
    write(path)
    assert train(style=path) == 2
    message = one_sentence(capsys)
    assert words in message
    assert str(path) in message
    assert not (tmp_path / "out").exists()


def test_a_model_of_somebody_else_is_kept(
    train: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "out" / "toy-9.onnx"
    model.parent.mkdir()
    model.write_bytes(b"precious")
    assert train("--iterations", "1") == 2
    assert "choose another --name" in one_sentence(capsys)
    assert model.read_bytes() == b"precious"
    model.unlink()
    assert train("--iterations", "1") == 0
    assert train("--iterations", "1", "--restart") == 0  # its own one it may replace


def test_a_name_that_no_file_can_have_is_refused(
    picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(picture), "--name", "../x"]) == 2
    assert "'../x'" in one_sentence(capsys)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--iterations", "0"),
        ("--batch", "0"),
        ("--crop", "33"),
        ("--crop", "0"),
        ("--style-side", "-1"),
        ("--rate", "nan"),
        ("--style", "-1"),
    ],
)
def test_an_impossible_number_is_refused(
    option: str, value: str, train: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(option, value) == 2
    message = one_sentence(capsys)
    assert option in message
    assert "must be" in message


def test_a_folder_without_photos_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="holds no PNG"):
        Photos(tmp_path)
    with pytest.raises(TrainingError, match="training fetch"):
        Photos(tmp_path / "absent")


def test_an_unfit_loss_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="training fetch"):
        load_loss_network(tmp_path / "absent.h5")
    (tmp_path / "bad.h5").write_bytes(b"no HDF5 at all")
    with pytest.raises(TrainingError, match="cannot be read"):
        load_loss_network(tmp_path / "bad.h5")


# The parts


def test_transparency_becomes_white(tmp_path: Path) -> None:
    Image.new("RGBA", (64, 64), (9, 9, 9, 0)).save(tmp_path / "clear.png")
    assert load_picture(tmp_path / "clear.png").getpixel((0, 0)) == (255, 255, 255)


def test_a_batch_depends_on_seed_and_number_alone(photos: Path) -> None:
    first, second = Photos(photos, seed=1), Photos(photos, seed=1)
    second.batch(8, 1, 64)
    assert torch.equal(first.batch(9, 2, 64), second.batch(9, 2, 64))
    assert not torch.equal(first.batch(9, 2, 64), first.batch(10, 2, 64))
    assert not torch.equal(first.batch(9, 2, 64), Photos(photos, seed=2).batch(9, 2, 64))


def test_losses_of_known_pictures() -> None:
    picture = torch.rand(1, 3, 32, 32) * 255
    assert relative_error(picture, picture) == 0
    assert luminance_mismatch(picture, picture).item() == pytest.approx(0, abs=1e-4)
    assert luminance_mismatch(255 - picture, picture).item() == pytest.approx(2, abs=1e-4)
    assert out_of_range(picture) == 0
    assert out_of_range(torch.full((1, 3, 8, 8), 255.0 + 64)) == 1
    colours = colours_along_lines(picture)
    assert palette_distance(picture.flip(2), colours).item() == pytest.approx(0, abs=1e-6)
    assert palette_distance(255 - picture / 2, colours) > 0.1
    striped = torch.full((1, 3, 64, 64), 128.0)
    assert grid_pattern(striped) == 0
    striped[..., ::4] += 16
    assert grid_pattern(striped).item() == pytest.approx(3 / 16)
    assert torch.equal(gram(torch.ones(1, 2, 4, 4)), torch.ones(1, 2, 2))


def test_the_rate_rises_and_falls() -> None:
    rates = [learning_rate(RECIPE, number, 1000) for number in (0, 49, 400, 750, 999)]
    assert rates[0] < rates[1] == rates[2] == RECIPE.rate
    assert rates[2] > rates[3] > rates[4] > 0


@pytest.mark.parametrize("name", sorted(styles.PAINTERS))
def test_painted_styles_are_the_same_each_time(name: str) -> None:
    first, second = styles.PAINTERS[name](), styles.PAINTERS[name]()
    assert first.size == (canvas.SIDE_PX, canvas.SIDE_PX)
    assert first.tobytes() == second.tobytes()


def test_only_free_files_are_taken_from_a_readme() -> None:
    readme = (
        "Copyright: A\nLicense: CC0-1.0\nFiles:\n  a.webp\nb/c.webp\n\n"
        "Copyright: B\nLicense: CC-BY-SA 4.0\nFiles:\nd.webp\n\n"
        "Copyright: C\nLicense: Public domain\ne.webp\nComment: after an old painting.\n"
    )
    assert list(assets.free_files(readme)) == ["a.webp", "b/c.webp", "e.webp"]


def test_a_file_that_is_no_qt_resource_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.rcc").write_bytes(b"nonsense")
    with pytest.raises(TrainingError, match="no Qt resource file"):
        list(qtrcc.read_resources(tmp_path / "x.rcc"))


def test_the_contact_sheet_shows_every_style_on_every_photo(photos: Path, tmp_path: Path) -> None:
    export_onnx(StyleNetwork(), tmp_path / "raw" / "plain-9.onnx")
    sheet.make_sheet(tmp_path / "raw", photos, tmp_path / "sheet.jpg")
    with Image.open(tmp_path / "sheet.jpg") as made:
        assert made.width > 2 * 280
        assert made.height > 3 * 280
    with pytest.raises(TrainingError, match="found 0"):
        sheet.make_sheet(tmp_path, photos, tmp_path / "sheet.jpg")
