"""Every operation on small pictures and masks with known answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from styleserve import image as pictures
from styleserve import operations as ops
from styleserve.errors import InferenceError
from styleserve.image import Mask
from tests.pictures import gap, noise, plain


def mask_of(height: int, width: int, seed: int = 0) -> Mask:
    return np.random.default_rng(seed).random((height, width), np.float32)


def half(height: int, width: int) -> Mask:
    """Make a mask whose left half is 1."""
    mask = np.zeros((height, width), np.float32)
    mask[:, : width // 2] = 1
    return mask


def test_blend_weighs_its_inputs() -> None:
    black, white, some = plain(4, 5, 0), plain(4, 5, 255), noise(4, 5)

    assert (ops.blend(black, white, weights=[1, 3]) == 191).all()
    assert (ops.blend(black, white, black, weights=[1, 2, 1]) == 128).all()
    assert (ops.blend(some, weights=[7]) == some).all()
    assert (ops.blend(some, some, some, weights=[0.1, 0.2, 0.3]) == some).all()


@pytest.mark.parametrize("count", [1, 3])
def test_blend_needs_a_weight_for_each_input(count: int) -> None:
    with pytest.raises(InferenceError, match=f"2 inputs, but {count} weights"):
        ops.blend(noise(4, 5), noise(4, 5), weights=[1.0] * count)


def test_composite_shows_the_front_where_the_mask_is_1() -> None:
    front, back = noise(6, 8, 1), noise(6, 8, 2)

    joined = ops.composite(front, back, half(6, 8))

    assert (joined[:, :4] == front[:, :4]).all()
    assert (joined[:, 4:] == back[:, 4:]).all()
    middle = ops.composite(plain(4, 4, 0), plain(4, 4, 200), np.full((4, 4), 0.25, np.float32))
    assert gap(middle, plain(4, 4, 150)) <= 1


def test_keep_color_is_that_of_every_style() -> None:
    one, other = noise(6, 8, 1), noise(6, 8, 2)

    assert (ops.keep_color(one, other) == pictures.keep_color(one, other)).all()


def test_invert_is_its_own_inverse() -> None:
    assert (ops.invert(noise(4, 5)) == 255 - noise(4, 5)).all()
    assert np.allclose(ops.invert(mask_of(4, 5)), 1 - mask_of(4, 5))
    assert (ops.invert(ops.invert(noise(4, 5))) == noise(4, 5)).all()


def test_blur_keeps_what_is_plain_and_softens_edges_by_its_radius() -> None:
    edge = half(20, 200)

    assert gap(ops.blur(plain(9, 7), radius=0.2), plain(9, 7)) == 0
    narrow, wide = (ops.blur(edge, radius=radius)[10] for radius in (0.01, 0.05))
    assert ((narrow > 0.05) & (narrow < 0.95)).sum() < ((wide > 0.05) & (wide < 0.95)).sum()
    large = ops.blur(half(40, 400), radius=0.05)[20]
    assert np.abs(large[::2] - wide).max() < 0.05  # the same look at another size


@pytest.mark.parametrize("made", [noise, mask_of])
def test_turns_and_mirrors(made: Callable[[int, int], NDArray[Any]]) -> None:
    value = made(4, 6)

    assert (ops.rotate(value, degrees=90) == np.rot90(value, -1)).all()
    assert (ops.rotate(value, degrees=180) == np.rot90(value, 2)).all()
    assert (ops.rotate(value, degrees=270) == np.rot90(value, 1)).all()
    assert (ops.flip(value, axis="horizontal") == value[:, ::-1]).all()
    assert (ops.flip(value, axis="vertical") == value[::-1]).all()


@pytest.mark.parametrize("made", [noise, mask_of])
def test_what_is_cut_out_can_be_put_back(made: Callable[[int, int], NDArray[Any]]) -> None:
    value, region = made(40, 60), (0.25, 0.1, 0.75, 0.6)

    part = ops.crop(value, region=region)
    back = ops.paste(value, ops.invert(part), region=region)

    assert (part == value[4:24, 15:45]).all()
    assert not np.shares_memory(part, value)
    assert (back[4:24, 15:45] == ops.invert(part)).all()
    assert (ops.paste(back, part, region=region) == value).all()


def test_a_patch_of_another_size_is_fitted() -> None:
    pasted = ops.paste(plain(40, 60, 0), plain(3, 3, 255), region=(0, 0, 0.5, 0.5))

    assert (pasted[:20, :30] == 255).all()
    assert pasted[20:].max() == 0


def test_resize_scales_or_takes_the_size_of_another() -> None:
    value = noise(40, 60)

    assert ops.resize(value, scale=0.5).shape == (20, 30, 3)
    assert ops.resize(value, noise(7, 9)).shape == (7, 9, 3)
    assert ops.resize(mask_of(40, 60), value, scale=2).shape == (80, 120)
    assert (ops.resize(value) == value).all()


def test_a_mask_stays_within_0_and_1_when_it_grows() -> None:
    grown = ops.resize(half(8, 8), scale=4)

    assert grown.min() >= 0
    assert grown.max() <= 1


@pytest.mark.parametrize(
    ("measured", "measure", "amount"),
    [
        (noise(20, 30), "aspect", 1.5),
        (noise(20, 30), "size", 30),
        (plain(20, 30, 51), "brightness", 0.2),
        (half(20, 30), "area", 0.5),
        (half(20, 30), "aspect", 1.5),
    ],
)
def test_select_picks_by_what_it_measures(measured: Any, measure: Any, amount: float) -> None:  # noqa: ANN401
    choices = [plain(2, 2, value) for value in (1, 2, 3)]

    def picked(*below: float) -> int:
        return int(ops.select(measured, *choices, measure=measure, below=[*below])[0, 0, 0])

    assert picked(amount + 0.1, amount + 0.2) == 1
    assert picked(amount - 0.1, amount + 0.1) == 2
    assert picked(amount - 0.2, amount - 0.1) == 3


def test_select_refuses_what_it_cannot_decide() -> None:
    with pytest.raises(InferenceError, match="1 limits in `below` divide 2 choices, but it has 3"):
        ops.select(noise(2, 2), *[noise(2, 2)] * 3, measure="aspect", below=[1.0])
    with pytest.raises(InferenceError, match="differ in size"):
        ops.select(noise(2, 2), noise(2, 2), noise(2, 3), measure="aspect", below=[1.0])
    for value, measure in ((noise(2, 2), "area"), (half(2, 2), "brightness")):
        with pytest.raises(InferenceError, match="area is a measure of masks"):
            ops.choose(value, measure=measure, below=[1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.blend(noise(4, 5), noise(5, 4), weights=[1, 1]),
        lambda: ops.composite(noise(4, 5), noise(4, 5), half(5, 4)),
        lambda: ops.keep_color(noise(4, 5), noise(5, 4)),
    ],
)
def test_inputs_of_different_sizes_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InferenceError, match=r"differ in size, .* 5x4, .*4x5; .* with resize"):
        call()


sides = st.integers(1, 40)
shares = st.floats(0, 0.9)


@settings(deadline=None)
@given(height=sides, width=sides, left=shares, top=shares, scale=st.floats(0.01, 4))
def test_any_size_is_taken_and_kept(
    height: int, width: int, left: float, top: float, scale: float
) -> None:
    region = (left, top, left + 0.1, top + 0.1)
    for value in (noise(height, width), mask_of(height, width)):
        whole = [
            ops.invert(value),  # type: ignore[type-var]
            ops.blur(value, radius=0.1),  # type: ignore[type-var]
            ops.flip(value, axis="vertical"),  # type: ignore[type-var]
            ops.rotate(value, degrees=180),  # type: ignore[type-var]
            ops.paste(value, ops.crop(value, region=region), region=region),  # type: ignore[type-var]
            ops.resize(ops.resize(value, scale=scale), value),  # type: ignore[type-var]
        ]
        assert {each.shape for each in whole} == {value.shape}
        assert {each.dtype for each in whole} == {value.dtype}
        assert (whole[4] == value).all()


def test_a_picture_is_not_enlarged_beyond_all_memory() -> None:
    with pytest.raises(InferenceError, match="it would give 12000x12000, more than 100000000"):
        ops.resize(np.zeros((3000, 3000), np.float32), scale=4.0)
