"""The endpoints as Triton models, without Triton: tensors, errors, configuration."""

import json
import logging
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytriton.proxy.types import Request

from styleserve import machine, serving
from styleserve.catalog import Stylizer
from styleserve.endpoint import Answer, CatalogEndpoint, Endpoint, Limits, StyleEndpoint, Tensors
from styleserve.errors import InferenceError, RequestError
from styleserve.image import Image
from styleserve.serving import Server
from styleserve.settings import load
from styleserve.ticket import CURRENT, Ticket
from tests.pictures import noise, png


class Same:
    def __call__(self, image: Image, max_side: int) -> Image:
        return image

    def describe(self) -> dict[str, Any]:
        return {}


# --- the declared tensors are those of the API contract, and those that the endpoints know


def declared(tensors: tuple[Any, ...]) -> dict[str, tuple[Any, tuple[int, ...], bool]]:
    return {each.name: (each.dtype, tuple(each.shape), bool(each.optional)) for each in tensors}


def test_a_style_declares_the_contract() -> None:
    assert declared(serving.STYLE_INPUTS) == {
        "image": (np.uint8, (-1, -1, 3), True),
        "strength": (np.float32, (1,), True),
        "keep_color": (np.bool_, (1,), True),
        "max_side": (np.int32, (1,), True),
        "encoded": (bytes, (1,), True),
    }
    assert serving.STYLE_INPUTS[0].name == "image"
    assert serving.STYLE_OUTPUTS[0].name == "styled_image"
    assert [each.name for each in serving.CATALOG_INPUTS] == ["name"]


@pytest.mark.parametrize("given", ["image", "encoded"])
def test_the_answers_of_a_style_are_declared(given: str) -> None:
    tensor = {"image": noise(4, 5), "encoded": np.array([png(noise(4, 5))], np.object_)}[given]
    names = [each.name for each in serving.STYLE_OUTPUTS]

    answer = StyleEndpoint(Same(), Limits(0, 100))({given: tensor}, names)

    assert_declared(answer, serving.STYLE_OUTPUTS)


def test_the_answers_of_the_catalog_are_declared() -> None:
    catalog: dict[str, Stylizer] = {"a": Same(), "b": Same()}
    names = [each.name for each in serving.CATALOG_OUTPUTS]

    answer = CatalogEndpoint(catalog)({}, names)

    assert list(answer) == names
    assert_declared(answer, serving.CATALOG_OUTPUTS)


def assert_declared(answer: Answer, outputs: tuple[Any, ...]) -> None:
    known = declared(outputs)
    for name, array in answer.items():
        dtype, shape, _ = known[name]
        assert array.dtype == (np.uint8 if dtype == np.uint8 else np.object_)
        assert len(array.shape) == len(shape)
        assert all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))


# --- what PyTriton calls


def call(endpoint: Endpoint, *requests: dict[str, Any]) -> list[Answer]:
    wrapped = [Request(data=data, requested_output_names=["x"]) for data in requests]
    return serving._Callable("udnie", endpoint, Ticket())(wrapped)


def test_every_request_gets_its_answer_in_order(caplog: pytest.LogCaptureFixture) -> None:
    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        return {**tensors, "asked": np.array(outputs)}

    with caplog.at_level(logging.DEBUG, "styleserve"):
        first, second = call(endpoint, {"n": np.array(1)}, {"n": np.array(2)})

    assert [first["n"].item(), second["n"].item()] == [1, 2]
    assert first["asked"].tolist() == ["x"]
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2


@pytest.mark.parametrize(
    ("failure", "seen_as", "level"),
    [
        (RequestError("send more"), RequestError("send more"), logging.DEBUG),
        (InferenceError("no room"), InferenceError("no room"), logging.ERROR),
        (KeyError("/srv/secret"), InferenceError("the server failed inside"), logging.ERROR),
        (MemoryError(), InferenceError("the server failed inside"), logging.ERROR),
    ],
)
def test_failures_keep_their_kind_and_are_logged_once(
    caplog: pytest.LogCaptureFixture, failure: Exception, seen_as: Exception, level: int
) -> None:
    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        raise failure

    with (
        caplog.at_level(logging.DEBUG, "styleserve"),
        pytest.raises(type(seen_as), match=str(seen_as)) as caught,
    ):
        call(endpoint, {})

    assert "secret" not in str(caught.value)
    (record,) = caplog.records
    assert (record.levelno, record.levelno == logging.ERROR) == (level, bool(record.exc_info))
    assert "udnie" in record.getMessage()


@pytest.mark.parametrize("text", [[b"x" * 60, b"y" * 40], None], ids=["files", "pixels"])
@pytest.mark.parametrize(("free", "fits"), [(100, True), (99, False)])
def test_an_answer_that_shared_memory_cannot_take_is_our_failure(
    monkeypatch: pytest.MonkeyPatch, text: list[bytes] | None, free: int, fits: bool
) -> None:
    values = np.zeros(100, np.uint8) if text is None else np.array(text, np.object_)
    monkeypatch.setattr(machine, "free_shm", lambda: free)
    expected = nullcontext() if fits else pytest.raises(InferenceError, match="enlarge /dev/shm")

    with expected:
        assert call(lambda *_: {"a": values}, {}) == [{"a": values}]


@pytest.mark.parametrize("failure", [None, RequestError("no")])
def test_a_callable_is_busy_while_it_answers(failure: Exception | None) -> None:
    seen: list[bool] = []

    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        seen.append(callable_.is_busy)
        if failure:
            raise failure
        return {}

    callable_ = serving._Callable("udnie", endpoint, Ticket())
    with suppress(RequestError):
        callable_([Request(data={})])

    assert seen == [True]
    assert not callable_.is_busy


@pytest.mark.parametrize("failure", [None, RequestError("no")])
def test_the_figures_of_a_request_are_handed_over_before_its_answer(
    tmp_path: Path, failure: Exception | None
) -> None:
    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        CURRENT.get().add("seconds", 0.5, node="mask")
        if failure:
            raise failure
        return {}

    with suppress(RequestError):
        serving._Callable("painted", endpoint, Ticket(tmp_path, 1))([Request(data={})])

    told = json.loads((tmp_path / "1.figures").read_text())
    assert told == [["seconds", {"node": "mask"}, 0.5]]


# --- configuration


def test_triton_gets_every_model_with_its_queue_and_our_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SHM", tmp_path / "shm")
    flags = ("--cache-dir", str(tmp_path), "--queue-size", "7")
    catalog: dict[str, Stylizer] = {"udnie": Same(), "candy": Same()}

    server = Server(catalog, load(flags), threading.Event())

    names = {folder.name for folder in server.store("candy").parent.iterdir()}
    assert names == {"candy", "catalog", "udnie"}
    assert [call.is_busy for call in server._calls()] == [False] * 5  # two for each style
    configs = {name: (server.store(name) / "config.pbtxt").read_text() for name in names}
    assert all("max_queue_size: 7 " in text for text in configs.values())
    assert not any(str(tmp_path) in text for text in configs.values())  # anybody may read them
    for name in names:
        worker, original = (
            server.store(name) / "1" / f"{file}.py" for file in ("model", "pytriton_model")
        )
        assert worker.read_bytes() == Path(serving.__file__).with_name("worker.py").read_bytes()
        assert "class TritonPythonModel" in original.read_text()
    server.release()
    assert [path.name for path in tmp_path.rglob("*")] == ["shm"]


@pytest.mark.parametrize(("cache_mb", "runs"), [("0", 4), ("5", 2)])
def test_all_workers_of_a_style_share_the_cache_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_mb: str, runs: int
) -> None:
    monkeypatch.setattr(machine, "SHM", tmp_path / "shm")
    seen: list[Image] = []

    class Counting(Same):
        def __call__(self, image: Image, max_side: int) -> Image:
            seen.append(image)
            return image

    catalog: dict[str, Stylizer] = {"udnie": Counting(), "candy": Counting()}
    server = Server(
        catalog, load(["--cache-dir", str(tmp_path), "--cache-mb", cache_mb]), threading.Event()
    )

    picture = noise(4, 5)
    *styles, listing = server._calls()
    answers = [answer for style in styles for answer in style([Request(data={"image": picture})])]

    assert len(seen) == runs
    assert len(answers) == 4
    assert all(np.array_equal(answer["styled_image"], picture) for answer in answers)
    assert "names" in listing([Request(data={})])[0]
    server.release()
