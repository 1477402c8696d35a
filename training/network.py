"""The network that is trained: a feed-forward stylizer small enough for two CPU cores.

After Johnson, Alahi and Fei-Fei, "Perceptual Losses for Real-Time Style Transfer and
Super-Resolution" (2016), with the instance normalisation of Ulyanov, Vedaldi and Lempitsky,
"Instance Normalization: The Missing Ingredient for Fast Stylization" (2016). Theirs is halved where
time goes: the first convolution has stride 2 already, because two at full size take a third of all
the time, and the last is 5x5 instead of 9x9. Nearest upsampling followed by a convolution stands in
for their transposed convolution, which leaves a checkerboard, and reflection padding keeps a frame
from forming along the border.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

# Channels at full, half and quarter size: multiples of 16, the block that ONNX Runtime computes in.
FULL, HALF, QUARTER = 16, 32, 48
BLOCKS = 5
_Module = TypeVar("_Module", bound=nn.Module)
_PIXEL_MEAN, _PIXEL_SCALE = 127.5, 64.0


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.ReflectionPad2d(size // 2), nn.Conv2d(inputs, outputs, size, stride)]


def _norm_relu(channels: int) -> list[nn.Module]:
    return [nn.InstanceNorm2d(channels, affine=True), nn.ReLU()]


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions whose result is added to their input, `(N, C, H, W)` to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv(channels, channels, 3),
            *_norm_relu(channels),
            *_conv(channels, channels, 3),
            nn.InstanceNorm2d(channels, affine=True),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return `features` plus what the block makes of them."""
        result: Tensor = features + self.body(features)
        return result


class StyleNetwork(nn.Module):
    """RGB pictures 0..255 `(N, 3, H, W)`, sides divisible by 4, to stylized ones of the same shape.

    While it trains, pixels are scaled to about -2..2 around the convolutions; `folded` moves the
    scaling into their weights. The output is not clipped: the losses keep it near 0..255.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scale = _PIXEL_MEAN, _PIXEL_SCALE
        self.layers = nn.Sequential(
            *_conv(3, HALF, 9, stride=2),
            *_norm_relu(HALF),
            *_conv(HALF, QUARTER, 3, stride=2),
            *_norm_relu(QUARTER),
            *(ResidualBlock(QUARTER) for _ in range(BLOCKS)),
            nn.Upsample(scale_factor=2, mode="nearest"),
            *_conv(QUARTER, HALF, 3),
            *_norm_relu(HALF),
            nn.Upsample(scale_factor=2, mode="nearest"),
            *_conv(HALF, FULL, 3),
            *_norm_relu(FULL),
            *_conv(FULL, 3, 5),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Stylize a batch of pictures."""
        result: Tensor = self.layers((pixels - self.mean) / self.scale) * self.scale + self.mean
        return result


def channels_last(module: _Module) -> _Module:
    """Keep the kernels of `module` with channels innermost, which processors convolve faster."""
    for parameter in module.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return module


def folded(network: StyleNetwork) -> nn.Sequential:
    """Return layers that map 0..255 to 0..255 by themselves, and so export as nothing but layers.

    Exact, since reflection padding commutes with the scaling of pixels.
    """
    copy = StyleNetwork()
    copy.load_state_dict(network.state_dict())
    first, last = copy.layers[1], copy.layers[-1]
    assert isinstance(first, nn.Conv2d) and isinstance(last, nn.Conv2d)
    assert first.bias is not None and last.bias is not None
    first.weight.data /= network.scale
    first.bias.data -= network.mean * first.weight.data.sum((1, 2, 3))
    last.weight.data *= network.scale
    last.bias.data = last.bias.data * network.scale + network.mean
    return copy.layers.eval()
