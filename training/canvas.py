"""What the painted style pictures have in common: colours, soft fields, evenly spread points."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

SIDE_PX = 640
Colour = tuple[int, int, int]
Points = npt.NDArray[np.float64]


def palette(codes: tuple[str, ...]) -> list[Colour]:
    """Return the colours from dark to light, so that neighbours in it are alike in tone."""
    colours = [(int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)) for code in codes]
    return sorted(colours, key=lambda colour: 3 * colour[0] + 6 * colour[1] + colour[2])


def field(
    rng: np.random.Generator, waves: int = 6, finest_px: float = 160
) -> Callable[[Points], Points]:
    """Return a smooth random function of positions `(N, 2)`, about -1..1."""
    angles = rng.uniform(0, 2 * math.pi, waves)
    lengths = rng.uniform(finest_px, 4 * finest_px, waves)
    vectors = np.stack([np.cos(angles), np.sin(angles)]) * 2 * math.pi / lengths
    phases = rng.uniform(0, 2 * math.pi, waves)
    return lambda points: np.sin(points @ vectors + phases).sum(1) / math.sqrt(waves)


def shifted(colour: Colour, rng: np.random.Generator, amount: float) -> Colour:
    """Return the colour moved a little, at random, by `amount` on average in each channel."""
    red, green, blue = (int(np.clip(c + rng.normal(0, amount), 0, 255)) for c in colour)
    return red, green, blue


def tone(value: float, colours: list[Colour]) -> Colour:
    """Return the colour for a value of a field: the first ones for low values."""
    position = (math.tanh(value) + 1) / 2 * len(colours)
    return colours[min(int(position), len(colours) - 1)]


def scattered(rng: np.random.Generator, spacing: float) -> Points:
    """Return points at about `spacing` from one another, in random order."""
    steps = np.arange(0.0, SIDE_PX + spacing, spacing)
    grid = np.stack(np.meshgrid(steps, steps), -1)
    grid[::2, :, 0] += spacing / 2
    points = grid.reshape(-1, 2) + rng.normal(0, 0.22 * spacing, (steps.size**2, 2))
    return rng.permutation(points)
