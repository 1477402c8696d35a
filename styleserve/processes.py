"""tritonserver and the processes below it: are all alive, end them all."""

import psutil


def family(pid: int) -> list[psutil.Process]:
    """Return the process `pid` and all below it; nothing if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def is_running(process: psutil.Process) -> bool:
    """Tell whether a process has not ended; one that nobody has waited for has ended too."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(processes: list[psutil.Process]) -> None:
    """End `processes` at once and wait until they are gone."""
    for process in processes:
        if process.is_running():
            process.kill()
    psutil.wait_procs(processes, timeout=5)
