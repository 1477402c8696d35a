"""Both ends of a channel, in one process."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from styleserve import channel
from styleserve.channel import Caller, Desk, Error, Reply
from styleserve.mailbox import KEPT_BYTES, FullError, Outbox, Tensors
from tests.pictures import noise

PATIENCE_S = 10.0
LARGE = np.zeros(KEPT_BYTES + 4096, np.uint8)

Call = Callable[[Tensors, list[str]], Reply]
Open = Callable[[Call], tuple[Caller, Desk]]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Make both ends, of which the desk answers with what is given."""
    monkeypatch.setattr(channel, "SHM", tmp_path)
    desks: list[Desk] = []

    def both(call: Call) -> tuple[Caller, Desk]:
        desk = Desk(tmp_path, "dots_0")
        desk.serve(call)
        desks.append(desk)
        return Caller(tmp_path, "dots_0"), desk

    yield both
    for desk in desks:
        desk.close()
        desk.join(PATIENCE_S)


def echo(tensors: Tensors, outputs: list[str]) -> Reply:
    return Reply(tensors, None, [])


def ask(caller: Caller, tensors: Tensors) -> Reply:
    caller.send(tensors, [])
    return caller.receive()


def used(path: Path) -> int:
    return 512 * path.stat().st_blocks


TENSORS: dict[str, Any] = {
    "picture": noise(7, 5),
    "crop": noise(9, 9)[2:7, 1:4],
    "large": noise(2000, 1500),
    "strength": np.array([0.25], np.float32),
    "flag": np.array([True]),
    "side": np.array([-3], np.int32),
    "file": np.array([b"\x00\xff"], np.object_),
    "names": np.array([[b"a", b""], [b"xyz" * 9, "größe".encode()]], np.object_),
    "none": np.empty((0, 3), np.uint8),
    "no names": np.empty(0, np.object_),
}


@pytest.mark.parametrize("name", TENSORS)
def test_what_is_put_is_what_comes(opened: Open, name: str) -> None:
    caller, _ = opened(echo)

    answer = ask(caller, {name: TENSORS[name]}).answer[name]

    assert (answer.dtype, answer.shape) == (TENSORS[name].dtype, TENSORS[name].shape)
    assert np.array_equal(answer, TENSORS[name])


def test_many_tensors_lie_side_by_side_and_are_used_again(opened: Open) -> None:
    caller, _ = opened(echo)

    for _ in range(3):
        answer = ask(caller, TENSORS).answer
        assert list(answer) == list(TENSORS)
        assert all(np.array_equal(answer[name], TENSORS[name]) for name in TENSORS)


def test_the_call_gets_the_names_of_the_outputs_and_only_looks(opened: Open) -> None:
    seen: list[Any] = []

    def look(tensors: Tensors, outputs: list[str]) -> Reply:
        seen.extend((outputs, tensors["picture"].flags.writeable))
        return Reply({}, None, [("hit", {"model": "dots"}, 1)])

    caller, _ = opened(look)
    caller.send({"picture": noise(3, 3)}, ["styled", "names"])

    assert caller.receive() == Reply({}, None, [["hit", {"model": "dots"}, 1]])
    assert seen == [["styled", "names"], False]


def test_an_error_comes_as_it_is(opened: Open) -> None:
    error = Error('größe "x"', is_callers=True)
    caller, _ = opened(lambda *_: Reply({}, error, []))

    assert ask(caller, {}).error == error


@pytest.mark.parametrize("side", ["requests", "answers"])
def test_what_a_large_picture_took_is_given_back(opened: Open, tmp_path: Path, side: str) -> None:
    caller, _ = opened(lambda *_: Reply({"a": LARGE} if side == "answers" else {}, None, []))
    file = tmp_path / f"{tmp_path.name}-dots_0.{side}"
    sent = {"a": LARGE} if side == "requests" else {}
    peaks = []

    for tensors in (sent, sent):
        caller.send(tensors, [])
        if side == "requests":
            peaks.append(used(file))
        answer = caller.receive().answer
        if side == "answers":
            peaks.append(used(file))
            assert answer["a"].size == LARGE.size

    assert min(peaks) >= LARGE.size
    if side == "requests":
        assert used(file) <= KEPT_BYTES


def test_after_a_large_answer_a_small_one_is_kept_alone(opened: Open, tmp_path: Path) -> None:
    sizes = iter([LARGE, LARGE[:9]])
    caller, _ = opened(lambda *_: Reply({"a": next(sizes)}, None, []))

    ask(caller, {})
    ask(caller, {})

    assert used(tmp_path / f"{tmp_path.name}-dots_0.answers") <= KEPT_BYTES


def refuse(file: int, start: int, size: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_request_that_memory_cannot_take_is_refused_and_the_next_one_goes(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, _ = opened(echo)
    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(FullError, match="100 bytes: No space left"):
            caller.send({"a": LARGE[:100]}, [])

    assert ask(caller, {"a": LARGE[:100]}).answer["a"].size == 100


def test_an_answer_that_memory_cannot_take_is_an_error_of_the_server(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def grow(tensors: Tensors, outputs: list[str]) -> Reply:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        return Reply({"a": LARGE[:100]}, None, [("hit", {}, 1)])

    caller, _ = opened(grow)
    answer, error, figures = ask(caller, {})

    assert (answer, error) == ({}, Error(FullError.MESSAGE, is_callers=False))
    assert len(figures) == 1
    assert "desk of dots_0: the server's shared memory is full" in caplog.text


def test_who_makes_the_answer_learns_that_nobody_waits(opened: Open) -> None:
    seen: list[bool] = []
    begun = threading.Event()

    def wait(tensors: Tensors, outputs: list[str]) -> Reply:
        seen.append(desk.is_gone())
        begun.set()
        deadline = time.monotonic() + (PATIENCE_S if "long" in tensors else 0)
        while not desk.is_gone() and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(desk.is_gone())
        return Reply({}, None, [])

    caller, desk = opened(wait)
    caller.send({"long": LARGE[:1]}, [])
    begun.wait(PATIENCE_S)
    caller.withdraw()
    caller.receive()
    ask(caller, {})

    assert seen == [False, True, False, False]  # the next request starts anew


def test_a_withdrawal_that_comes_too_late_is_no_request(opened: Open) -> None:
    caller, _ = opened(echo)
    ask(caller, {"a": LARGE[:3]})
    caller.withdraw()

    assert ask(caller, {"a": LARGE[:5]}).answer["a"].size == 5


@pytest.mark.parametrize("when", ["before it came", "idle", "busy"])
def test_a_desk_that_is_closed_ends(tmp_path: Path, opened: Open, when: str) -> None:
    begun = threading.Event()

    def wait(tensors: Tensors, outputs: list[str]) -> Reply:
        begun.set()
        deadline = time.monotonic() + PATIENCE_S
        while not desk.is_gone() and time.monotonic() < deadline:
            time.sleep(0.01)
        return Reply({}, None, [])

    if when == "before it came":
        desk = Desk(tmp_path, "alone_0")
        desk.serve(wait)
    else:
        caller, desk = opened(wait)
        if when == "busy":
            caller.send({}, [])
            begun.wait(PATIENCE_S)
    assert desk.is_alive()

    desk.close()
    desk.join(PATIENCE_S)

    assert not desk.is_alive()
    desk.close()


def test_a_desk_that_has_ended_holds_no_file_open(tmp_path: Path, opened: Open) -> None:
    def held() -> list[str]:
        links = (file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink())
        return [str(link) for link in links if "socket:" in str(link) or "dots_0" in str(link)]

    before = len(held())
    caller, desk = opened(echo)
    ask(caller, TENSORS)
    assert len(held()) > before
    for end in (caller._connection, caller._outbox, caller._inbox):
        end.close()
    desk.join(PATIENCE_S)

    assert len(held()) == before


def test_a_desk_ends_with_its_worker(opened: Open) -> None:
    caller, desk = opened(echo)
    ask(caller, {})
    caller._connection.close()
    desk.join(PATIENCE_S)

    assert not desk.is_alive()
    assert desk.is_gone()


def test_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    Outbox(tmp_path / "x.requests").put({"a": LARGE[:1]})

    assert (tmp_path / "x.requests").stat().st_mode & 0o777 == 0o600
