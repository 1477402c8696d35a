"""Calls to a server: what each failure becomes, and patience while it is busy."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from styleserve import remote
from styleserve.errors import RemoteError, RequestError, StyleServeError
from styleserve.remote import Options, Remote

PICTURE = np.zeros((2, 3, 3), np.uint8)


class Answers:
    """Takes the place of tritonclient's client: gives or raises what it was told, in turn."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, list[int]]]] = []

    def __call__(self, *_: object, **__: object) -> "Answers":
        return self

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def infer(self, model: str, tensors: list[Any], outputs: list[Any]) -> Any:  # noqa: ANN401
        self.requests.append((model, {tensor.name(): tensor.shape() for tensor in tensors}))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Picture:
    def as_numpy(self, name: str) -> Any:  # noqa: ANN401
        return PICTURE if name == "styled_image" else np.array([b"file"], np.object_)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answers]:
    def prepare(*answers: object) -> Answers:
        prepared = Answers(*answers)
        monkeypatch.setattr("tritonclient.http.InferenceServerClient", prepared)
        monkeypatch.setattr(remote, "RETRY_PAUSES_S", (0, 0, 0))
        return prepared

    return prepare


BUSY = InferenceServerException("Exceeds maximum queue size", status="503")


def test_a_busy_server_is_asked_again(answer: Callable[..., Answers]) -> None:
    answers = answer(BUSY, BUSY, Picture())
    assert np.array_equal(Remote("host:1").stylise(PICTURE, "dots"), PICTURE)
    assert len(answers.requests) == 3


def test_patience_has_an_end(answer: Callable[..., Answers]) -> None:
    answers = answer(*[BUSY] * 9)
    with pytest.raises(RemoteError, match="busy"):
        Remote("host:1").stylise(PICTURE, "dots")
    assert len(answers.requests) == 4


@pytest.mark.parametrize(
    ("failure", "kind", "told"),
    [
        (InferenceServerException("strength must be", status="400"), RequestError, "strength"),
        (InferenceServerException("'x' is not found", status="404"), RequestError, "not found"),
        (InferenceServerException("it failed", status="500"), RemoteError, "failed: it failed"),
        (ConnectionRefusedError(111, "Connection refused"), RemoteError, "http://host:1 cannot be"),
        (socket.gaierror(-2, "Name or service not known"), RemoteError, "STYLESERVE_URL"),
        (TimeoutError(), RemoteError, "within 7 s"),
    ],
)
def test_each_failure_is_one_sentence(
    answer: Callable[..., Answers], failure: Exception, kind: type[StyleServeError], told: str
) -> None:
    answers = answer(failure)
    with pytest.raises(kind, match=told) as caught:
        Remote("http://host:1", timeout_s=7).stylise(PICTURE, "dots")
    assert len(answers.requests) == 1
    assert caught.value.__cause__ is failure


def test_options_are_sent(answer: Callable[..., Answers]) -> None:
    answers = answer(Picture(), Picture())
    Remote("host:1").stylise(PICTURE, "dots", Options(0.5, True, 300))
    Remote("host:1").stylise_file(b"photo", "dots")
    options = {"strength": [1], "keep_color": [1]}
    assert answers.requests == [
        ("dots", {"image": [2, 3, 3], **options, "max_side": [1]}),
        ("dots", {"encoded": [1], **options}),
    ]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken: list[socket.socket] = []
        thread = threading.Thread(target=lambda: taken.append(listening.accept()[0]))
        thread.start()
        yield listening.getsockname()[1]
        thread.join()
        for connection in taken:
            connection.close()


def test_a_server_that_never_answers_is_left_in_time(silent: int) -> None:
    start = time.monotonic()
    with pytest.raises(RemoteError, match="within 1 s"):
        Remote(f"http://127.0.0.1:{silent}", timeout_s=1).styles()
    assert time.monotonic() - start < 10


def test_a_server_that_is_not_there_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert Remote(f"127.0.0.1:{port}").is_ready() is False
