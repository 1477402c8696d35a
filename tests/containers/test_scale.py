"""Several servers behind the balancer, one of which dies."""

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc

from tests.containers.engine import Project, docker, has_image, running, wait
from tests.e2e.running import ROOT

FILES = ("docker-compose.yml", "docker-compose.scale.yml")
QUERY = (ROOT / "query.json").read_bytes()
PHOTO = np.random.default_rng(1).integers(0, 255, (900, 1200, 3), np.uint8)  # more than 1 MiB


@pytest.fixture(scope="module")
def project(checkout: Path, images: dict[str, str]) -> Iterator[Project]:
    project = Project(checkout, {}, FILES)
    image = json.loads(project.compose("config", "--format", "json"))
    name = image["services"]["balancer"]["image"]
    if not has_image(name):
        pytest.skip(f"the image {name} is not to be had")
    with running(project, "--scale", "server=2"):
        wait(project.api.is_ready)
        yield project


class Load:
    """Calls over HTTP and gRPC, one after another, until told to stop."""

    def __init__(self, project: Project) -> None:
        self.answers: list[str] = []
        self._stop = threading.Event()
        self._grpc = f"127.0.0.1:{project.ports['GRPC']}"
        small = [lambda name=name: project.api.paint(name) for name in ("dots", "printed-scene")]
        calls = (*small, self._large)
        self._threads = [threading.Thread(target=self._run, args=(call,)) for call in calls]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, call: object) -> None:
        assert callable(call)
        while not self._stop.is_set():
            try:
                call()
                self.answers.append("")
            except Exception as error:  # noqa: BLE001  any failure of any kind is the finding
                self.answers.append(f"{type(error).__name__}: {error}")

    def _large(self) -> None:
        with grpc.InferenceServerClient(self._grpc) as client:
            image = grpc.InferInput("image", list(PHOTO.shape), "UINT8")
            image.set_data_from_numpy(PHOTO)
            side = grpc.InferInput("max_side", [1], "INT32")
            side.set_data_from_numpy(np.array([64], np.int32))
            assert client.infer("swirl", [image, side]).as_numpy("styled_image").any()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_no_request_fails_when_a_server_goes(project: Project, end: str) -> None:
    victim, other = project.containers("server")
    healthy = "{{.State.Health.Status}}"
    with Load(project) as load:
        wait(lambda: len(load.answers) > 20)
        before = len(load.answers)
        docker(end, victim)
        wait(lambda: len(load.answers) > before + 40)
        docker("start", victim)
        wait(lambda: docker("inspect", "-f", healthy, victim) == "healthy")
        before = len(load.answers)
        wait(lambda: len(load.answers) > before + 40)
    assert [answer for answer in load.answers if answer] == []
    wait(lambda: docker("inspect", "-f", healthy, other) == "healthy")


def test_what_would_kill_triton_does_not_reach_it(project: Project) -> None:
    path, padding = "/v2/models/dots/infer", b" " * 300_000_000
    status, _ = project.api.post(path, QUERY + padding)
    assert status == 413
    project.api.post(path, gzip.compress(QUERY + padding, 1), **{"Content-Encoding": "gzip"})
    status, _ = project.api.post(path, QUERY, **{"Content-Encoding": "deflate"})
    assert status == 415
    log = project.compose("logs", "server")
    assert project.api.post(path, QUERY)[0] == 200
    assert project.compose("logs", "server").count("has died") == log.count("has died")


def test_small_bodies_in_gzip_pass(project: Project) -> None:
    status, _ = project.api.post(
        "/v2/models/dots/infer", gzip.compress(QUERY), **{"Content-Encoding": "gzip"}
    )
    assert status == 200


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/trace/setting", "/v2/logging"])
def test_triton_s_own_settings_are_out_of_reach(project: Project, path: str) -> None:
    assert project.api.post(path, b"{}")[0] == 404
