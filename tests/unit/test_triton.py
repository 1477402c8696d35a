"""Triton as a process, with a shell in the place of tritonserver and nothing on its ports."""

import itertools
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from styleserve import health, machine, processes, triton
from styleserve.settings import ServerSettings, load
from styleserve.triton import StartError, TritonProcess

Child = subprocess.Popen[bytes]
Make = Callable[..., TritonProcess]
Shell = Callable[[str], Child]

# Shells with processes below them. The first ends on the signal that ends Triton, the second does
# not, and the third, until it is told to go on, does not notice when one below it has ended.
ORDERLY = "trap 'kill $!; exit' INT; sleep 60 & echo ready; wait"
DEAF = "trap '' INT; sleep 60 & echo ready; wait"
FROZEN = "sleep 60 & sleep 60 & echo ready; kill -STOP $$; wait"


@pytest.fixture
def shell() -> Iterator[Shell]:
    started: list[tuple[Child, list[psutil.Process]]] = []

    def start(script: str) -> Child:
        # What runs in the background of a script ignores SIGINT, and so would all below it.
        command = ["env", "--default-signal=INT", "sh", "-c", script]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        started.append((child, processes.workers(child.pid)))
        return child

    yield start
    for child, members in started:
        processes.kill(members)
        child.communicate()


@pytest.fixture
def child(shell: Shell) -> Child:
    return shell(DEAF)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make servers that never start Triton, but have a child in its place."""
    monkeypatch.setattr(machine, "SHM", tmp_path / "shm")
    monkeypatch.setattr(triton, "POLL_S", 0.01)
    monkeypatch.setattr(health, "is_ready", lambda host, port: False)
    monkeypatch.setattr(health, "pending", lambda host, port: 0)
    made: list[TritonProcess] = []

    def make(child: Child | None = None, *flags: str) -> TritonProcess:
        options = load(["--cache-dir", str(tmp_path / "cache"), *flags])
        server = TritonProcess(options, threading.Event())
        server._triton_server = SimpleNamespace(_tritonserver_running_cmd=child)
        server._members = processes.workers(child.pid) if child else []
        made.append(server)
        return server

    yield make
    for server in made:
        server.release()


def ends(process: psutil.Process) -> bool:
    deadline = time.monotonic() + 5
    while processes.is_running(process) and time.monotonic() < deadline:
        time.sleep(0.005)
    return not processes.is_running(process)


# --- configuration


def settings(**values: str | int) -> ServerSettings:
    return ServerSettings(**values)  # type: ignore[arg-type]  # pydantic checks them


@pytest.mark.parametrize("gpu", [True, False])
def test_triton_gets_the_settings(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    monkeypatch.setattr(machine, "has_gpu", lambda: gpu)
    ports = {"http_port": 7, "grpc_port": 8, "metrics_port": 9}

    config = triton._config(settings(host="127.0.0.9", **ports))

    assert (config.http_port, config.grpc_port, config.metrics_port) == (7, 8, 9)
    assert {config.http_address, config.grpc_address, config.metrics_address} == {"127.0.0.9"}
    assert config.strict_readiness
    assert config.exit_on_error
    assert config.allow_gpu_metrics is gpu


def test_the_token_is_the_given_one_or_a_new_random_one(make: Make) -> None:
    given, one, other = (
        make(None, "--access-token", token)._security_config.access_token
        for token in ("s3cret", "", "")
    )

    assert given == "s3cret"
    assert len(one) >= 16
    assert one != other


def test_triton_does_not_ask_the_workers_for_configurations_that_it_has(make: Make) -> None:
    assert make()._triton_server_config["strict-model-config"] is True


def test_all_files_lie_under_names_that_are_claimed_and_released(
    make: Make, tmp_path: Path
) -> None:
    server, other = make(), make()

    home = server.store("udnie").parent.parent
    (prefix,) = (
        option.partition("=")[2]
        for option in server._triton_server_config["backend_config"]
        if "shm-region-prefix-name" in option
    )
    assert (tmp_path / "shm" / f"{prefix}.lock").exists()
    assert (tmp_path / "cache" / f"{home.name}.lock").exists()
    assert (home / "model-store").is_dir()
    (tmp_path / "shm" / f"{prefix}1").touch()

    server.release()

    left = {path.name.removesuffix(".lock") for path in tmp_path.glob("*/*")}
    assert left == {other._shm_prefix(), other.store("udnie").parent.parent.name}


def test_triton_is_asked_where_it_listens(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(health, "is_ready", lambda *where: asked.append(where))
    monkeypatch.setattr(health, "pending", lambda *where: asked.append(where))

    for host in ("0.0.0.0", "127.0.0.9"):
        server = make(None, "--host", host, "--http-port", "7", "--metrics-port", "9")
        server._is_ready()
        server._is_busy()

    hosts = ("127.0.0.1", "127.0.0.9")
    assert asked == [(host, port) for host in hosts for port in (7, 9)]


# --- the start


def stop_is_asked(server: TritonProcess, child: Child) -> None:
    server._stop_asked.set()


def child_dies(server: TritonProcess, child: Child) -> None:
    child.kill()


def worker_dies(server: TritonProcess, child: Child) -> None:
    psutil.Process(child.pid).children()[0].kill()


def time_is_up(server: TritonProcess, child: Child) -> None:
    """Nothing happens."""


def use_run(monkeypatch: pytest.MonkeyPatch, run: Callable[[TritonProcess], object]) -> None:
    monkeypatch.setattr(TritonProcess, "run", run)


def test_the_start_ends_when_ready(
    make: Make, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(health, "is_ready", lambda host, port: next(answers))
    use_run(monkeypatch, TritonProcess._wait_for_server)

    make(child).start()

    assert list(answers) == []
    assert processes.is_running(psutil.Process(child.pid))


@pytest.mark.parametrize(
    ("event", "timeout", "told"),
    [
        (stop_is_asked, 60, "it was asked to stop"),
        (child_dies, 60, "tritonserver has ended"),
        (worker_dies, 60, "a worker process has died"),
        (time_is_up, 0, "it was not ready after 0 s"),
    ],
)
def test_a_start_ends_when_it_is_vain_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    shell: Shell,
    event: Callable[[TritonProcess, Child], None],
    timeout: float,
    told: str,
) -> None:
    monkeypatch.setattr(triton, "START_TIMEOUT_S", timeout)
    monkeypatch.setattr(triton, "LINGER_S", 0.2)
    use_run(monkeypatch, TritonProcess._wait_for_server)
    child = shell(FROZEN)
    members = processes.workers(child.pid)
    server = make(child)
    event(server, child)

    with pytest.raises(StartError, match=f"^Triton did not start: {told}$"):
        server.start()

    assert len(members) > 1
    assert ends(members[0])


def test_a_worker_that_has_ended_and_is_soon_gone_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, make: Make, shell: Shell
) -> None:
    child = shell(FROZEN)
    first, _ = psutil.Process(child.pid).children()
    first.kill()
    polls = itertools.count()

    def is_ready(host: str, port: int) -> bool:
        if next(polls) < 3:
            return False
        child.send_signal(signal.SIGCONT)
        first.wait(5)
        return True

    monkeypatch.setattr(health, "is_ready", is_ready)

    server = started(make, child, monkeypatch, run=TritonProcess._wait_for_server)

    assert server.is_whole()


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), ValueError("no such option")]
)
def test_what_pytriton_raises_in_the_start_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, make: Make, child: Child, failure: Exception
) -> None:
    members = processes.workers(child.pid)
    use_run(monkeypatch, raiser(failure))

    with pytest.raises(StartError, match=f"Triton did not start: .*{failure.args[-1]}"):
        make(child).start()

    assert all(map(ends, members))


def test_a_failure_before_there_is_a_process_is_told_and_can_be_stopped(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    server = make()
    server._triton_server = None
    use_run(monkeypatch, raiser(OSError(28, "No space left on device")))

    with pytest.raises(StartError, match=r"Triton did not start: .*No space left"):
        server.start()
    server.stop()


def raiser(failure: Exception) -> Callable[[TritonProcess], None]:
    def run(server: TritonProcess) -> None:
        raise failure

    return run


# --- watching


def started(
    make: Make,
    child: Child,
    monkeypatch: pytest.MonkeyPatch,
    alive: bool = True,
    run: Callable[[TritonProcess], object] = lambda server: None,
) -> TritonProcess:
    use_run(monkeypatch, run)
    monkeypatch.setattr(TritonProcess, "is_alive", lambda server: alive)
    server = make(child)
    server.start()
    return server


@pytest.mark.parametrize("event", [child_dies, worker_dies])
def test_a_server_is_whole_while_every_process_runs(
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    child: Child,
    event: Callable[[TritonProcess, Child], None],
) -> None:
    server = started(make, child, monkeypatch)
    assert server.is_whole()

    event(server, child)

    assert any(map(ends, server._members))
    assert not server.is_whole()


def test_a_server_whose_threads_have_died_is_not_whole(
    monkeypatch: pytest.MonkeyPatch, make: Make, child: Child
) -> None:
    assert not started(make, child, monkeypatch, alive=False).is_whole()


# --- the end


def drain(server: TritonProcess) -> float:
    start = time.monotonic()
    server._drain()
    assert all(map(ends, server._members))
    return time.monotonic() - start


def test_a_triton_that_ends_by_itself_is_not_waited_for(
    make: Make, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "FLUSH_S", 60)

    assert drain(make(shell(ORDERLY))) < 10


def test_an_idle_triton_is_ended_after_its_last_answers_had_time(
    make: Make, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "FLUSH_S", 0.2)

    assert 0.2 <= drain(make(child)) < 10


@pytest.mark.parametrize("kind", ["queued", "running"])
def test_requests_are_finished_first(
    make: Make, child: Child, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Triton tells of those that wait; those that run, only the callables know."""
    monkeypatch.setattr(triton, "FLUSH_S", 0.02)
    call = SimpleNamespace(is_busy=kind == "running", abandon=lambda: None)
    waiting = 3 if kind == "queued" else None
    seen: list[bool] = []

    def pending(host: str, port: int) -> int | None:
        seen.append(processes.is_running(server._members[0]))
        if len(seen) == 20:
            call.is_busy = False
        return waiting if len(seen) < 20 else 0

    monkeypatch.setattr(health, "pending", pending)
    monkeypatch.setattr(
        TritonProcess,
        "_calls",
        lambda server: [SimpleNamespace(is_busy=0, abandon=lambda: None), call],
    )
    server = make(child)

    drain(server)

    assert len(seen) >= 20
    assert all(seen)


def test_a_request_that_never_ends_is_not_waited_for_for_ever(
    make: Make, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "DRAIN_TIMEOUT_S", 0.3)
    monkeypatch.setattr(health, "pending", lambda host, port: 1)

    assert 0.3 <= drain(make(child)) < 10


def test_what_died_before_is_not_waited_for(
    make: Make, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "pending", lambda host, port: 1)
    server = make(child)
    child.kill()
    child.wait()

    assert drain(server) < 10


def test_the_stop_lets_requests_finish_first(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    server = make()
    server._triton_server = SimpleNamespace(
        unregister_on_exit=lambda callback: None, stop=lambda: done.append("stop")
    )
    monkeypatch.setattr(TritonProcess, "_drain", lambda server: done.append("drain"))

    server._pre_stop_impl()

    assert done == ["drain", "stop"]


def test_a_cache_in_the_shared_memory_is_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Make
) -> None:
    monkeypatch.setattr(machine, "SHM", tmp_path / "cache")

    make().release()

    assert list((tmp_path / "cache").iterdir()) == []
