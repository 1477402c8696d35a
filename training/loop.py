"""The training itself: iterations, their schedule, checkpoints, progress and previews."""

import dataclasses
import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from training.errors import TrainingError
from training.losses import PerceptualLoss, Weights
from training.network import StyleNetwork, channels_last
from training.pictures import Photos, resize_short_side, to_batch
from training.vgg import LossNetwork

_WARM_UP = 50
_STYLE_WARM_UP = 300
_DECAY_FROM = 0.5
_FINAL_RATE = 0.02


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides a style besides its picture and the photos."""

    weights: Weights = field(default_factory=Weights)
    style_side: int = 320
    crop: int = 160
    batch: int = 1
    rate: float = 2e-3
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers that no training can be done with."""
        for name, least in (("style_side", 64), ("crop", 32), ("batch", 1), ("seed", 0)):
            if getattr(self, name) < least:
                option = "--" + name.replace("_", "-")
                raise TrainingError(
                    f"{option} is {getattr(self, name)}, but must be at least {least}."
                )
        if self.crop % 8:
            raise TrainingError(f"--crop is {self.crop}, but must be divisible by 8.")
        for name, value in {"rate": self.rate, **dataclasses.asdict(self.weights)}.items():
            if not 0 <= value < math.inf:
                raise TrainingError(f"--{name} is {value}, but must be a number from 0 on.")

    def digest(self, style: Image.Image) -> str:
        """Return a name for this recipe on this picture: a checkpoint resumes only its own."""
        text = repr(dataclasses.astuple(self)).encode()
        return hashlib.sha256(text + style.tobytes()).hexdigest()


def device_and_dtype() -> tuple[torch.device, torch.dtype]:
    """Choose CUDA where there is one, and bfloat16 where the processor computes in it."""
    if torch.cuda.is_available():
        return torch.device("cuda"), torch.bfloat16
    native = torch.cpu.get_capabilities().get("avx512_bf16", False)
    return torch.device("cpu"), torch.bfloat16 if native else torch.float32


def learning_rate(recipe: Recipe, iteration: int, iterations: int) -> float:
    """Return the rate: up over the first 50 iterations, level, down over the second half."""
    warm_up = min(1.0, (iteration + 1) / _WARM_UP)
    remaining = (iterations - iteration) / ((1 - _DECAY_FROM) * iterations)
    return recipe.rate * warm_up * max(_FINAL_RATE, min(1.0, remaining))


class Training:
    """One style in the making: network, optimiser and the number of iterations done."""

    def __init__(
        self, style: Image.Image, photos: Photos, losses: LossNetwork, recipe: Recipe
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.photos, self.digest = recipe, photos, recipe.digest(style)
        self.device, self.dtype = device_and_dtype()
        self.network = channels_last(StyleNetwork().to(self.device))
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=recipe.rate)
        self.iteration = 0
        losses = channels_last(losses.to(self.device, self.dtype))
        small = to_batch(resize_short_side(style, recipe.style_side)).to(self.device)
        self.loss = PerceptualLoss(losses, small, recipe.weights)

    def step(self, iterations: int) -> dict[str, float]:
        """Do one iteration of `iterations`; return its losses."""
        recipe, number = self.recipe, self.iteration
        photo = self._photo(number)
        style_factor = min(1.0, 0.6 + 0.4 * number / _STYLE_WARM_UP)
        losses = self.loss(self._stylize(photo), photo, style_factor)
        self._learn(losses["total"], learning_rate(recipe, number, iterations))
        self.iteration += 1
        return {name: value.item() for name, value in losses.items()}

    def _photo(self, number: int) -> Tensor:
        photo = self.photos.batch(number, self.recipe.batch, self.recipe.crop).to(self.device)
        return photo.contiguous(memory_format=torch.channels_last)

    def _stylize(self, photo: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype is torch.bfloat16):
            result = self.network(photo)
        pixels: Tensor = result.float()
        return pixels

    def _learn(self, loss: Tensor, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        self.optimiser.step()

    def save(self, path: Path) -> None:
        """Write a checkpoint in one move, so that an interruption leaves the old one or the new."""
        state = {
            "digest": self.digest,
            "iteration": self.iteration,
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        save_state(state, path)

    def resume(self, path: Path) -> None:
        """Go on from the checkpoint at `path`, which must be of the same picture and recipe."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["digest"] != self.digest:
            raise TrainingError(
                f"{path} belongs to another picture or other options: repeat those to go on with "
                "it, or start anew with --restart."
            )
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.iteration = state["iteration"]


def save_state(state: dict[str, Any], path: Path) -> None:
    """Write tensors to `path` in one move: it holds the old content or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)
