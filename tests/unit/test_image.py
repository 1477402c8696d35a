"""Check, fit, undo, colours: pure functions on pictures, at every size."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from styleserve import image as pictures
from styleserve.errors import RequestError
from styleserve.image import Image
from tests.pictures import bright_box, corners, disc, gap, marked, noise, plain

SIDES = st.integers(1, 300)
SIZES = st.tuples(SIDES, SIDES)
MAX_SIDES = st.sampled_from([0, 1, 7, 100, 1024])
EXTREMES = [(1, 1), (1, 4000), (4000, 1), (3, 4000), (2000, 2), (1, 40_000), (40_000, 1)]


# --- check


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (np.zeros((4, 5, 3), np.float32), "float32"),
        (np.zeros((4, 5, 3), np.int8), "int8"),
        (np.zeros((4, 5, 3), np.uint16), "uint16"),
        (np.zeros((4, 5, 3), np.bool_), "bool"),
        (np.zeros((4, 5), np.uint8), r"\(4, 5\)"),
        (np.zeros((4, 5, 1), np.uint8), r"\(4, 5, 1\)"),
        (np.zeros((4, 5, 4), np.uint8), r"\(4, 5, 4\)"),
        (np.zeros((3, 4, 5), np.uint8), r"\(3, 4, 5\)"),
        (np.zeros((1, 4, 5, 3), np.uint8), r"\(1, 4, 5, 3\)"),
        (np.zeros((0, 5, 3), np.uint8), r"\(0, 5, 3\)"),
        (np.zeros((5, 0, 3), np.uint8), r"\(5, 0, 3\)"),
        (np.uint8(7).reshape(()), r"\(\)"),
    ],
)
def test_check_refuses_what_is_no_picture(wrong: NDArray[np.generic], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        pictures.check(wrong, 1000)


def test_check_takes_as_many_pixels_as_allowed_and_no_more() -> None:
    assert pictures.check(plain(10, 20), 200).shape == (10, 20, 3)
    with pytest.raises(RequestError, match=r"20x10 = 200 pixels.* 199 .*STYLESERVE_MAX_PIXELS"):
        pictures.check(plain(10, 20), 199)


def test_check_gives_contiguous_pixels_in_the_same_place() -> None:
    flipped = noise(7, 9)[::-1, :, ::-1]

    checked = pictures.check(flipped, 1000)

    assert checked.flags.c_contiguous
    assert (checked == flipped).all()


# --- fit for a network of any size


@given(SIZES, MAX_SIDES, st.integers(1, 64), st.sampled_from([1, 32]))
def test_native_canvas_is_as_large_as_needed_and_undone(
    size: tuple[int, int], max_side: int, multiple: int, min_side: int
) -> None:
    picture = noise(*size)

    canvas, frame = pictures.fit_native(picture, max_side, multiple, min_side)

    assert max(frame.fitted) == (min(max_side, max(size)) if max_side else max(size))
    for side, fitted in zip(canvas.shape[:2], frame.fitted, strict=True):
        assert side % multiple == 0
        assert max(fitted, min_side) <= side < max(fitted, min_side) + multiple
    undone = frame.undo(canvas)
    assert undone.shape == picture.shape
    assert undone.dtype == np.uint8
    if frame.fitted == size:
        assert (canvas[: size[0], : size[1]] == picture).all()
        assert (undone == picture).all()


@pytest.mark.parametrize("max_side", [0, 1, 7, 1024])
def test_native_takes_extreme_shapes(max_side: int) -> None:
    for size in EXTREMES:
        canvas, frame = pictures.fit_native(noise(*size), max_side, 4, 32)

        assert min(canvas.shape[:2]) >= 32
        assert frame.undo(canvas).shape == (*size, 3)


@pytest.mark.parametrize(
    ("size", "max_side", "fitted"),
    [((200, 640), 320, (100, 320)), ((640, 200), 320, (320, 100)), ((64, 64), 32, (32, 32))],
)
def test_native_keeps_the_proportions(
    size: tuple[int, int], max_side: int, fitted: tuple[int, int]
) -> None:
    assert pictures.fit_native(plain(*size), max_side, 1, 1)[1].fitted == fitted


@pytest.mark.parametrize(("height", "multiple"), [(5, 8), (5, 9), (9, 16)])
def test_native_pads_with_the_mirror_image(height: int, multiple: int) -> None:
    picture = noise(height, height)

    canvas, _ = pictures.fit_native(picture, 0, multiple, 1)

    added = canvas.shape[0] - height
    assert added > 0
    assert (canvas[height:, :height] == picture[-2 : -2 - added : -1]).all()
    assert (canvas[:height, height:] == picture[:, -2 : -2 - added : -1]).all()


@pytest.mark.parametrize(
    ("size", "multiple", "min_side"),
    [
        *(((1, 1), 9, 32), ((4, 4), 9, 32), ((1, 40), 9, 32), ((40, 2), 9, 32)),
        *(((4, 40), 8, 1), ((40, 4), 8, 1), ((4, 4), 8, 1)),  # a mirror would need one more line
    ],
)
def test_native_pads_a_tiny_picture_with_its_edge(
    size: tuple[int, int], multiple: int, min_side: int
) -> None:
    picture = noise(*size)

    canvas, _ = pictures.fit_native(picture, 0, multiple, min_side)

    height, width = size
    assert canvas.shape[0] > height or canvas.shape[1] > width
    assert (canvas[height:, :width] == picture[-1]).all()
    assert (canvas[:height, width:] == picture[:, -1:]).all()


# --- fit for a network of one size


@given(SIZES, st.tuples(st.integers(1, 256), st.integers(1, 256)))
def test_fixed_canvas_holds_the_whole_picture_centred(
    size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    picture = noise(*size)

    canvas, frame = pictures.fit_fixed(picture, wanted)

    assert canvas.shape == (*wanted, 3)
    scale = min(wanted[0] / size[0], wanted[1] / size[1])
    assert any(fitted == side for fitted, side in zip(frame.fitted, wanted, strict=True))
    for side, fitted, before, offset in zip(wanted, frame.fitted, size, frame.offset, strict=True):
        assert fitted == 1 or abs(fitted - before * scale) <= 0.5
        assert 0 <= side - fitted - 2 * offset <= 1
    assert frame.undo(canvas).shape == picture.shape
    if frame.fitted == size:
        assert (frame.undo(canvas) == picture).all()


def test_fixed_takes_extreme_shapes() -> None:
    for size in EXTREMES:
        canvas, frame = pictures.fit_fixed(noise(*size), (224, 224))

        assert canvas.shape == (224, 224, 3)
        assert frame.undo(canvas).shape == (*size, 3)


@pytest.mark.parametrize("wanted", [(224, 224), (96, 320)])
def test_a_circle_stays_a_circle(wanted: tuple[int, int]) -> None:
    for size in ((200, 640), (640, 200), (301, 227), (50, 40)):
        canvas, frame = pictures.fit_fixed(disc(*size), wanted)

        for picture in (canvas, frame.undo(canvas)):
            height, width = bright_box(picture)
            assert abs(height - width) <= 1 + max(height, width) // 20
        assert bright_box(frame.undo(canvas)) == pytest.approx(bright_box(disc(*size)), abs=6)


@pytest.mark.parametrize("size", [(200, 640), (640, 200), (301, 227), (100, 80)])
def test_corner_marks_stay_in_their_corners(size: tuple[int, int]) -> None:
    picture = marked(*size)

    canvas, frame = pictures.fit_fixed(picture, (224, 224))

    assert gap(corners(frame.undo(canvas)), corners(picture)) <= 8


@pytest.mark.parametrize("size", [(4, 8), (8, 4), (6, 8), (7, 8), (8, 7)])
def test_the_letterbox_shows_the_edge(size: tuple[int, int]) -> None:
    picture = noise(*size)
    canvas, frame = pictures.fit_fixed(picture, (8, 8))
    top, left = frame.offset
    rows = np.clip(np.arange(8) - top, 0, size[0] - 1)
    columns = np.clip(np.arange(8) - left, 0, size[1] - 1)
    assert (canvas == picture[rows][:, columns]).all()


# --- resample


def test_shrinking_averages_and_does_not_alias() -> None:
    stripes = plain(40, 400, 0)
    stripes[:, ::4] = 255

    assert gap(pictures.resize(stripes, (10, 100)), plain(10, 100, 64)) <= 1


def test_enlarging_is_smooth() -> None:
    step = plain(4, 4, 50)
    step[:, 2:] = 150

    enlarged = pictures.resize(step, (4, 64))

    assert (enlarged.min(), enlarged.max()) != (50, 150)  # cubic overshoots, the others do not
    assert len(np.unique(enlarged)) > 8
    assert enlarged[0, 0, 0] == 50
    assert enlarged[0, -1, 0] == 150


def test_the_same_size_is_not_resampled() -> None:
    picture = noise(5, 7)

    assert pictures.resize(picture, (5, 7)) is picture


def test_rows_columns_and_colours_keep_their_order() -> None:
    picture = marked(60, 100, 30)

    canvas, frame = pictures.fit_native(picture, 50, 8, 32)

    for shown in (canvas[: frame.fitted[0], : frame.fitted[1]], frame.undo(canvas)):
        assert gap(corners(shown), corners(picture)) <= 4


# --- colours


def test_keep_color_of_a_grey_picture_gives_grey() -> None:
    grey = np.repeat(noise(30, 40)[..., :1], 3, axis=2)
    styled = noise(30, 40, seed=1)

    kept = pictures.keep_color(styled, grey)

    assert (kept == kept[..., :1]).all()
    assert gap(kept[..., 0], cv2.cvtColor(styled, cv2.COLOR_RGB2GRAY)) <= 1


def test_keep_color_takes_luma_from_the_style_and_chroma_from_the_picture() -> None:
    original, styled = (
        np.asarray(noise(30, 40, seed) // 4 + 96, dtype=np.uint8)  # far from the limits
        for seed in (0, 1)
    )

    kept = cv2.cvtColor(pictures.keep_color(styled, original), cv2.COLOR_RGB2YCrCb)

    assert gap(kept[..., 0], cv2.cvtColor(styled, cv2.COLOR_RGB2YCrCb)[..., 0]) <= 1
    assert gap(kept[..., 1:], cv2.cvtColor(original, cv2.COLOR_RGB2YCrCb)[..., 1:]) <= 1


def test_keep_color_of_an_unchanged_picture_changes_nothing() -> None:
    picture = noise(30, 40)

    assert gap(pictures.keep_color(picture, picture), picture) <= 2


@pytest.mark.parametrize(("colour", "channel"), [((255, 0, 0), 0), ((0, 0, 255), 2)])
def test_keep_color_does_not_swap_red_and_blue(colour: tuple[int, int, int], channel: int) -> None:
    kept = pictures.keep_color(plain(4, 4, 90), plain(4, 4, 0) + np.array(colour, np.uint8))

    assert kept[0, 0].argmax() == channel


def test_blend_gives_exactly_the_ends() -> None:
    original, styled = noise(30, 40), noise(30, 40, seed=1)

    assert (pictures.blend(original, styled, 0.0) == original).all()
    assert (pictures.blend(original, styled, 1.0) == styled).all()


@given(st.floats(0, 1, width=32))
def test_blend_is_the_rounded_mean(strength: float) -> None:
    original, styled = noise(9, 11), noise(9, 11, seed=1)

    exact = original + strength * (styled.astype(float) - original)

    assert np.abs(pictures.blend(original, styled, strength) - exact).max() <= 0.501


# --- no surprise for the caller


@pytest.mark.parametrize(
    "work",
    [
        lambda picture: pictures.fit_native(picture, 20, 8, 32),
        lambda picture: pictures.fit_fixed(picture, (16, 16)),
        lambda picture: pictures.keep_color(255 - picture, picture),
        lambda picture: pictures.keep_color(picture, 255 - picture),
        lambda picture: pictures.blend(picture, 255 - picture, 0.5),
    ],
)
def test_a_picture_given_is_never_written_to(work: Callable[[Image], object]) -> None:
    picture = noise(30, 40)
    picture.setflags(write=False)  # as decoded files are

    work(picture)

    assert (picture == noise(30, 40)).all()


# --- smooth pictures


def _astronaut() -> Image:
    file = Path(__file__).parents[2] / "docs" / "examples" / "astronaut.jpg"
    return np.asarray(cv2.cvtColor(cv2.imread(str(file)), cv2.COLOR_BGR2RGB), dtype=np.uint8)


def _dim(image: Image, factor: float) -> Image:
    return np.asarray(image * factor, dtype=np.uint8)


def _with_sky(image: Image) -> Image:
    y = np.arange(image.shape[0])[:, None, None] * 100 // image.shape[0]
    sky = np.broadcast_to(y + np.array([100, 140, 155]), image.shape).astype(np.uint8)
    return np.concatenate([sky[: len(image) // 2], image[len(image) // 2 :]])


@pytest.mark.parametrize(
    ("change", "smooth"),
    [
        (lambda image: image, False),
        (lambda image: _dim(image, 0.5), False),
        (lambda image: image // 2 + 90, False),
        (lambda image: _dim(image, 0.1), True),  # a fade
        (lambda image: _dim(image, 0.1) + np.uint8(200), True),  # fog
        (lambda image: cv2.GaussianBlur(image, (0, 0), 8), True),
        (_with_sky, True),
        (lambda image: np.full_like(image, 255), True),
        (lambda image: image[:1, :1], True),
        (lambda image: image[:5, :300], False),
    ],
)
def test_pictures_with_hardly_any_texture_are_smooth(
    change: Callable[[Image], Image], smooth: bool
) -> None:
    assert pictures.is_smooth(change(_astronaut())) == smooth
