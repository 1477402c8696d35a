"""The script: what it does before a page is shown."""

import logging
import socket
import subprocess
import sys
from types import ModuleType

import pytest

import client
from styleserve import settings
from tests.e2e.running import ROOT


@pytest.fixture(autouse=True)
def no_log_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("styleserve.logs.set_up", lambda *_: None)


def test_arguments_belong_to_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cli = ModuleType("styleserve.cli")
    seen: list[list[str]] = []
    cli.main = lambda argv: seen.append(argv) or 7  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, "styleserve.cli", cli)
    monkeypatch.setattr("styleserve.cli", cli, raising=False)

    assert client.main(["--list"]) == 7
    assert seen == [["--list"]]


def test_a_bad_setting_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STYLESERVE_CLIENT_PORT", "many")
    with caplog.at_level(logging.CRITICAL):
        assert client.main([]) == client.REFUSED

    assert "STYLESERVE_CLIENT_PORT" in caplog.text


def test_a_name_without_a_password_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STYLESERVE_CLIENT_USER", "ann")
    with caplog.at_level(logging.CRITICAL):
        assert client.main([]) == client.REFUSED

    assert "belong together" in caplog.text


def test_the_environment_sets_what_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STYLESERVE_URL", "https://styles.example/api")
    monkeypatch.setenv("STYLESERVE_CLIENT_USER", "ann")
    monkeypatch.setenv("STYLESERVE_CLIENT_PASSWORD", "secret")
    options = settings.load_client()

    assert options.url == "https://styles.example/api"
    assert (options.client_host, options.client_port, options.client_root_path) == (
        *("0.0.0.0", 7860, ""),
    )
    assert "secret" not in repr(options)


def test_a_taken_port_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("STYLESERVE_CLIENT_HOST", "127.0.0.1")
        monkeypatch.setenv("STYLESERVE_CLIENT_PORT", str(taken.getsockname()[1]))
        with caplog.at_level(logging.CRITICAL):
            assert client.main([]) == client.REFUSED

    assert "cannot be used" in caplog.text


def test_the_command_line_does_not_load_gradio() -> None:
    code = "import sys, client; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()

    assert not {"gradio", "fastapi", "uvicorn"} & set(loaded)


def test_the_examples_and_the_look_are_there() -> None:
    assert len(client.EXAMPLES) == 3
    assert (client.LOOK / "page.css").exists()
    assert (client.LOOK / "page.js").exists()
    assert (client.LOOK / "head.js").exists()
