"""The whole of it, as `docker compose up` brings it up."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gradio_client import Client, handle_file

from styleserve.declaration import PIPELINES
from tests.containers.engine import PHOTO, Project, docker, kill_inside, running, wait

TWICE = """
twice:
  nodes:
    once: {model: invert}
    again: {model: invert, inputs: [once]}
  output: again
"""
LEAST_START = np.timedelta64(2, "s")  # no server is ready sooner


@pytest.fixture(scope="module")
def project(checkout: Path, images: dict[str, str]) -> Iterator[Project]:
    settings = {
        "STYLESERVE_QUEUE_SIZE": "7",
        "STYLESERVE_CLIENT_TIMEOUT": "99",
        "STYLESERVE_ACCESS_TOKEN": "token",
        "GRAFANA_PASSWORD": "password",
    }
    with running(Project(checkout, settings)) as up:
        yield up


def test_the_page_paints(project: Project) -> None:
    page = Client(project.page.url, verbose=False)
    painted = page.predict(photo=handle_file(PHOTO), style="dots", api_name="/stylise")
    assert Path(painted).read_bytes().startswith(b"\x89PNG")


def test_the_page_waits_for_the_server(project: Project) -> None:
    assert project.page.get("/health") == (200, b'{"page":"ok","server":true}')
    (server,), (page,) = project.containers("server"), project.containers("client")
    template = "{{.State.StartedAt}}"
    started = [np.datetime64(docker("inspect", "-f", template, one)[:23]) for one in (server, page)]
    assert started[1] - started[0] > LEAST_START


def test_settings_come_from_the_file(project: Project) -> None:
    server, page = (
        docker("exec", *project.containers(service), "env").splitlines()
        for service in ("server", "client")
    )
    assert "STYLESERVE_QUEUE_SIZE=7" in server
    assert "STYLESERVE_CLIENT_TIMEOUT=99" in page
    assert "STYLESERVE_ACCESS_TOKEN=token" in server
    assert not [line for line in page if "TOKEN" in line]
    assert "GRAFANA_PASSWORD=" in server


def test_a_server_that_crashes_is_restarted(project: Project) -> None:
    server, *_ = project.containers("server")
    kill_inside(server, "python")  # server.py
    count = "{{.RestartCount}}"
    wait(lambda: docker("inspect", "-f", count, server) == "1", 30)
    wait(project.api.is_ready)
    assert project.api.paint("painted-subject")


@pytest.mark.parametrize("named", [False, True], ids=["in_the_folder", "named"])
def test_own_models_and_pipelines_are_mounted(
    checkout: Path, images: dict[str, str], slow_models: Path, named: bool
) -> None:
    settings = {"STYLESERVE_MODELS_DIR": str(slow_models)}
    path = slow_models / ("own.yaml" if named else PIPELINES)
    path.write_text(TWICE)
    path.chmod(0o644)
    if named:
        settings["STYLESERVE_PIPELINES"] = str(path)
    with running(Project(checkout, settings), "server") as project:
        assert sorted(project.api.styles()) == ["invert", "slow", "twice"]
        assert project.api.paint("twice")


@pytest.mark.parametrize("name", ["STYLESERVE_MODELS_DIR", "STYLESERVE_PIPELINES"])
def test_a_path_that_is_not_there_is_refused_and_not_made(
    checkout: Path, images: dict[str, str], open_folder: Path, name: str
) -> None:
    missing = open_folder / "missing"
    project = Project(checkout, {name: str(missing)})
    with pytest.raises(AssertionError, match=f"{missing}"), running(project, "server"):
        pass
    assert not missing.exists()


def test_the_gpu_file_asks_for_one(checkout: Path) -> None:
    files = ("docker-compose.yml", "docker-compose.gpu.yml")
    config = Project(checkout, {}, files).compose("config")
    assert "REQUIREMENTS: requirements-gpu.txt" in config
    assert "capabilities:\n                - gpu" in config
