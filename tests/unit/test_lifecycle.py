"""Restarts, giving up and an orderly stop, with a stand-in for the server."""

import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from styleserve import lifecycle
from styleserve.settings import ServerSettings, load
from styleserve.triton import StartError


class Scene:
    """Makes servers, each of which goes through what `acts` says in turn; the last one for good."""

    def __init__(self, acts: list[Callable[["FakeServer"], None]]) -> None:
        self.acts = acts
        self.servers: list[FakeServer] = []
        self.stop = threading.Event()

    def __call__(
        self, catalog: object, settings: ServerSettings, stop: threading.Event
    ) -> "FakeServer":
        assert stop is self.stop
        self.servers.append(FakeServer(self))
        return self.servers[-1]


class FakeServer:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.whole = True
        self.calls: list[str] = []

    def start(self) -> None:
        acts = self.scene.acts
        acts[min(len(self.scene.servers), len(acts)) - 1](self)

    def is_whole(self) -> bool:
        return self.whole

    def stop(self) -> None:
        self.calls.append("stop")

    def kill(self) -> None:
        self.calls.append("kill")

    def release(self) -> None:
        self.calls.append("release")


def die(server: FakeServer) -> None:
    server.whole = False


def fail_to_start(server: FakeServer) -> None:
    raise StartError("it did not start")


def be_stopped(server: FakeServer) -> None:
    server.scene.stop.set()


def be_stopped_in_the_start(server: FakeServer) -> None:
    server.scene.stop.set()
    raise StartError("it was asked to stop")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[bool, Scene]]:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    monkeypatch.setattr(lifecycle, "WATCH_PERIOD_S", 0)
    monkeypatch.setattr(lifecycle, "_raise_stack_limit", lambda: None)

    def play(*acts: Callable[[FakeServer], None]) -> tuple[bool, Scene]:
        scene = Scene(list(acts))
        monkeypatch.setattr(lifecycle, "Server", scene)
        orderly = lifecycle.run({}, load(["--cache-dir", str(tmp_path / "cache")]), scene.stop)
        assert all(server.calls.count("release") == 1 for server in scene.servers)
        return orderly, scene

    return play


Run = Callable[..., tuple[bool, Scene]]


@pytest.mark.parametrize("act", [be_stopped, be_stopped_in_the_start])
def test_an_orderly_stop_restarts_nothing_and_is_no_error(
    run: Run, act: Callable[[FakeServer], None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "styleserve"):
        orderly, scene = run(act)

    assert orderly
    assert len(scene.servers) == 1
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert "stop" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("act", "reason"),
    [(die, "a process of Triton has died, restarting it"), (fail_to_start, "it did not start")],
)
def test_what_died_is_restarted_and_its_reason_told(
    run: Run, act: Callable[[FakeServer], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    orderly, scene = run(act, act, be_stopped)

    assert orderly
    assert len(scene.servers) == 3
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [reason] * 2


def test_a_stop_before_the_start_starts_nothing(run: Run) -> None:
    stop = threading.Event()
    stop.set()

    assert lifecycle.run({}, load([]), stop)


def test_it_gives_up_after_five_restarts(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    orderly, scene = run(die)

    assert not orderly
    assert len(scene.servers) == 1 + 5
    assert "giving up: 5 restarts in 600 s" in caplog.messages


def test_a_stop_after_five_restarts_is_orderly(run: Run) -> None:
    orderly, scene = run(die, die, die, die, die, be_stopped)

    assert len(scene.servers) == 6
    assert orderly


def test_old_restarts_are_forgotten(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 121))  # five of these are more than ten minutes
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))

    orderly, scene = run(*[die] * 20, be_stopped)

    assert orderly
    assert len(scene.servers) == 21


def test_the_window_is_ten_minutes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 119))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))

    orderly, scene = run(*[die] * 20, be_stopped)

    assert not orderly
    assert len(scene.servers) == 6


@pytest.mark.parametrize(
    ("act", "ends"),
    [
        (die, ["kill", "stop", "kill", "release"]),
        (fail_to_start, ["stop", "kill", "release"]),
        (be_stopped, ["stop", "kill", "release"]),
    ],
)
def test_nothing_of_a_server_outlives_it_and_what_lost_a_process_is_killed_at_once(
    run: Run, act: Callable[[FakeServer], None], ends: list[str]
) -> None:
    def look(server: FakeServer) -> None:
        assert server.scene.servers[0].calls == ends  # before the next one starts
        be_stopped(server)

    _, scene = run(act, look)

    assert scene.servers[0].calls == ends


def test_files_are_released_even_if_we_fail(run: Run) -> None:
    servers: list[FakeServer] = []

    def fail(server: FakeServer) -> None:
        servers.append(server)
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        run(fail)

    assert servers[0].calls == ["stop", "kill", "release"]


def test_the_server_finds_this_pythons_library(run: Run) -> None:
    run(be_stopped)

    assert os.environ["LD_LIBRARY_PATH"].endswith(":/before")


@pytest.mark.parametrize(
    ("hard", "soft", "warned"),
    [
        (resource.RLIM_INFINITY, 512 << 20, False),
        (1 << 40, 512 << 20, False),
        (512 << 20, 512 << 20, False),
        (64 << 20, 64 << 20, True),
    ],
)
def test_the_stack_is_raised_as_far_as_allowed(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hard: int,
    soft: int,
    warned: bool,
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8 << 20, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, values: limits.append(values))

    lifecycle._raise_stack_limit()

    assert limits == [(soft, hard)]
    told = (
        "JSON bodies of up to 32 MiB" in caplog.text
        and "raise `ulimit -Hs` to 524288" in caplog.text
    )
    assert told is warned
