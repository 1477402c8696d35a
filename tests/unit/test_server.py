"""The program: exit codes, what is told on a refusal, the order of the steps."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import server
from styleserve import catalog, leftovers, lifecycle, logs, machine
from styleserve.declaration import Declaration
from styleserve.errors import ConfigError, ModelError

OLD = Path("old")


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the signals back to pytest, and leave logging alone."""
    monkeypatch.setattr(logs, "set_up", lambda log_format, level: None)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace all that touches the machine; list the steps done."""
    done: list[str] = []

    def step(name: str, result: object) -> Callable[..., object]:
        def do(*_: object) -> object:
            done.append(name)
            return result

        return do

    monkeypatch.setattr(catalog, "find_models", step("find", {"udnie": Path("udnie-9.onnx")}))
    declared = Declaration(lines={"painted": 1})
    monkeypatch.setattr(catalog, "find_pipelines", step("pipelines", declared))
    monkeypatch.setattr(machine, "check", step("check", None))
    monkeypatch.setattr(leftovers, "clean", lambda folder: step(f"clean {folder}", [OLD])())
    monkeypatch.setattr(catalog, "load_catalog", step("load", {}))
    monkeypatch.setattr(lifecycle, "run", step("run", True))
    return done


def test_everything_is_checked_before_anything_is_served(steps: list[str]) -> None:
    assert server.main(["--providers", "cpu", "--cache-dir", "~/mine"]) == 0
    cleaned = [f"clean {machine.SHM}", f"clean {Path.home() / 'mine'}"]
    assert steps == [*cleaned, "find", "pipelines", "check", "load", "run"]


def test_the_machine_is_asked_for_room_for_every_name(
    steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(machine, "check", lambda settings, names: asked.extend(names))

    server.main(["--providers", "cpu"])

    assert sorted(asked) == ["catalog", "painted", "udnie"]


def test_leftovers_and_the_runtime_are_told(
    steps: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "styleserve"):
        server.main(["--providers", "cpu", "--threads", "3", "--models-dir", "here"])

    assert f"removed {OLD}, left by a server that was killed" in caplog.messages
    assert "loading models from here: on cpu fp32, 3 threads, 1 at once" in caplog.messages


def test_dying_too_often_is_exit_code_1(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "run", lambda *_: False)

    assert server.main(["--providers", "cpu"]) == 1


@pytest.mark.parametrize("argv", [["--http-port", "x"], ["--nope"], ["--http-port", "8001"]])
def test_a_bad_setting_is_exit_code_2(
    steps: list[str], caplog: pytest.LogCaptureFixture, argv: list[str]
) -> None:
    assert server.main(argv) == 2
    assert steps == []
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("cannot start: ")


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (catalog, "find_models", ModelError),
        (catalog, "find_pipelines", ConfigError),
        (machine, "check", ConfigError),
        (catalog, "load_catalog", ModelError),
    ],
)
def test_every_problem_is_told_in_its_own_line(
    steps: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: ModuleType,
    name: str,
    error: type[Exception],
) -> None:
    def refuse(*_: object) -> None:
        raise error("one", "two")

    monkeypatch.setattr(module, name, refuse)

    assert server.main(["--providers", "cpu"]) == 2
    assert caplog.messages[-2:] == ["cannot start: one", "cannot start: two"]
    assert "run" not in steps


def test_an_absent_provider_is_exit_code_2(
    steps: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert server.main(["--providers", "npu"]) == 2
    assert "npu cannot be used" in caplog.messages[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_serving_asks_to_stop(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def run(catalog: object, options: object, stop: threading.Event) -> bool:
        assert not stop.is_set()
        signal.raise_signal(number)
        return stop.is_set()

    monkeypatch.setattr(lifecycle, "run", run)

    assert server.main(["--providers", "cpu"]) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("module", "name"), [(machine, "check"), (catalog, "load_catalog")])
def test_a_signal_before_anything_is_served_ends_the_program(
    steps: list[str],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    module: ModuleType,
    name: str,
) -> None:
    monkeypatch.setattr(module, name, lambda *_: signal.raise_signal(number))

    with pytest.raises(SystemExit) as caught:
        server.main(["--providers", "cpu"])

    assert caught.value.code == 0
    assert "run" not in steps


def test_a_refusal_is_seen_without_any_log_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    assert server.main(["--http-port", "x"]) == 2
    assert "cannot start: http_port" in capsys.readouterr().err


def test_help_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        server.main(["--help"])

    assert caught.value.code == 0
    assert "--http-port" in capsys.readouterr().out
    assert sys.modules["server"] is server
