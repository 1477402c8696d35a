"""What a good result is: painted like the style picture, showing what the photo shows.

Perceptual losses after Gatys, Ecker and Bethge, "Image Style Transfer Using Convolutional Neural
Networks" (2016) and Johnson, Alahi and Fei-Fei (2016). Each is divided by the energy of its target,
so that one set of weights suits every style picture. Four more: the palette must be the style's
(sliced Wasserstein distance, Rabin, Peyré, Delon and Bernot, "Wasserstein Barycenter and Its
Application to Texture Mixing", 2011), coarse luminance must follow the photo's, which keeps faces,
values must be such as a picture can hold, and nothing may repeat with the cells of the network.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from training.vgg import LossNetwork

_STYLE_LAYER_WEIGHTS = (0.5, 0.7, 1.0, 1.0)
_CONTENT_LAYER = 1
_LUMINANCE_POOL_PX = 8
_PALETTE_POOL_PX = 2
_PALETTE_DIRECTIONS = 24
_GRID_PX, _GRID_TILE_PX = 4, 32
_RGB_TO_LUMINANCE = (0.299, 0.587, 0.114)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How much each loss counts."""

    content: float = 1.0
    style: float = 1.5
    variation: float = 0.05
    luminance: float = 1.5
    palette: float = 1.0
    grid: float = 1.0
    range: float = 1.0


class PerceptualLoss:
    """The weighted sum of all losses of a batch, against one style picture `(1, 3, H, W)`."""

    def __init__(self, network: LossNetwork, style: Tensor, weights: Weights) -> None:
        self.network, self.weights = network, weights
        with torch.no_grad():
            features = network(style)
            self.grams = [gram(layer) for layer in features]
            self.energy = features[_CONTENT_LAYER].float().square().mean()
            self.roughness = roughness(style)
            self.colours = colours_along_lines(style)

    def __call__(self, result: Tensor, photo: Tensor, style_factor: float) -> dict[str, Tensor]:
        """Return each loss, weighted, and their sum, `total`; `style_factor` is for warm-up."""
        with torch.no_grad():
            target = self.network(photo, _CONTENT_LAYER + 1)[_CONTENT_LAYER].float()
        features = self.network(result)
        weights = self.weights
        losses = {
            "content": weights.content * self._content(features[_CONTENT_LAYER].float(), target),
            "style": weights.style * style_factor * self._style(features),
            "variation": weights.variation * roughness(result) / self.roughness,
            "luminance": weights.luminance * luminance_mismatch(result, photo),
            "palette": weights.palette * palette_distance(result, self.colours),
            "grid": weights.grid * grid_pattern(result),
            "range": weights.range * out_of_range(result),
        }
        return losses | {"total": torch.stack(list(losses.values())).sum()}

    def _content(self, features: Tensor, target: Tensor) -> Tensor:
        """A rough style has far more energy than a photo: what it adds must not count as loss."""
        energy = (self.energy + target.square().mean()) / 2
        error: Tensor = (features - target).square().mean() / energy
        return error

    def _style(self, features: list[Tensor]) -> Tensor:
        distances = [
            weight * relative_error(gram(layer), target.expand(len(layer), -1, -1))
            for weight, layer, target in zip(
                _STYLE_LAYER_WEIGHTS, features, self.grams, strict=True
            )
        ]
        return torch.stack(distances).sum()


def gram(features: Tensor) -> Tensor:
    """Return the correlations of channels, `(N, C, H, W)` to `(N, C, C)`, per position."""
    flat = features.float().flatten(2)
    return flat @ flat.transpose(1, 2) / flat.shape[2]


def relative_error(value: Tensor, target: Tensor) -> Tensor:
    """Return the squared error over the squared target: 0 where equal, 1 for a value of nought."""
    return (value - target).square().sum() / target.square().sum()


def roughness(pixels: Tensor) -> Tensor:
    """Return the mean squared step between neighbouring pixels (total variation, squared)."""
    across = (pixels[..., 1:] - pixels[..., :-1]).square().mean()
    return across + (pixels[..., 1:, :] - pixels[..., :-1, :]).square().mean()


def luminance_mismatch(result: Tensor, photo: Tensor) -> Tensor:
    """Return 1 - the correlation of coarse luminance, 0..2, averaged over the batch."""
    ours, theirs = _coarse_luminance(result), _coarse_luminance(photo)
    return 1 - F.cosine_similarity(ours, theirs, eps=1e-3).mean()


def colours_along_lines(pixels: Tensor) -> Tensor:
    """Project the colours of pictures on lines, `(N, 3, H, W)` to sorted `(N, 24, H * W / 4)`."""
    colours = F.avg_pool2d(pixels, _PALETTE_POOL_PX).flatten(2)
    generator = torch.Generator().manual_seed(0)
    lines = torch.randn(_PALETTE_DIRECTIONS, 3, generator=generator).to(pixels.device)
    return (F.normalize(lines, dim=1) @ colours).sort(2).values


def palette_distance(result: Tensor, target: Tensor) -> Tensor:
    """Return how far the colours of `result` are from the sorted projections of a style, 0 up."""
    ours = colours_along_lines(result)
    ranks = torch.linspace(0, target.shape[2] - 1, ours.shape[2], device=target.device)
    theirs = target[:, :, ranks.round().long()]
    error: Tensor = (ours - theirs).square().mean() / target.var(2).mean()
    return error


def _coarse_luminance(pixels: Tensor) -> Tensor:
    red, green, blue = _RGB_TO_LUMINANCE
    luminance = red * pixels[:, 0] + green * pixels[:, 1] + blue * pixels[:, 2]
    coarse = F.avg_pool2d(luminance, _LUMINANCE_POOL_PX).flatten(1)
    return coarse - coarse.mean(1, keepdim=True)


def grid_pattern(pixels: Tensor) -> Tensor:
    """Return how strong, squared and in units of 16, the pattern is that repeats every 4 pixels.

    The network enlarges its innermost maps four times, and what it paints alike in each of their
    cells shows as fine stripes. Strokes lie anywhere; so over a tile they average out.
    """
    rows, columns = (length // _GRID_TILE_PX for length in pixels.shape[2:])
    tiles = pixels[..., : rows * _GRID_TILE_PX, : columns * _GRID_TILE_PX]
    cells = _GRID_TILE_PX // _GRID_PX
    shape = (*pixels.shape[:2], rows, cells, _GRID_PX, columns, cells, _GRID_PX)
    pattern = tiles.reshape(shape).mean((3, 6))
    return ((pattern - pattern.mean((3, 5), keepdim=True)) / 16).square().mean()


def out_of_range(pixels: Tensor) -> Tensor:
    """Return how far, squared and in units of 64, pixels lie outside 0..255 on average."""
    return ((pixels - pixels.clamp(0, 255)) / 64).square().mean()
