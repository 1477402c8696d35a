"""The page's process: port, temporary files, health."""

import socket
import tempfile
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from styleserve.errors import ConfigError
from styleserve.hosting import PREFIX, application, listen, sweep, temporary_folder


def test_a_taken_port_is_told_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} on .* STYLESERVE_CLIENT_PORT"):
            listen("127.0.0.1", port)


def test_temporary_files_are_gone_at_the_end() -> None:
    before = tempfile.gettempdir()
    with temporary_folder() as folder:
        assert tempfile.gettempdir() == str(folder)
        (folder / "deep").mkdir()
        (folder / "deep" / "upload.png").write_text("x")
        assert folder.name.startswith(PREFIX)

    assert not folder.exists()
    assert tempfile.gettempdir() == before


def test_old_files_are_deleted_and_new_ones_kept(tmp_path: Path) -> None:
    old, new = tmp_path / "a" / "old.png", tmp_path / "b" / "new.png"
    for path in (old, new):
        path.parent.mkdir()
        path.write_text("x")
    age = 0.2
    deadline = time.monotonic() + 10
    while time.time() - old.stat().st_ctime < age or time.time() - old.parent.stat().st_ctime < age:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    new.write_text("y")
    sweep([tmp_path, tmp_path / "missing"], age)

    assert not old.exists()
    assert new.read_text() == "y"


def test_health_tells_the_page_from_the_server() -> None:
    with TestClient(application("http://127.0.0.1:9")) as client:
        answer = client.get("/health")

    assert answer.status_code == 200
    assert answer.json() == {"page": "ok", "server": False}


def test_a_folder_that_is_not_empty_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("x")
    sweep([tmp_path], 3600)

    assert (tmp_path / "a" / "x").exists()
