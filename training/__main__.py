"""Turn ONE picture into a style that the server serves: models/raw/<name>-9.onnx.

Besides a picture, the first argument may be a word: `fetch` downloads the loss network and the
default photos, `paint NAME FILE` paints a style picture, `sheet FILE` makes the contact sheet.
"""

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from training.assets import CACHE, LOSS_WEIGHTS, PHOTOS, fetch
from training.errors import TrainingError
from training.export import export_onnx
from training.loop import Recipe, Training
from training.losses import Weights
from training.pictures import Photos, load_picture
from training.run import run
from training.sheet import make_sheet
from training.start import identity_network
from training.styles import PAINTERS
from training.vgg import load_loss_network

log = logging.getLogger(__name__)

RUNS = Path(__file__).parent / "runs"
MODELS = Path("models/raw")
EXAMPLES = Path("docs/examples")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, or 2 with one sentence on standard error if the user is to act."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["fetch"]:
            fetch()
        elif words[:1] == ["paint"]:
            _paint(words[1:])
        elif words[:1] == ["sheet"]:
            _sheet(words[1:])
        else:
            _train(_parser().parse_args(words))
    except TrainingError as err:
        print(err, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped; the same command goes on from here.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    recipe, weights = Recipe(), Weights()
    add = parser.add_argument
    add("picture", type=Path, help="the style picture, PNG, JPEG or WebP")
    add("--name", required=True, help="name of the style, lower-case letters, digits and _")
    add("--photos", type=Path, default=PHOTOS, help="folder of content photos")
    add("--iterations", type=int, default=3000, help="more are better")
    add("--seed", type=int, default=recipe.seed, help="seed of all that is random")
    add("--batch", type=int, default=recipe.batch, help="photos an iteration")
    add("--crop", type=int, default=recipe.crop, help="side of the photos' crops, pixels")
    add("--rate", type=float, default=recipe.rate, help="learning rate")
    add("--style-side", type=int, default=recipe.style_side, help="short side of the style, pixels")
    for name in ("content", "style", "variation", "luminance", "palette", "grid"):
        add(f"--{name}", type=float, default=getattr(weights, name), help=f"weight of {name}")
    add("--output", type=Path, default=MODELS, help="folder for the ONNX file")
    add(
        "--start", type=Path, help="network.pt of another training to begin with, not a copying one"
    )
    add("--restart", action="store_true", help="forget an earlier, unfinished training")
    return parser


def _train(options: argparse.Namespace) -> None:
    folder, model = RUNS / options.name, options.output / f"{options.name}-9.onnx"
    _check(options, folder, model)
    recipe = _recipe(options)
    style, photos = load_picture(options.picture), Photos(options.photos, options.seed)
    training = Training(style, photos, load_loss_network(LOSS_WEIGHTS), recipe)
    start = options.start or CACHE / f"start-{options.seed}.pt"
    training.network.load_state_dict(identity_network(photos, start).state_dict())
    if (folder / "checkpoint.pt").exists() and not options.restart:
        training.resume(folder / "checkpoint.pt")
    run(training, options.iterations, folder, _samples(photos))
    torch.save(training.network.state_dict(), folder / "network.pt")
    export_onnx(training.network, model)
    log.info("wrote %s; %s shows how it paints", model, folder / "preview.png")
    log.info("to serve it, name it in params.yaml and start with `make run`")


def _check(options: argparse.Namespace, folder: Path, model: Path) -> None:
    if not _NAME.fullmatch(options.name):
        raise TrainingError(
            f"--name {options.name!r} is no name for a style: use up to 32 lower-case letters, "
            "digits and underscores, a letter first."
        )
    if options.iterations < 1:
        raise TrainingError(f"--iterations is {options.iterations}, but must be at least 1.")
    if options.start and not options.start.is_file():
        raise TrainingError(
            f"--start {options.start} is no file: name a network.pt or leave it out."
        )
    if model.exists() and not (folder / "checkpoint.pt").exists():
        raise TrainingError(
            f"{model} is there and was not trained here: choose another --name, or remove it."
        )


def _samples(photos: Photos) -> list[Image.Image]:
    examples = sorted(EXAMPLES.glob("*.jpg"))
    return [load_picture(path) for path in examples] or photos.pictures[:3]


def _recipe(options: argparse.Namespace) -> Recipe:
    weights = Weights(
        content=options.content,
        style=options.style,
        variation=options.variation,
        luminance=options.luminance,
        palette=options.palette,
        grid=options.grid,
    )
    return Recipe(
        weights=weights,
        style_side=options.style_side,
        batch=options.batch,
        crop=options.crop,
        rate=options.rate,
        seed=options.seed,
    )


def _paint(words: list[str]) -> None:
    if len(words) != 2 or words[0] not in PAINTERS:
        raise TrainingError(f"paint takes a name ({', '.join(PAINTERS)}) and a file to write.")
    PAINTERS[words[0]]().save(words[1])


def _sheet(words: list[str]) -> None:
    if len(words) != 1:
        raise TrainingError("sheet takes the JPEG file to write and nothing else.")
    make_sheet(MODELS, EXAMPLES, Path(words[0]))


if __name__ == "__main__":
    sys.exit(main())
