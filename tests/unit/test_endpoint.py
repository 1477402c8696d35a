"""Requests and answers as named arrays: which inputs, options and outputs are taken."""

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image as PillowImage

from styleserve import image as pictures
from styleserve.endpoint import CatalogEndpoint, Limits, Options, StyleEndpoint
from styleserve.errors import InferenceError, RequestError
from styleserve.image import Image
from tests.pictures import noise, png

BOTH = ["styled_image", "styled_encoded"]
LIMITS = Limits(max_side=1024, max_pixels=10_000)
PICTURE = noise(20, 31)


def negative(image: Image) -> Image:
    return np.asarray(255 - image, dtype=np.uint8)


class Stylizer:
    """Applies a function and remembers at which sides it was asked to work."""

    def __init__(self, function: Callable[[Image], Image] = negative) -> None:
        self._function = function
        self.sides: list[int] = []

    def __call__(self, image: Image, max_side: int) -> Image:
        self.sides.append(max_side)
        return self._function(image)

    def describe(self) -> dict[str, Any]:
        return {"kind": "style", "description": 'says "hi" to größe'}


def strength(value: float) -> NDArray[np.float32]:
    return np.array([value], np.float32)


def side(value: int) -> NDArray[np.int32]:
    return np.array([value], np.int32)


def flag(value: bool) -> NDArray[np.bool_]:
    return np.array([value])


def file(content: bytes) -> NDArray[np.object_]:
    return np.array([content], np.object_)


def style(stylizer: Stylizer | None = None, **tensors: NDArray[Any]) -> Image:
    endpoint = StyleEndpoint(stylizer or Stylizer(), LIMITS)
    answer = endpoint({"image": PICTURE, **tensors}, BOTH)
    assert set(answer) == {"styled_image"}
    return np.asarray(answer["styled_image"], dtype=np.uint8)


# --- image in, image out


@pytest.mark.parametrize("outputs", [BOTH, BOTH[::-1], ["styled_image"]])
def test_an_image_is_answered_by_an_image_alone(outputs: list[str]) -> None:
    answer = StyleEndpoint(Stylizer(), LIMITS)({"image": PICTURE}, outputs)

    assert set(answer) == {"styled_image"}
    assert (answer["styled_image"] == 255 - PICTURE).all()


@pytest.mark.parametrize(
    "wrong", [PICTURE.astype(np.float32), PICTURE[..., 0], np.zeros((0, 4, 3), np.uint8)]
)
def test_what_is_no_picture_never_reaches_the_model(wrong: NDArray[Any]) -> None:
    stylizer = Stylizer()

    with pytest.raises(RequestError, match="picture"):
        StyleEndpoint(stylizer, LIMITS)({"image": wrong}, BOTH)

    assert stylizer.sides == []


def test_a_picture_above_the_limit_is_refused() -> None:
    with pytest.raises(RequestError, match="STYLESERVE_MAX_PIXELS"):
        StyleEndpoint(Stylizer(), LIMITS)({"image": noise(101, 100)}, BOTH)


def test_a_failing_model_is_passed_on() -> None:
    def fail(image: Image) -> Image:
        raise InferenceError("it failed")

    with pytest.raises(InferenceError, match="it failed"):
        style(Stylizer(fail))


# --- exactly one input, and the output that answers it


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({}, "got neither"),
        ({"strength": strength(1)}, "got neither"),
        ({"image": PICTURE, "encoded": file(png(PICTURE))}, "got image and encoded"),
    ],
)
def test_both_or_neither_input_is_refused(tensors: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=f"exactly one .*{told}"):
        StyleEndpoint(Stylizer(), LIMITS)(tensors, BOTH)


@pytest.mark.parametrize(("given_input", "asked"), [("image", BOTH[1]), ("encoded", BOTH[0])])
def test_the_output_of_the_other_input_is_refused(given_input: str, asked: str) -> None:
    tensor = {"image": PICTURE, "encoded": file(png(PICTURE))}[given_input]

    with pytest.raises(RequestError, match=f"{given_input} is answered by .* not by {asked}"):
        StyleEndpoint(Stylizer(), LIMITS)({given_input: tensor}, [asked])


def test_no_output_named_means_all() -> None:
    answer = StyleEndpoint(Stylizer(), LIMITS)({"image": PICTURE}, [])

    assert set(answer) == {"styled_image"}


# --- encoded in, encoded out


@pytest.mark.parametrize("size", [(1, 1), (20, 31), (1, 90)])
@pytest.mark.parametrize("inverts", [True, False])
def test_a_file_is_answered_by_a_file_of_its_kind(size: tuple[int, int], inverts: bool) -> None:
    stylizer = Stylizer() if inverts else Stylizer(lambda image: image)

    answer = StyleEndpoint(stylizer, LIMITS)({"encoded": file(png(noise(*size)))}, BOTH)

    assert set(answer) == {"styled_encoded"}
    assert answer["styled_encoded"].shape == (1,)
    assert answer["styled_encoded"].dtype == np.object_
    with PillowImage.open(BytesIO(answer["styled_encoded"][0])) as decoded:
        assert decoded.format == "PNG"
        expected = 255 - noise(*size) if inverts else noise(*size)
        assert (np.asarray(decoded) == expected).all()


def test_options_work_on_files_too() -> None:
    stylizer = Stylizer()
    tensors = {"encoded": file(png(PICTURE)), "strength": strength(0.5), "max_side": side(9)}

    answer = StyleEndpoint(stylizer, LIMITS)(tensors, BOTH)

    with PillowImage.open(BytesIO(answer["styled_encoded"][0])) as decoded:
        assert np.abs(np.asarray(decoded) - 127.5).max() <= 1
    assert stylizer.sides == [9]


@pytest.mark.parametrize("content", [b"", b"no picture", png(PICTURE)[:60], b"\x00" * 90])
def test_a_broken_file_is_the_callers_fault(content: bytes) -> None:
    with pytest.raises(RequestError, match="encoded"):
        StyleEndpoint(Stylizer(), LIMITS)({"encoded": file(content)}, BOTH)


def test_a_file_above_the_limit_is_refused() -> None:
    with pytest.raises(RequestError, match="100x101"):
        StyleEndpoint(Stylizer(), LIMITS)({"encoded": file(png(noise(101, 100)))}, BOTH)


# --- options


def test_strength_mixes_with_the_original() -> None:
    assert (style(strength=strength(1)) == 255 - PICTURE).all()
    assert (
        style(strength=strength(0.25)) == pictures.blend(PICTURE, negative(PICTURE), 0.25)
    ).all()


def test_strength_0_gives_the_original_without_a_run() -> None:
    stylizer = Stylizer()

    assert (style(stylizer, strength=strength(0)) == PICTURE).all()
    assert stylizer.sides == []


def test_keep_color_keeps_the_originals_chroma() -> None:
    assert (style(keep_color=flag(True)) == pictures.keep_color(negative(PICTURE), PICTURE)).all()
    assert (style(keep_color=flag(False)) == 255 - PICTURE).all()


def test_keep_color_comes_before_strength() -> None:
    kept = pictures.keep_color(negative(PICTURE), PICTURE)

    mixed = style(keep_color=flag(True), strength=strength(0.5))

    assert (mixed == pictures.blend(PICTURE, kept, 0.5)).all()


@pytest.mark.parametrize("wrong", [-0.01, 1.01, float("nan"), float("inf"), -float("inf")])
def test_strength_outside_0_to_1_is_refused(wrong: float) -> None:
    with pytest.raises(RequestError, match=r"strength must be from 0 .* to 1 .*got"):
        style(strength=strength(wrong))


@pytest.mark.parametrize("asked", [1, 500, 1024])
def test_max_side_is_handed_to_the_model(asked: int) -> None:
    stylizer = Stylizer()

    style(stylizer, max_side=side(asked))

    assert stylizer.sides == [asked]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [(0, "at least 1"), (-5, "at least 1"), (1025, "at most 1024"), (2**31 - 1, "at most 1024")],
)
def test_max_side_outside_its_range_is_refused(wrong: int, told: str) -> None:
    with pytest.raises(RequestError, match=f"max_side must be {told}.*got {wrong}"):
        style(max_side=side(wrong))


@pytest.mark.parametrize(
    ("limit", "asked", "works_at"), [(1024, None, 1024), (0, None, 0), (0, 9000, 9000)]
)
def test_max_side_defaults_to_the_limit(limit: int, asked: int | None, works_at: int) -> None:
    tensors = {} if asked is None else {"max_side": side(asked)}

    assert Options.read(tensors, Limits(limit, 1)).max_side == works_at


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("strength", np.float32), ("max_side", np.int32), ("keep_color", np.bool_)],
)
def test_an_option_holds_one_value(name: str, dtype: type) -> None:
    for shape in ((0,), (2,), (2, 1)):
        told = rf"{name} must hold one value, shape \[1\], got the shape \({shape[0]},"
        option: dict[str, Any] = {name: np.ones(shape, dtype)}
        with pytest.raises(RequestError, match=told):
            style(**option)


def test_one_file_at_a_time() -> None:
    two = np.array([png(PICTURE)] * 2, np.object_)

    with pytest.raises(RequestError, match="encoded must hold one value"):
        StyleEndpoint(Stylizer(), LIMITS)({"encoded": two}, BOTH)


@given(
    mix=st.floats(0, 1, width=32),
    keep=st.booleans(),
    longer=st.integers(1, 1024),
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_any_options_give_a_picture_of_the_same_size(
    mix: float, keep: bool, longer: int, size: tuple[int, int]
) -> None:
    options = {"strength": strength(mix), "keep_color": flag(keep), "max_side": side(longer)}
    endpoint = StyleEndpoint(Stylizer(), LIMITS)

    one, same = (
        endpoint({"image": noise(*size), **options}, BOTH)["styled_image"] for _ in range(2)
    )

    assert one.shape == (*size, 3)
    assert one.dtype == np.uint8
    assert (one == same).all()


# --- the catalog


CATALOG = {"udnie": Stylizer(), "candy": Stylizer()}


def test_the_catalog_lists_names_and_details_in_order() -> None:
    answer = CatalogEndpoint(CATALOG)({}, ["names", "details"])

    assert answer["names"].tolist() == [b"candy", b"udnie"]
    assert [json.loads(text) for text in answer["details"]] == [Stylizer().describe()] * 2
    assert all(array.dtype == np.object_ for array in answer.values())


def test_the_catalog_tells_of_one_name() -> None:
    answer = CatalogEndpoint(CATALOG)({"name": file(b"udnie")}, ["names", "details"])

    assert answer["names"].tolist() == [b"udnie"]
    assert len(answer["details"]) == 1


@pytest.mark.parametrize("wrong", [b"mosaic", b"", b"Candy", b"\xff\xfe"])
def test_the_catalog_refuses_an_unknown_name_telling_the_known(wrong: bytes) -> None:
    with pytest.raises(RequestError, match="not served here, these are: candy, udnie"):
        CatalogEndpoint(CATALOG)({"name": file(wrong)}, ["names"])


def test_an_empty_catalog_is_an_empty_list() -> None:
    answer = CatalogEndpoint({})({}, ["names", "details"])

    assert answer["names"].shape == (0,)
