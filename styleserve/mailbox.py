"""Tensors in shared memory, from one process to another: a file that one writes and one reads.

It is used again and again, so that a picture costs one copy and no new pages.
`styleserve.binding` copies this file next to the worker's; it may import nothing of this package.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT_BYTES = 8 << 20  # of each file; what a larger picture needs beyond, the next one gives back
ALIGNMENT = 64

Tensors = Mapping[str, NDArray[Any]]  # numbers, or byte strings as objects
# Name, dtype ("" for byte strings), shape, and where its numbers or each of its strings lie.
Place = tuple[str, str, tuple[int, ...], list[tuple[int, int]]]


class FullError(Exception):
    """Shared memory has no room for a message."""

    MESSAGE = "the server's shared memory is full; its operator must enlarge /dev/shm"


class Outbox:
    """A file in shared memory that this process writes and the other one reads."""

    def __init__(self, path: Path) -> None:
        """Create it, empty."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._reserved = 0
        self._bytes = np.empty(0, np.uint8)
        self._map: mmap.mmap | None = None

    def put(self, tensors: Tensors) -> list[Place]:
        """Write `tensors` over what was there before.

        Raises:
            FullError: if shared memory has no room for them.
        """
        places: list[Place] = []
        copies: list[tuple[int, int, NDArray[np.uint8]]] = []
        end = 0
        for name, array in tensors.items():
            first = len(copies)
            for part in parts(array):
                start = -(-end // ALIGNMENT) * ALIGNMENT
                end = start + part.size
                copies.append((start, end, part))
            dtype = "" if array.dtype == np.object_ else array.dtype.str
            places.append((name, dtype, array.shape, [copy[:2] for copy in copies[first:]]))
        self._reserve(end)
        for start, stop, part in copies:
            np.copyto(self._bytes[start:stop], part)  # without the GIL, unlike slices of a mmap
        return places

    def trim(self) -> None:
        """Give back what a large picture took; who still reads there finds zeros."""
        if self._map and self._reserved > KEPT_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, KEPT_BYTES, self._reserved - KEPT_BYTES)
            self._reserved = KEPT_BYTES

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
        del self._map, self._bytes

    def _reserve(self, size: int) -> None:
        if size > self._reserved:
            # Where memory is full, a write to a page that is promised but not there ends a process.
            try:
                os.posix_fallocate(self._file, 0, size)
            except OSError as error:
                raise FullError(f"{size:,} bytes: {error.strerror}") from error
            self._reserved = size
            self._map = mmap.mmap(self._file, 0)
            self._bytes = np.frombuffer(self._map, np.uint8)


class Inbox:
    """A file in shared memory that this process reads and the other one writes."""

    def __init__(self, path: Path) -> None:
        """Read from `path`, once something is said to lie there."""
        self._path = path
        self._bytes = np.empty(0, np.uint8)

    def get(self, places: list[Place]) -> dict[str, NDArray[Any]]:
        """Return what was put there: numbers as read-only views, which the next message changes."""
        end = max((stop for *_, spans in places for _, stop in spans), default=0)
        if end > self._bytes.size:
            with self._path.open("rb") as file:
                opened = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._bytes = np.frombuffer(opened, np.uint8)
        return {place[0]: self._tensor(place) for place in places}

    def close(self) -> None:
        """Let go of the file, once nobody looks at a tensor any more."""
        del self._bytes

    def _tensor(self, place: Place) -> NDArray[Any]:
        _, dtype, shape, spans = place
        found = [self._bytes[start:stop] for start, stop in spans]
        if dtype:
            return found[0].view(dtype).reshape(shape)
        texts = np.empty(len(found), np.object_)
        texts[:] = [part.tobytes() for part in found]
        return texts.reshape(shape)


def parts(array: NDArray[Any]) -> list[NDArray[np.uint8]]:
    """Return the bytes of the numbers of `array`, or those of each of its byte strings."""
    if array.dtype == np.object_:
        return [np.frombuffer(text, np.uint8) for text in array.reshape(-1)]
    return [np.ascontiguousarray(array).reshape(-1).view(np.uint8)]
