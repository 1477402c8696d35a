"""Where the subject of a picture is: a guess without a trained network.

What can be reached from the border of a picture only across strong changes of colour is the
subject: geodesic saliency (Wei, Wen, Zhu, Sun: Geodesic Saliency Using Background Priors, ECCV
2012), weighted towards the middle. GrabCut (Rother, Kolmogorov, Blake, SIGGRAPH 2004) then turns
the guess into one with the edges of the picture.
"""

import threading

import cv2
import numpy as np
from numpy.typing import NDArray

from styleserve.image import Image, Mask, resize, shrink

DISTANCE_SIDE_PX, CUT_SIDE_PX = 128, 200
SWEEPS = 4  # until no path gets shorter by much
NOISE = 4.0  # changes of colour below it, in levels of CIE L*a*b*, cost a path nothing
SURE_SUBJECT, MAYBE_SUBJECT, SURE_BACKGROUND = 0.2, 0.5, 0.25  # shares of the picture
ROUNDS = 2
SMALLEST_CUT_PX = 16  # of the shorter side: below it there is too little to learn colours from
_SEED = threading.Lock()  # GrabCut draws from one random generator of OpenCV's


def find_subject(image: Image) -> Mask:
    """Return how much each pixel belongs to the subject.

    Args:
        image: uint8 HxWx3 RGB.

    Returns:
        float32 HxW, from 0 (background) to 1 (subject), soft at the edges.
    """
    height, width = image.shape[:2]
    small = shrink(image, CUT_SIDE_PX)
    size = small.shape[0], small.shape[1]
    middle = _middle(*size)
    guess = resize(_distance(shrink(image, DISTANCE_SIDE_PX)), size) * middle
    mask = _cut(small, guess + 1e-3 * middle, middle) if min(size) >= SMALLEST_CUT_PX else middle
    soft = np.asarray(cv2.GaussianBlur(mask, (0, 0), 1.0), np.float32)
    return resize(soft, (height, width))


def _distance(image: Image) -> Mask:
    """Return each pixel's distance from the top and the sides, 0..1: the sum of changes of colour.

    The bottom is left out: where people and things are cut off by a border, it is mostly that one.
    """
    lab = cv2.cvtColor(cv2.GaussianBlur(image, (0, 0), 1), cv2.COLOR_RGB2LAB).astype(np.float32)
    down, right = (
        np.maximum(np.abs(np.diff(lab, axis=axis)).sum(axis=2) - NOISE, 0) for axis in (0, 1)
    )
    far = np.full(lab.shape[:2], np.inf, np.float32)
    far[0], far[:, 0], far[:, -1] = 0, 0, 0
    for _ in range(SWEEPS):
        for way, costs in ((far, down), (far[::-1], down[::-1]), (far.T, right.T)):
            _sweep(way, costs)
        _sweep(far.T[::-1], right.T[::-1])
    top = float(np.quantile(far, 0.95))
    return np.minimum(far / top, 1) if top > 0 else np.zeros_like(far)


def _sweep(far: NDArray[np.float32], costs: NDArray[np.float32]) -> None:
    """Shorten, in place, the paths that come from the row above."""
    for row in range(1, len(far)):
        np.minimum(far[row], far[row - 1] + costs[row - 1], out=far[row])


def _middle(height: int, width: int) -> Mask:
    """Return 1 just below the centre, falling off like a bell."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    y, x = (y + 0.5) / height - 0.55, (x + 0.5) / width - 0.5
    return np.asarray(np.exp(-((y / 0.35) ** 2 + (x / 0.3) ** 2) / 2), np.float32)


def _cut(image: Image, guess: Mask, middle: Mask) -> Mask:
    """Refine a guess; the corners are background, and where it is highest is the subject."""
    labels = np.full(guess.shape, cv2.GC_PR_BGD, np.uint8)
    labels[guess > np.quantile(guess, 1 - MAYBE_SUBJECT)] = cv2.GC_PR_FGD
    labels[middle <= np.quantile(middle, SURE_BACKGROUND)] = cv2.GC_BGD
    labels[guess >= np.quantile(guess, 1 - SURE_SUBJECT)] = cv2.GC_FGD
    back, front = np.zeros((2, 1, 65))  # what GrabCut learns of their colours
    nowhere = (0, 0, 0, 0)  # the labels tell more than a rectangle
    with _SEED:
        cv2.setRNGSeed(0)  # the same picture has the same subject each time
        cv2.grabCut(image, labels, nowhere, back, front, ROUNDS, cv2.GC_INIT_WITH_MASK)
    return np.asarray(np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)), np.float32)
