"""Memory and CPU time of a process and all below it."""

import contextlib
import signal
import threading
from collections.abc import Iterator

import psutil

MIB = 1 << 20
SAMPLE_S = 0.1


def family(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and all below it; nothing if it has ended."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def memory(root: psutil.Process, kind: str = "pss") -> float:
    """Return the MiB that the family holds; as `pss`, shared pages count once."""
    total = 0
    for process in family(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += getattr(process.memory_full_info(), kind)
    return total / MIB


def cpu_seconds(root: psutil.Process) -> float:
    """Return the seconds of CPU time that the family has used, with those of ended children."""
    total = 0.0
    for process in family(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


class Peak:
    """The most that a family held."""

    mib = 0.0


@contextlib.contextmanager
def watched(root: psutil.Process, kind: str = "pss") -> Iterator[Peak]:
    """Sample the memory of the family until the block ends."""
    peak, over = Peak(), threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            peak.mib = max(peak.mib, memory(root, kind))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        peak.mib = max(peak.mib, memory(root, kind))


def end(root: psutil.Process, seconds: float) -> None:
    """Ask a process to end, and kill what is left of its family after some seconds."""
    members = family(root)
    with contextlib.suppress(psutil.NoSuchProcess):
        root.send_signal(signal.SIGINT)  # as Ctrl-C: on SIGTERM some wait for themselves
    _, alive = psutil.wait_procs(members, seconds)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, seconds)
