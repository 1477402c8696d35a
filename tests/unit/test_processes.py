"""Processes of our own: all below one, those that have ended, the end of all."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from styleserve import processes

Start = Callable[..., subprocess.Popen[str]]

# Each tells when it stands, and ends by itself when the test lets go of its input.
ALONE = "echo ready; read -r _"
DEAF = f"trap '' TERM INT HUP; {ALONE}"
# The shell, a shell below it and a `sleep` below that one.
NESTED = "sh -c 'sleep 30 & echo ready; wait' & read -r _"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start shells that are gone, with all below them, when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def run(script: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        shell = subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe, text=True)
        started.append(shell)
        assert shell.stdout
        assert shell.stdout.readline() == "ready\n"
        return shell

    yield run
    for shell in started:
        for below in psutil.Process(shell.pid).children(recursive=True) if alive(shell) else ():
            below.kill()
        shell.kill()
        shell.communicate(timeout=5)


def alive(shell: subprocess.Popen[str]) -> bool:
    return shell.returncode is None and psutil.pid_exists(shell.pid)


def end(shell: subprocess.Popen[str]) -> None:
    """End a shell, but do not wait for it: it becomes a zombie."""
    shell.kill()
    deadline = time.monotonic() + 5
    while psutil.Process(shell.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_workers_are_the_process_and_those_right_below_it(start: Start) -> None:
    shell, stranger = start(NESTED), start(ALONE)

    root, *below = processes.workers(shell.pid)

    assert root.pid == shell.pid
    assert [member.name() for member in below] == ["sh"]
    assert stranger.pid not in {member.pid for member in below}


def test_a_process_that_has_ended_has_no_workers(start: Start) -> None:
    shell = start(ALONE)
    shell.communicate()

    assert processes.workers(shell.pid) == []


def test_a_process_runs_until_it_ends_even_if_nobody_has_waited(start: Start) -> None:
    shell = start(ALONE)
    process = psutil.Process(shell.pid)
    assert processes.is_running(process)

    end(shell)
    assert not processes.is_running(process)  # a zombie

    shell.wait()
    assert not processes.is_running(process)  # gone


def test_killing_ends_all_of_them(start: Start) -> None:
    roots = [psutil.Process(start(each).pid) for each in (NESTED, DEAF)]
    family = [*roots, *roots[0].children(recursive=True)]
    assert len(family) == 4

    processes.kill(roots)

    assert not any(map(processes.is_running, family))


def test_killing_leaves_other_processes_alone(start: Start) -> None:
    victim, other = start(ALONE), start(ALONE)

    processes.kill(processes.workers(victim.pid))

    assert processes.is_running(psutil.Process(other.pid))


def test_what_has_ended_before_is_no_problem(start: Start) -> None:
    gone, zombie, alive = start(ALONE), start(ALONE), start(ALONE)
    members = [psutil.Process(each.pid) for each in (gone, zombie, alive)]
    gone.communicate()
    end(zombie)

    processes.kill(members)
    processes.kill([])

    assert not any(map(processes.is_running, members))


def test_what_ends_while_it_is_being_killed_is_no_problem(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = start(ALONE)
    process = psutil.Process(shell.pid)

    def ends_meanwhile(process: psutil.Process, recursive: bool) -> list[psutil.Process]:
        shell.communicate()
        return []

    monkeypatch.setattr(psutil.Process, "children", ends_meanwhile)

    processes.kill([process])

    assert not processes.is_running(process)


def test_orphans_are_found_by_their_program(tmp_path: Path, start: Start) -> None:
    program = tmp_path / "program"
    program.symlink_to("/bin/sleep")
    start(f"{program} 30 >&- & echo ready").wait(timeout=5)  # the program has no parent any more
    deadline = time.monotonic() + 5
    # A child looks like the shell until it has become what it is to be.
    while not (found := processes.started_from(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.005)

    (orphan,) = found
    processes.kill([orphan])

    assert processes.started_from(tmp_path) == []


def test_those_that_only_name_the_folder_are_no_orphans(tmp_path: Path, start: Start) -> None:
    start(f"cd {tmp_path}; {ALONE}")

    assert processes.started_from(tmp_path) == []
