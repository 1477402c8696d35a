"""Starting, stopping, dying and coming back, with everything cleaned up."""

import http.client
import json
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient.utils import InferenceServerException

from styleserve import processes
from tests import tiny_models as tiny
from tests.e2e.conftest import Launch
from tests.e2e.running import ROOT, Running

PICTURE = np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
LARGE = np.zeros((512, 512, 3), np.uint8)
SHM = Path("/dev/shm")


def is_answering(running: Running) -> bool:
    return np.array_equal(running.infer("identity", image=PICTURE), PICTURE)


def leftovers(running: Running) -> list[Path]:
    tokens = set(re.findall(r"styleserve-[0-9a-f]{8}", running.log))
    return [*running.cache.iterdir(), *(p for token in tokens for p in SHM.glob(f"{token}*"))]


def assert_gone(running: Running, family: list[psutil.Process]) -> None:
    assert leftovers(running) == []
    assert not psutil.wait_procs(family, 5)[1]
    for port in (running.http, running.grpc, running.metrics):
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(
    launch: Launch, slow_folder: Path, number: signal.Signals
) -> None:
    running = launch(slow_folder).wait_ready()
    family = running.processes()
    with ThreadPoolExecutor() as pool:
        start = time.monotonic()
        request = pool.submit(running.infer, "slow", image=LARGE)
        time.sleep(0.7)
        assert not request.done(), f"the slow model took {time.monotonic() - start:.2f} s only"
        running.process.send_signal(number)
        assert request.result(60).shape == LARGE.shape
    assert running.wait() == 0
    assert_gone(running, family)
    assert running.messages("ERROR") == []


def test_nothing_answers_before_every_model_is_loaded(launch: Launch, slow_folder: Path) -> None:
    running = launch(slow_folder)
    paths = ["/v2/health/ready", "/v2/health/live", "/v2/models/slow/ready", "/v2/models/identity"]
    answers: set[int] = set()
    deadline = time.monotonic() + 60
    while not answers and time.monotonic() < deadline:
        for path in paths:
            try:
                answers.add(running.get(path)[0])
            except OSError:
                time.sleep(0.01)
    assert answers == {200}
    assert [running.get(path)[0] for path in paths] == [200] * len(paths)
    assert is_answering(running)


def test_a_signal_during_the_start_stops_it(launch: Launch, tiny_folder: Path) -> None:
    running = launch(tiny_folder)
    running.wait_log("loading models", 30)
    assert running.stop() == 0
    assert_gone(running, [])
    assert "ready after" not in running.log


@pytest.mark.parametrize(("victim", "number"), [("tritonserver", 0), ("triton_python", 2)])
def test_a_killed_part_is_noticed_and_replaced(
    launch: Launch, tiny_folder: Path, victim: str, number: int
) -> None:
    running = launch(tiny_folder).wait_ready()
    running.wait_log("ready after", 5)
    running.processes(victim)[number].kill()
    running.wait_log("restarting", 2)
    running.wait_log("ready after", 60, after=running.log.index("restarting"))
    assert is_answering(running)
    assert running.stop() == 0
    assert leftovers(running) == []


def test_a_worker_that_dies_during_the_start_is_replaced(launch: Launch, tiny_folder: Path) -> None:
    running = launch(tiny_folder)
    deadline = time.monotonic() + 60
    while len(workers := running.processes("triton_python")) < 4:
        assert time.monotonic() < deadline, running.log
    workers[1].kill()
    running.wait_log("ready after", 90)
    running.wait_ready()
    assert [running.get(f"/v2/models/{name}/ready")[0] for name in ("identity", "invert")] == [
        200
    ] * 2
    assert is_answering(running)
    assert np.array_equal(running.infer("invert", image=PICTURE), 255 - PICTURE)


def test_a_request_that_kills_triton_does_not_end_the_service(
    launch: Launch, tiny_folder: Path
) -> None:
    running = launch(tiny_folder).wait_ready()
    shape = [100_000, 100_000, 3]
    image = {"name": "image", "shape": shape, "datatype": "UINT8", "data": [1]}
    try:
        status, _ = running.post("/v2/models/invert/infer", json.dumps({"inputs": [image]}))
        assert status >= 400  # a Triton that refuses it is welcome
    except OSError:
        running.wait_log("restarting", 5)
        running.wait_log("ready after", 60, after=running.log.index("restarting"))
    assert is_answering(running)


def test_a_server_that_dies_again_and_again_gives_up(launch: Launch, tmp_path: Path) -> None:
    models = tmp_path / "models"
    tiny.save(tiny.identity(), models / "identity.onnx")
    running = launch(models)
    killed: set[int] = set()
    deadline = time.monotonic() + 110
    while running.process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, running.log
        for process in running.process.children():
            if process.name() == "tritonserver" and process.pid not in killed:
                process.kill()
                killed.add(process.pid)
        time.sleep(0.1)
    assert running.wait() == 1
    assert len(killed) == 6
    assert "giving up" in running.messages("ERROR")[-1]
    assert leftovers(running) == []
    assert processes.started_from(running.cache) == []


def test_remains_of_a_killed_server_are_removed_at_the_next_start(
    launch: Launch, tiny_folder: Path
) -> None:
    first, other = launch(tiny_folder), launch(tiny_folder)
    first.wait_ready()
    other.wait_ready()
    assert is_answering(first)
    (mine,) = (path.stem for path in first.cache.glob("*.lock"))
    (others,) = (path.stem for path in other.cache.glob("*.lock"))
    assert list(SHM.glob(f"{mine}*"))
    family = first.processes()
    shared = {Path(each.path) for process in family for each in process.memory_maps()}
    assert [path for path in shared if SHM in path.parents and mine not in path.name] == []
    for process in (first.process, *family):  # all at once, as a container's memory limit does
        process.kill()
    first.wait()
    psutil.wait_procs(family, 30)
    second = launch(tiny_folder, cache_dir=first.cache).wait_ready()
    assert list(SHM.glob(f"{mine}*")) == []
    assert [path for path in first.cache.iterdir() if path.name.startswith(mine)] == []
    assert list(SHM.glob(f"{others}*"))
    assert is_answering(second)
    assert is_answering(other)


def test_a_start_right_after_a_kill_takes_the_ports_over(launch: Launch, tiny_folder: Path) -> None:
    first = launch(tiny_folder).wait_ready()
    first.process.kill()
    first.wait()
    ports = {"http_port": first.http, "grpc_port": first.grpc, "metrics_port": first.metrics}
    second = launch(tiny_folder, cache_dir=first.cache, **ports)
    second.http = first.http
    second.wait_ready()
    assert is_answering(second)


def test_an_idle_connection_does_not_hold_up_the_stop(launch: Launch, tiny_folder: Path) -> None:
    running = launch(tiny_folder).wait_ready()
    running.wait_log("ready after", 5)
    connection = http.client.HTTPConnection("127.0.0.1", running.http, timeout=30)
    connection.request("GET", "/v2/health/live")
    connection.getresponse().read()
    start = time.monotonic()
    assert running.stop() == 0
    assert time.monotonic() - start < 15
    assert running.messages("ERROR") == []
    connection.close()


def test_a_worker_that_dies_in_a_request_is_soon_replaced(
    launch: Launch, slow_folder: Path
) -> None:
    running = launch(slow_folder).wait_ready()
    running.wait_log("ready after", 5)
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(running.infer, "slow", image=LARGE) for _ in range(2)]
        time.sleep(0.7)
        for worker in running.processes("triton_python"):
            worker.kill()
        running.wait_log("restarting", 2)
        running.wait_log("ready after", 25, after=running.log.index("restarting"))
        for call in calls:
            with pytest.raises((InferenceServerException, OSError)):
                call.result(10)
    assert is_answering(running)


def test_a_full_queue_is_answered_with_503(launch: Launch, slow_folder: Path) -> None:
    running = launch(slow_folder, queue_size=2).wait_ready()
    body = json.dumps(
        {"inputs": [{"name": "image", "shape": [1, 1, 3], "datatype": "UINT8", "data": [1, 2, 3]}]}
    )
    with ThreadPoolExecutor(12) as pool:
        blocker = pool.submit(running.infer, "slow", image=LARGE)
        time.sleep(0.5)
        calls = [pool.submit(running.post, "/v2/models/slow/infer", body) for _ in range(10)]
        answers = [call.result() for call in calls]
        blocker.result()
    statuses = sorted(status for status, _ in answers)
    assert statuses[0] == 200
    assert statuses[-1] == 503
    refused = [answer for status, answer in answers if status == 503]
    assert all(b"queue" in answer for answer in refused)
    assert is_answering(running)


def test_help_lists_every_setting() -> None:
    answer = subprocess.run(
        ["python", "server.py", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert answer.returncode == 0
    assert "--http-port" in answer.stdout
    assert "Port of the HTTP endpoint" in answer.stdout
