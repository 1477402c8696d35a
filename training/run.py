"""Drive one training to its end: progress, checkpoints against interruptions, previews."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from training.loop import Training
from training.network import StyleNetwork
from training.pictures import resize_short_side, to_batch, to_image

_CHECKPOINT_EVERY_S = 30.0
_REPORT_EVERY_S = 15.0
_PREVIEW_EVERY_S = 180.0
_PREVIEW_SIDE_PX = 384

log = logging.getLogger(__name__)


@dataclass
class Due:
    """A clock that says when something is to be done again."""

    every_s: float
    last: float

    def now(self) -> bool:
        """Tell whether `every_s` seconds have passed; if so, start counting anew."""
        moment = time.monotonic()
        if moment - self.last < self.every_s:
            return False
        self.last = moment
        return True


def run(training: Training, iterations: int, folder: Path, samples: list[Image.Image]) -> None:
    """Train up to `iterations`, keeping `checkpoint.pt` and `preview.png` in `folder` fresh."""
    started, first = time.monotonic(), training.iteration
    checkpoint = Due(_CHECKPOINT_EVERY_S, started)
    report, preview = Due(_REPORT_EVERY_S, started), Due(_PREVIEW_EVERY_S, started)
    try:
        while training.iteration < iterations:
            losses = training.step(iterations)
            if report.now():
                speed = (training.iteration - first) / (time.monotonic() - started)
                log.info("%s", progress(training, iterations, losses, speed))
            if checkpoint.now():
                training.save(folder / "checkpoint.pt")
            if preview.now():
                save_preview(training.network, samples, folder / "preview.png")
    finally:
        training.save(folder / "checkpoint.pt")
    save_preview(training.network, samples, folder / "preview.png")


def progress(training: Training, iterations: int, losses: dict[str, float], speed: float) -> str:
    """Return one line: where the training is, its losses, its speed, the time left."""
    done = training.iteration
    parts = " ".join(f"{name} {value:.3f}" for name, value in losses.items())
    left = (iterations - done) / speed / 60
    images = speed * training.recipe.batch
    return f"{done}/{iterations}  {parts}  {images:.1f} images/s  {left:.0f} min left"


def save_preview(network: StyleNetwork, samples: list[Image.Image], path: Path) -> None:
    """Write the sample photos as they come out of `network`, side by side."""
    results = [stylize(network, resize_short_side(photo, _PREVIEW_SIDE_PX)) for photo in samples]
    sheet = Image.new("RGB", (sum(r.width for r in results), _PREVIEW_SIDE_PX))
    left = 0
    for result in results:
        sheet.paste(result, (left, 0))
        left += result.width
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)


@torch.no_grad()
def stylize(network: StyleNetwork, photo: Image.Image) -> Image.Image:
    """Return the photo as `network` paints it, cut to sides divisible by 4."""
    width, height = (length // 4 * 4 for length in photo.size)
    device = next(network.parameters()).device
    return to_image(network(to_batch(photo.crop((0, 0, width, height))).to(device)))
