"""The fixed network that sees: its features measure what a picture shows and how it is painted.

Ten convolutions of a VGG16, up to relu4_3, read from the Keras file that `python -m training fetch`
unpacks. Its pixels are BGR minus the mean of ImageNet.
"""

from pathlib import Path

import h5py
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.errors import TrainingError

_BLOCKS = (2, 2, 3, 3)
_CHANNELS = (64, 128, 256, 512)
_MEAN_BGR = (104.00699, 116.66877, 122.67892)


class LossNetwork(nn.Module):
    """Features of RGB pictures 0..255 after relu1_2, relu2_2, relu3_3 and relu4_3."""

    mean: Tensor

    def __init__(self, channels: tuple[int, ...] = _CHANNELS) -> None:
        super().__init__()
        sizes = (3, *channels)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.Conv2d(sizes[block + (layer > 0)], sizes[block + 1], 3, padding=1)
                for layer in range(depth)
            )
            for block, depth in enumerate(_BLOCKS)
        )
        self.register_buffer("mean", torch.tensor(_MEAN_BGR).view(1, 3, 1, 1))
        self.requires_grad_(False).eval()

    def forward(self, pixels: Tensor, depth: int = len(_BLOCKS)) -> list[Tensor]:
        """Map `(N, 3, H, W)` to `depth` maps, each half as high and wide as the one before."""
        features, maps = (pixels.flip(1) - self.mean).to(self._dtype()), []
        for number, block in enumerate(list(self.blocks)[:depth]):
            if number:
                features = F.max_pool2d(features, 2)
            assert isinstance(block, nn.ModuleList)
            for layer in block:
                features = F.relu(layer(features))
            maps.append(features)
        return maps

    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


def load_loss_network(path: Path) -> LossNetwork:
    """Read the weights at `path`; raise `TrainingError` if they are absent or of another form."""
    if not path.is_file():
        raise TrainingError(
            f"The loss network {path} is missing: fetch it once with 'python -m training fetch'."
        )
    network = LossNetwork()
    try:
        with h5py.File(path) as file:
            for number, block in enumerate(network.blocks, start=1):
                assert isinstance(block, nn.ModuleList)
                for index, layer in enumerate(block):
                    assert isinstance(layer, nn.Conv2d)
                    suffix = f"_{index}" if index else ""
                    _fill(layer, file[f"block{number}/layers/conv2d{suffix}/vars"])
    except (OSError, KeyError, RuntimeError) as err:
        raise TrainingError(
            f"The loss network {path} cannot be read ({err}): delete it and run "
            "'python -m training fetch' again."
        ) from err
    return network


def _fill(layer: nn.Conv2d, variables: h5py.Group) -> None:
    kernel, bias = torch.from_numpy(variables["0"][()]), torch.from_numpy(variables["1"][()])
    layer.weight.data.copy_(kernel.permute(3, 2, 0, 1))  # Keras keeps height, width, in, out
    assert layer.bias is not None
    layer.bias.data.copy_(bias)
