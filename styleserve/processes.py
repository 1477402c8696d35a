"""tritonserver and the processes below it: are all alive, end them all."""

import contextlib
import time
from pathlib import Path

import psutil

KILL_TIMEOUT_S = 5.0


def workers(pid: int) -> list[psutil.Process]:
    """Return tritonserver (`pid`) and its workers, one for each model; nothing if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children()]
    except psutil.NoSuchProcess:
        return []


def started_from(folder: Path) -> list[psutil.Process]:
    """Return the processes whose program lies in `folder`, whoever their parent is by now."""
    found = psutil.process_iter(["cmdline"])
    return [
        each for each in found if Path(*(each.info["cmdline"] or ())[:1]).is_relative_to(folder)
    ]


def is_running(process: psutil.Process) -> bool:
    """Tell whether a process has not ended; one that nobody has waited for has ended too."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(processes: list[psutil.Process]) -> None:
    """End `processes` and all below them at once, and wait until they are gone."""
    family = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += process.children(recursive=True)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    # Not psutil.wait_procs: it waits on for those that have ended, but that no parent has reaped.
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while any(map(is_running, family)) and time.monotonic() < deadline:
        time.sleep(0.01)
