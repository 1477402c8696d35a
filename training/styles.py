"""Style pictures that code paints: `python -m training paint dots dots.png`.

They are this project's own, and cleaner than scans: one motif, evenly spread, in few colours. All
are painted about twice as large as they are trained on, so that shrinking smooths their edges.
"""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from training.canvas import SIDE_PX, Colour, Points, field, palette, scattered, shifted, tone

_JEWELS = ("c8102e", "f2a900", "005eb8", "00843d", "6a1b9a", "00a3ad", "f4e3b2", "e86a10", "0b2a6b")
_NIGHT = ("0b1f4b", "14397d", "1f5fae", "3b8fd0", "86bfe0", "e8dfae", "f2c230", "e8931c", "1c5a52")
_POSTER = ("d9381e", "f4b41a", "1b4f9c", "123a33", "f08a5d", "5aa9a4", "2a2438", "e7c9d3", "8bb174")
_LINE_PX = 15
_RED: Colour = (206, 58, 38)
_PAPER: Colour = (244, 236, 216)
_INK: Colour = (22, 20, 26)


def dots(seed: int = 1) -> Image.Image:
    """Pointillism: round touches of pure colour side by side on light paper."""
    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", (SIDE_PX, SIDE_PX), _PAPER)
    draw = ImageDraw.Draw(picture)
    hue, colours = field(rng, finest_px=220), palette(_JEWELS)
    for x, y in scattered(rng, spacing=15):
        colour = tone(float(hue(np.array([[x, y]]))[0]) + rng.normal(0, 0.45), colours)
        radius = rng.uniform(6, 9.5)
        box = (x - radius, y - radius, x + radius, y + radius)
        draw.ellipse(box, fill=shifted(colour, rng, 16))
    return picture


def swirl(seed: int = 2) -> Image.Image:
    """A night sky in oil: short thick strokes that follow whirling currents."""
    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", (SIDE_PX, SIDE_PX), (18, 40, 84))
    draw = ImageDraw.Draw(picture)
    current, hue, colours = _currents(rng), field(rng, finest_px=200), palette(_NIGHT)
    for x, y in np.concatenate([scattered(rng, spacing=15) for _ in range(3)]):
        path = _path(np.array([[x, y]]), current, steps=int(rng.integers(5, 12)))
        colour = tone(float(hue(path[:1])[0]) + rng.normal(0, 0.3), colours)
        width = int(rng.integers(6, 11))
        draw.line([*map(tuple, path)], fill=shifted(colour, rng, 14), width=width, joint="curve")
        edge = tuple(max(0, c - 45) for c in colour)
        draw.line([*map(tuple, path + width / 2)], fill=edge, width=2, joint="curve")
    return picture


def _currents(rng: np.random.Generator, whirls: int = 7) -> Callable[[Points], Points]:
    centres = rng.uniform(0, SIDE_PX, (whirls, 2))
    turns = rng.choice([-1.0, 1.0], whirls) * rng.uniform(0.6, 1.4, whirls)

    def direction(points: Points) -> Points:
        offsets = points[:, None] - centres
        reach = np.exp(-((np.linalg.norm(offsets, axis=2) / 130) ** 2)) * turns
        turned = np.stack([-offsets[..., 1], offsets[..., 0]], -1) / 60
        flow = (turned * reach[..., None]).sum(1) + np.array([0.35, 0.12])
        directions: Points = flow / (np.linalg.norm(flow, axis=1, keepdims=True) + 1e-6)
        return directions

    return direction


def _path(point: Points, direction: Callable[[Points], Points], steps: int) -> Points:
    points = [point]
    for _ in range(steps):
        points.append(points[-1] + 5 * direction(points[-1]))
    return np.concatenate(points)


def woodcut(seed: int = 6) -> Image.Image:
    """A print from carved wood: lines of ink that swell in the dark, on paper with some red."""
    rng = np.random.default_rng(seed)
    places = np.arange(float(SIDE_PX))
    points = np.stack(np.meshgrid(places, places), -1).reshape(-1, 2)
    light, bend, red = (field(rng, finest_px=finest)(points) for finest in (190, 260, 300))
    across = points @ np.array([0.4, 0.92]) + 46 * bend
    ink = np.cos(2 * math.pi * across / _LINE_PX) > 1.1 * light
    paper = np.where(red[:, None] > 0.45, _RED, _PAPER)
    pixels = np.where(ink[:, None], _INK, paper).astype(np.uint8)
    return Image.fromarray(pixels.reshape(SIDE_PX, SIDE_PX, 3))


def abstract(seed: int = 4) -> Image.Image:
    """A composition of discs, triangles, bars and arcs in flat poster colours."""
    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", (SIDE_PX, SIDE_PX), _PAPER)
    draw, colours = ImageDraw.Draw(picture), palette(_POSTER)
    for number, (x, y) in enumerate(scattered(rng, spacing=32)):
        colour = colours[int(rng.integers(len(colours)))]
        radius = rng.uniform(20, 56) * (0.5 if number > 250 else 1)
        _shape(draw, rng, (x, y), radius, colour)
    return picture


def _shape(
    draw: ImageDraw.ImageDraw,
    rng: np.random.Generator,
    centre: tuple[float, float],
    radius: float,
    colour: Colour,
) -> None:
    x, y = centre
    turn = rng.uniform(0, 2 * math.pi)
    box = (x - radius, y - radius, x + radius, y + radius)
    kind = rng.integers(5)
    if kind == 0:
        draw.ellipse(box, fill=colour)
    elif kind == 1:
        angles = turn + np.array([0, 2.1, 4.2])
        draw.polygon(
            [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles], fill=colour
        )
    elif kind == 2:
        start = math.degrees(turn)
        draw.arc(box, start, start + 200, fill=_INK, width=6)
    elif kind == 3:
        dx, dy = 1.6 * radius * math.cos(turn), 1.6 * radius * math.sin(turn)
        draw.line((x - dx, y - dy, x + dx, y + dy), fill=colour, width=int(radius / 2) + 4)
    else:
        draw.ellipse(box, fill=colour, outline=_INK, width=6)
        inner = (x - radius / 2, y - radius / 2, x + radius / 2, y + radius / 2)
        draw.ellipse(inner, fill=_PAPER)


PAINTERS: dict[str, Callable[[], Image.Image]] = {
    "dots": dots,
    "swirl": swirl,
    "woodcut": woodcut,
    "abstract": abstract,
}
