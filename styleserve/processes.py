"""tritonserver and the processes below it: are all alive, end them all."""

import psutil


def workers(pid: int) -> list[psutil.Process]:
    """Return tritonserver (`pid`) and its workers, one for each model; nothing if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children()]
    except psutil.NoSuchProcess:
        return []


def helpers(worker: psutil.Process) -> list[psutil.Process]:
    """Return the helpers that a worker keeps for its shared memory.

    Not those that live for a moment, in which Python looks up a library.
    """
    try:
        return [child for child in worker.children() if "multiprocessing" in str(child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def is_running(process: psutil.Process) -> bool:
    """Tell whether a process has not ended; one that nobody has waited for has ended too."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    """End the process `pid` and all below it at once, and wait until they are gone."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        if process.is_running():
            process.kill()
    psutil.wait_procs(family, timeout=5)
