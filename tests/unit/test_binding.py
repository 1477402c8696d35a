"""What answers a worker, and the model of Triton that it belongs to."""

import contextvars
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytriton.decorators import TritonContext
from pytriton.model_config import Tensor
from pytriton.utils.workspace import Workspace

from styleserve import channel
from styleserve.binding import Binding, BoundModel
from styleserve.channel import Caller, Error, Reply
from styleserve.endpoint import Answer, Endpoint, Tensors
from styleserve.errors import HIDDEN, InferenceError, RequestError
from styleserve.ticket import CURRENT, IS_OVER, Ticket

PATIENCE_S = 10.0
IMAGES = [Tensor(name="image", dtype=np.uint8, shape=(-1, -1, 3))]


def same(tensors: Tensors, outputs: list[str]) -> Answer:
    return {output: tensors["image"] for output in outputs}


def binding(endpoint: Endpoint, ticket: Ticket | None = None) -> Binding:
    return Binding("udnie", endpoint, ticket or Ticket())


def ask(made: Binding, tensors: Tensors | None = None, *outputs: str) -> Reply:
    """Call it as its desk's thread does, which has a context of its own."""
    return contextvars.copy_context().run(made, tensors or {}, list(outputs))


def test_a_request_gets_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "styleserve"):
        reply = ask(binding(same), {"image": np.ones((2, 3, 3), np.uint8)}, "x")

    assert reply.answer["x"].shape == (2, 3, 3)
    assert (reply.error, reply.figures) == (None, [])
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


@pytest.mark.parametrize(
    ("failure", "error", "level"),
    [
        (RequestError("send more"), Error("send more", is_callers=True), logging.DEBUG),
        (RequestError("one\n  two"), Error("one two", is_callers=True), logging.DEBUG),
        (InferenceError("no room"), Error("no room", is_callers=False), logging.ERROR),
        (KeyError("/srv/secret"), Error(HIDDEN, is_callers=False), logging.ERROR),
        (OSError("RequestError: x"), Error(HIDDEN, is_callers=False), logging.ERROR),
        (MemoryError(), Error(HIDDEN, is_callers=False), logging.ERROR),
    ],
)
def test_failures_keep_their_kind_and_are_logged_once(
    caplog: pytest.LogCaptureFixture, failure: Exception, error: Error, level: int
) -> None:
    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        raise failure

    with caplog.at_level(logging.DEBUG, "styleserve"):
        reply = ask(binding(endpoint))

    assert (reply.answer, reply.error) == ({}, error)
    (record,) = caplog.records
    assert (record.levelno, record.levelno == logging.ERROR) == (level, bool(record.exc_info))
    assert "udnie" in record.getMessage()


@pytest.mark.parametrize("failure", [None, RequestError("no"), KeyError("x")])
def test_a_binding_is_busy_while_it_answers(failure: Exception | None) -> None:
    seen: list[bool] = []

    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        seen.append(made.is_busy)
        if failure:
            raise failure
        return {}

    made = binding(endpoint)
    ask(made)

    assert seen == [True]
    assert not made.is_busy


@pytest.mark.parametrize("failure", [None, RequestError("no")])
def test_the_figures_of_a_request_go_with_its_answer(failure: Exception | None) -> None:
    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        CURRENT.get().add("seconds", 0.5, node="mask")
        if failure:
            raise failure
        return {}

    made = binding(endpoint)

    for _ in range(2):
        assert ask(made).figures == [("seconds", {"node": "mask"}, 0.5)]


def test_an_endpoint_can_ask_whether_its_caller_has_gone() -> None:
    gone = iter([False, True])
    seen: list[bool] = []

    def endpoint(tensors: Tensors, outputs: list[str]) -> Answer:
        seen.append(IS_OVER.get()())
        return {}

    made = binding(endpoint, Ticket(lambda: next(gone)))
    ask(made)
    ask(made)

    assert seen == [False, True]


# --- the model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BoundModel:
    monkeypatch.setattr(channel, "SHM", tmp_path)
    context: dict[str, Any] = {
        "workspace": Workspace(tmp_path / "home"),
        "triton_context": TritonContext(),
    }
    return BoundModel("udnie", [same, same], IMAGES, IMAGES, 7, **context)


def test_a_model_answers_each_of_its_workers_and_lives_as_long_as_they(
    model: BoundModel, tmp_path: Path
) -> None:
    callers = [Caller(tmp_path / "home", f"udnie_{worker}") for worker in (0, 1)]
    model.setup()
    for value, caller in enumerate(callers):
        caller.send({"image": np.full((1, 1, 3), value, np.uint8)}, ["image"])
        assert caller.receive().answer["image"].tolist() == [[[value] * 3]]
    assert model.is_alive()

    callers[1]._connection.close()
    model._desks[1].join(PATIENCE_S)
    assert not model.is_alive()

    model.clean()
    model._desks[0].join(PATIENCE_S)
    assert not any(desk.is_alive() for desk in model._desks)
