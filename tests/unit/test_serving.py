"""The endpoints as Triton models, without Triton: tensors and configuration."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from styleserve import binding, channel, machine, serving
from styleserve.catalog import Stylizer
from styleserve.endpoint import Answer, CatalogEndpoint, Limits, StyleEndpoint
from styleserve.image import Image
from styleserve.serving import Server
from styleserve.settings import load
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


# --- configuration


@contextmanager
def bound(
    catalog: dict[str, Stylizer], folder: Path, monkeypatch: pytest.MonkeyPatch, *flags: str
) -> Iterator[Server]:
    for module in (machine, channel):
        monkeypatch.setattr(module, "SHM", folder / "shm")
    settings = load(("--cache-dir", str(folder), *flags))
    server = Server(catalog, settings, threading.Event())
    yield server
    server.kill()
    server.release()
    assert [path.name for path in folder.rglob("*")] == ["shm"]


def test_triton_gets_every_model_with_its_queue_and_our_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog: dict[str, Stylizer] = {"udnie": Same(), "candy": Same()}

    with bound(catalog, tmp_path, monkeypatch, "--queue-size", "7") as server:
        folders = {path.name: path for path in server.store("candy").parent.iterdir()}
        assert set(folders) == {"candy", "catalog", "udnie"}
        assert [call.is_busy for call in server._calls()] == [False] * 5  # two for each style
        configs = [(folder / "config.pbtxt").read_text() for folder in folders.values()]
        assert all("max_queue_size: 7 " in text for text in configs)
        assert not any(str(tmp_path) in text for text in configs)  # anybody may read them
        source = Path(serving.__file__).parent
        for folder in folders.values():
            code = {path.name: path.read_text() for path in (folder / "1").iterdir()}
            assert code == {
                name: (source / file).read_text() for file, name in binding.FILES.items()
            }


@pytest.mark.parametrize(("cache_mb", "runs"), [("0", 4), ("5", 2)])
def test_all_workers_of_a_style_share_the_cache_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_mb: str, runs: int
) -> None:
    seen: list[Image] = []

    class Counting(Same):
        def __call__(self, image: Image, max_side: int) -> Image:
            seen.append(image)
            return image

    catalog: dict[str, Stylizer] = {"udnie": Counting(), "candy": Counting()}
    picture = noise(4, 5)
    with bound(catalog, tmp_path, monkeypatch, "--cache-mb", cache_mb) as server:
        *styles, listing = server._calls()
        answers = [
            copy_context().run(style, {"image": picture}, ["styled_image"]).answer
            for style in styles
        ]

        assert len(seen) == runs
        assert len(answers) == 4
        assert all(np.array_equal(answer["styled_image"], picture) for answer in answers)
        assert "names" in copy_context().run(listing, {}, ["names"]).answer
