"""Restarts, giving up and an orderly stop, with a stand-in for the server."""

import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest

from styleserve import lifecycle, machine
from styleserve.serving import StartError
from styleserve.settings import ServerSettings

VALUES: dict[str, Any] = {"cache_dir": "nowhere"}
SETTINGS = ServerSettings(**VALUES)


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
        self.workspace = Path("nowhere/styleserve-0")
        self.alive = True
        self.worker_status = psutil.STATUS_SLEEPING
        self.fails_to_start = self.lists_no_workers = False
        self.stops = 0

    def run(self) -> None:
        acts = self.scene.acts
        acts[min(len(self.scene.servers), len(acts)) - 1](self)
        if self.fails_to_start:
            raise StartError("it did not start")

    def is_alive(self) -> bool:
        return self.alive

    def workers(self) -> list[Any]:
        if self.lists_no_workers:
            raise psutil.NoSuchProcess(4711)
        return [SimpleNamespace(status=lambda: self.worker_status)]

    def stop(self) -> None:
        self.stops += 1


def die(server: FakeServer) -> None:
    server.alive = False


def lose_a_worker(server: FakeServer) -> None:
    server.worker_status = psutil.STATUS_ZOMBIE


def fail_to_start(server: FakeServer) -> None:
    server.fails_to_start = True


def vanish(server: FakeServer) -> None:
    server.alive = False
    server.lists_no_workers = True


def be_stopped(server: FakeServer) -> None:
    server.scene.stop.set()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, Scene]]:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    monkeypatch.setattr(lifecycle, "WATCH_PERIOD_S", 0)
    monkeypatch.setattr(lifecycle, "_raise_stack_limit", lambda: None)
    monkeypatch.setattr(machine, "clean_leftovers", lambda cache_dir: [])

    def play(*acts: Callable[[FakeServer], None]) -> tuple[bool, Scene]:
        scene = Scene(list(acts))
        monkeypatch.setattr(lifecycle, "Server", scene)
        orderly = lifecycle.run({}, SETTINGS, scene.stop)
        assert all(server.stops == 1 for server in scene.servers)
        return orderly, scene

    return play


Run = Callable[..., tuple[bool, Scene]]


def test_an_orderly_stop_restarts_nothing(run: Run) -> None:
    orderly, scene = run(be_stopped)

    assert orderly
    assert len(scene.servers) == 1


def test_a_stop_before_the_start_starts_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()

    assert lifecycle.run({}, SETTINGS, stop)


@pytest.mark.parametrize("act", [die, lose_a_worker, fail_to_start])
def test_what_died_is_restarted(
    run: Run, act: Callable[[FakeServer], None], caplog: pytest.LogCaptureFixture
) -> None:
    orderly, scene = run(act, act, be_stopped)

    assert orderly
    assert len(scene.servers) == 3
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 2


@pytest.mark.xfail(strict=True, raises=psutil.NoSuchProcess, reason="ends the program")
def test_what_died_right_after_the_start_is_restarted(run: Run) -> None:
    orderly, scene = run(vanish, be_stopped)

    assert orderly
    assert len(scene.servers) == 2


def test_it_gives_up_after_five_restarts(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    orderly, scene = run(die)

    assert not orderly
    assert len(scene.servers) == 1 + 5
    assert "giving up: 5 restarts in 600 s" in caplog.messages


@pytest.mark.xfail(strict=True, reason="an orderly stop is counted as one more death")
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


def test_the_workspace_goes_with_the_server(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fill(server: FakeServer) -> None:
        server.workspace = tmp_path / "workspace"
        (server.workspace / "model-store").mkdir(parents=True)
        be_stopped(server)

    run(fill)

    assert list(tmp_path.iterdir()) == []


def test_the_server_finds_this_pythons_library(run: Run) -> None:
    run(be_stopped)

    assert os.environ["LD_LIBRARY_PATH"].endswith(":/before")


class GoneProcess(psutil.Process):
    def status(self) -> NoReturn:
        raise psutil.NoSuchProcess(4711)


def test_a_process_that_is_gone_is_not_running() -> None:
    assert not lifecycle._is_running(GoneProcess())
    assert lifecycle._is_running(psutil.Process())


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
