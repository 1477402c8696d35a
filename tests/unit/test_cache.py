"""Answers that are kept: which requests are the same, what is forgotten, what is never kept."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from styleserve.cache import ENTRY_BYTES, Cache, CachedEndpoint
from styleserve.endpoint import Answer, Limits, StyleEndpoint, Tensors
from styleserve.errors import InferenceError, RequestError
from styleserve.image import Image
from styleserve.ticket import CURRENT, Ticket
from tests.pictures import noise, png

PLENTY = 1 << 20
PICTURE = noise(20, 31)
BOTH = ["styled_image", "styled_encoded"]


class Negative:
    """A style that counts its runs."""

    runs = 0

    def __call__(self, image: Image, max_side: int) -> Image:
        self.runs += 1
        return np.asarray(255 - image, dtype=np.uint8)

    def describe(self) -> dict[str, Any]:
        return {}


class Echo:
    """Answers with its inputs, and remembers them; fails with `failure`, if any."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.asked: list[Tensors] = []

    def __call__(self, tensors: Tensors, outputs: list[str]) -> Answer:
        self.asked.append(tensors)
        if self.failure:
            raise self.failure
        return dict(tensors)


@pytest.fixture
def ticket() -> Iterator[Ticket]:
    ticket = Ticket()
    token = CURRENT.set(ticket)
    yield ticket
    CURRENT.reset(token)


def file(*contents: bytes) -> NDArray[np.object_]:
    return np.array(contents, np.object_)


def pixels(size: int, value: int = 0) -> Answer:
    return {"a": np.full(size, value, np.uint8)}


# --- the same request


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("tensors", [{"image": PICTURE}, {"encoded": file(png(PICTURE))}])
def test_the_kept_answer_is_the_first_one_bit_for_bit(
    tensors: dict[str, NDArray[Any]], strength: float
) -> None:
    style = Negative()
    plain = StyleEndpoint(style, Limits(0, 10_000))
    endpoint = CachedEndpoint("udnie", plain, Cache(PLENTY))
    request = {**tensors, "strength": np.array([strength], np.float32)}

    wanted, miss, hit = (call(request, BOTH) for call in (plain, endpoint, endpoint))

    assert style.runs == (2 if strength else 0)
    for answer in (miss, hit):
        assert list(answer) == list(wanted)
        for name, array in answer.items():
            assert array.dtype == wanted[name].dtype
            assert array.shape == wanted[name].shape
            assert (array == wanted[name]).all()


def test_orders_and_the_layout_of_the_inputs_are_of_no_account() -> None:
    echo = Echo()
    endpoint = CachedEndpoint("udnie", echo, Cache(PLENTY))
    side = np.array([5], np.int32)

    endpoint({"image": PICTURE, "max_side": side}, BOTH)
    endpoint({"max_side": side, "image": np.asfortranarray(PICTURE)}, BOTH[::-1])

    assert len(echo.asked) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"image": PICTURE}, {"image": PICTURE ^ 1}),
        ({"image": PICTURE}, {"image": PICTURE.reshape(31, 20, 3)}),
        ({"image": PICTURE}, {"picture": PICTURE}),
        ({"image": PICTURE}, {"image": PICTURE, "strength": np.array([0.5], np.float32)}),
        ({"strength": np.array([0.5], np.float32)}, {"strength": np.array([0.6], np.float32)}),
        ({"n": np.array([1], np.int32)}, {"n": np.array([1], np.uint32)}),
        ({"keep_color": np.array([True])}, {"keep_color": np.array([False])}),
        ({"encoded": file(b"ab")}, {"encoded": file(b"ac")}),
        ({"encoded": file(b"ab", b"c")}, {"encoded": file(b"a", b"bc")}),
        ({"a": file(b"x"), "b": file(b"yz")}, {"a": file(b"xy"), "b": file(b"z")}),
        ({}, {"image": PICTURE}),
    ],
)
def test_another_request_is_answered_anew(
    one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]
) -> None:
    echo = Echo()
    endpoint = CachedEndpoint("udnie", echo, Cache(PLENTY))

    answers = [endpoint(tensors, BOTH) for tensors in (one, other, one, other)]

    assert echo.asked == [one, other]
    assert list(map(list, answers)) == list(map(list, (one, other, one, other)))


def test_other_models_and_outputs_are_other_entries() -> None:
    echo, cache = Echo(), Cache(PLENTY)
    for model in ("udnie", "candy"):
        for outputs in (BOTH, BOTH[:1], []):
            for _ in range(2):
                CachedEndpoint(model, echo, cache)({"image": PICTURE}, outputs)

    assert len(echo.asked) == 6


# --- failures


@pytest.mark.parametrize("failure", [RequestError("no"), InferenceError("no"), KeyError("no")])
def test_a_failure_is_never_kept(failure: Exception) -> None:
    echo = Echo(failure)
    endpoint = CachedEndpoint("udnie", echo, Cache(PLENTY))
    for _ in range(2):
        with pytest.raises(type(failure)) as caught:
            endpoint({"image": PICTURE}, BOTH)
        assert caught.value is failure

    echo.failure = None

    assert (endpoint({"image": PICTURE}, BOTH)["image"] == PICTURE).all()
    assert len(echo.asked) == 3


@pytest.mark.parametrize(("failed", "runs"), [(1, 2), (0, 1)])
def test_an_answer_with_a_fallback_in_it_is_not_kept(
    ticket: Ticket, failed: int, runs: int
) -> None:
    echo = Echo()

    def pipeline(tensors: Tensors, outputs: list[str]) -> Answer:
        ticket.add("styleserve_node_failure", failed, model="painted", node="mask")
        return echo(tensors, outputs)

    endpoint = CachedEndpoint("painted", pipeline, Cache(PLENTY))
    for _ in range(2):
        endpoint({"image": PICTURE}, BOTH)
        ticket.hand_over()

    assert len(echo.asked) == runs


# --- what is kept


def test_nothing_done_to_an_array_outside_changes_what_is_kept() -> None:
    shared = PICTURE.copy()  # the next request is written over this one
    endpoint = CachedEndpoint("udnie", Echo(), Cache(PLENTY))
    first = endpoint({"image": shared[:]}, BOTH)
    first["image"] += 1
    shared[:] = PICTURE

    second = endpoint({"image": PICTURE}, BOTH)
    with pytest.raises(ValueError, match="read-only"):
        second["image"] += 1
    second.clear()

    third = endpoint({"image": PICTURE}, BOTH)
    assert (third["image"] == PICTURE).all()
    assert third["image"].base is None


def test_what_was_not_used_for_longest_makes_room() -> None:
    cache = Cache(3 * (100 + ENTRY_BYTES))
    for key in (b"a", b"b", b"c"):
        cache.keep(key, pixels(100))
    assert cache.get(b"a")

    cache.keep(b"d", pixels(100))
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.get(key)] == [b"a", b"c", b"d"]

    cache.keep(b"e", {"a": file(b"x" * (200 + ENTRY_BYTES - 8))})
    assert [key for key in (b"a", b"c", b"d", b"e") if cache.get(key)] == [b"d", b"e"]


@pytest.mark.parametrize("kind", ["pixels", "files"])
@pytest.mark.parametrize(("excess", "kept"), [(0, True), (1, False)])
def test_an_answer_larger_than_the_cache_is_not_kept_and_forgets_nothing(
    kind: str, excess: int, kept: bool
) -> None:
    cache = Cache(1000 + ENTRY_BYTES)
    cache.keep(b"a", {})
    size = 1000 + excess
    large = pixels(size) if kind == "pixels" else {"a": file(b"x" * (size - 8))}

    cache.keep(b"b", large)

    assert (cache.get(b"b") is not None) is kept
    assert (cache.get(b"a") is not None) is not kept


def test_eight_threads_get_their_own_answers() -> None:
    cache = Cache(20 * (500 + ENTRY_BYTES))
    endpoint = CachedEndpoint("udnie", Echo(), cache)

    def work(seed: int) -> bool:
        values = np.random.default_rng(seed).integers(0, 40, 500)
        answers = (endpoint({"a": np.full(500, value, np.uint8)}, []) for value in values)
        pairs = zip(answers, values, strict=True)
        return all((answer["a"] == value).all() for answer, value in pairs)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert 0 < cache._answers.currsize <= cache._answers.maxsize


# --- metrics


def test_hits_and_misses_are_counted_for_each_model(ticket: Ticket) -> None:
    cache = Cache(PLENTY)
    for model, times in (("udnie", 3), ("candy", 1)):
        for _ in range(times):
            CachedEndpoint(model, Echo(), cache)({"image": PICTURE}, BOTH)

    told = ticket.hand_over()
    grown = {
        (name, model): sum(value for *key, value in told if key == [name, {"model": model}])
        for name in ("styleserve_cache_hit", "styleserve_cache_miss")
        for model in ("udnie", "candy")
    }
    assert list(grown.values()) == [2, 0, 1, 1]
    assert len(told) == 8  # a zero makes a counter exist
