"""Where every style starts: a network that has learnt to return its input.

From there a style takes about half the iterations that it takes from random weights, and content
and tones are right from the beginning. It is trained once and kept in the cache.
"""

import logging
from pathlib import Path

import torch

from training.losses import relative_error
from training.network import StyleNetwork, channels_last
from training.pictures import Photos

_ITERATIONS = 700
_RATE = 2e-3
_BATCH, _CROP_PX = 4, 128

log = logging.getLogger(__name__)


def identity_network(photos: Photos, cached: Path, iterations: int = _ITERATIONS) -> StyleNetwork:
    """Return the network at `cached`, after training it and putting it there if need be."""
    network = StyleNetwork()
    if cached.is_file():
        network.load_state_dict(torch.load(cached, weights_only=True))
        return network
    log.info("learning to copy first: %d iterations, once for all styles", iterations)
    torch.manual_seed(photos.seed)
    network = channels_last(StyleNetwork())
    optimiser = torch.optim.Adam(network.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=iterations + 1)
    for number in range(iterations):
        photo = photos.batch(number, _BATCH, _CROP_PX)
        loss = relative_error(network(photo), photo)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
        if number % 100 == 99:
            log.info("copying, iteration %d of %d: loss %.4f", number + 1, iterations, loss.item())
    cached.parent.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), cached)
    return network
