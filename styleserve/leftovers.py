"""Files of a running server that a kill leaves behind, in shared memory and in the cache folder.

A server holds a lock for as long as it lives. Whoever can take the lock knows that its files are
stale, also from within another container that shares the folder and sees no common process ids.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from styleserve import processes

PREFIX = "styleserve-"


class Claim:
    """The right to all names in `folder` that begin with `name`."""

    def __init__(self, folder: Path, token: str) -> None:
        """Take the lock for `PREFIX` and `token`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.name = PREFIX + token
        self._folder = folder
        self._lock = _lock(folder / f"{self.name}.lock")

    def release(self) -> None:
        """Remove everything of this name, and the lock."""
        with contextlib.suppress(OSError):  # the next start tries again
            list(_remove(self._folder, self.name))
        self._lock.close()


def clean(folder: Path) -> list[Path]:
    """Remove what servers that are gone have left in `folder`; return what was removed."""
    removed: list[Path] = []
    for path in sorted(folder.glob(f"{PREFIX}?*.lock")):
        # Another user's lock cannot be opened, and a running server's cannot be taken.
        with contextlib.suppress(OSError), path.open("a") as lock:
            _take(lock)
            # A tritonserver outlives its server for some seconds, and keeps the ports.
            processes.kill(processes.started_from(folder / path.stem))
            removed += _remove(folder, path.stem)
    return removed


def _lock(path: Path) -> IO[str]:
    while True:
        lock = path.open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock.fileno()).st_nlink:
            return lock
        lock.close()  # a clean-up has removed it in between


def _take(lock: IO[str]) -> None:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove(folder: Path, name: str) -> Iterator[Path]:
    # The lock goes last: a clean-up that is cut short is done again.
    for path in sorted(folder.glob(f"{name}*"), key=lambda path: path.suffix == ".lock"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        yield path
