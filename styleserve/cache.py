"""Answers to repeated requests, kept in memory.

Not Triton's own cache: it keeps refusals too, and answers the next such request with 200 and no
outputs.
"""

import hashlib
import threading

import numpy as np
from cachetools import LRUCache

from styleserve.endpoint import Answer, Endpoint, Tensors
from styleserve.ticket import CURRENT, Ticket

ENTRY_BYTES = 1024  # what Python needs for an entry beside the values; counts for tiny pictures


class Cache:
    """Answers by the digest of their request; forgets first what was not used for longest."""

    def __init__(self, size: int) -> None:
        """Keep at most `size` bytes."""
        self._answers: LRUCache[bytes, Answer] = LRUCache(size, _size)
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Answer | None:
        """Return the answer kept for `key`, as arrays that cannot be written, or None."""
        with self._lock:
            answer = self._answers.get(key)
        return None if answer is None else dict(answer)

    def keep(self, key: bytes, answer: Answer) -> None:
        """Keep a copy of `answer`, unless it is larger than the whole cache."""
        if _size(answer) > self._answers.maxsize:
            return
        # A picture can come back as it was sent: a view of shared memory that the next one fills.
        copies = {name: array.copy() for name, array in answer.items()}
        for array in copies.values():
            array.flags.writeable = False
        with self._lock:
            self._answers[key] = copies


class CachedEndpoint:
    """Answers for one model, from a cache where it has answered the same request before."""

    def __init__(self, model: str, endpoint: Endpoint, cache: Cache) -> None:
        """Keep the answers of `endpoint`, which serves `model`, in `cache`, which all may share."""
        self._model = model
        self._endpoint = endpoint
        self._cache = cache

    def __call__(self, tensors: Tensors, outputs: list[str]) -> Answer:
        """Answer as the endpoint does, whose errors are passed on and never kept."""
        key = _digest(self._model, tensors, outputs)
        kept = self._cache.get(key)
        ticket = CURRENT.get(Ticket())
        # Both each time: a rate of what does not exist yet is no zero.
        ticket.add("styleserve_cache_hit", int(kept is not None), model=self._model)
        ticket.add("styleserve_cache_miss", int(kept is None), model=self._model)
        if kept is not None:
            return kept
        answer = self._endpoint(tensors, outputs)
        # A fallback has taken a failed node's place, which may not fail the next time.
        if not ticket.total("styleserve_node_failure"):
            self._cache.keep(key, answer)
        return answer


def _size(answer: Answer) -> int:
    texts = (array for array in answer.values() if array.dtype == np.object_)
    arrays = sum(array.nbytes for array in answer.values())
    return ENTRY_BYTES + arrays + sum(len(text) for array in texts for text in array.flat)


def _digest(model: str, tensors: Tensors, outputs: list[str]) -> bytes:
    """Tell apart all that an answer depends on."""
    named = sorted(tensors.items())
    lengths = [list(map(len, array.flat)) for _, array in named if array.dtype == np.object_]
    kinds = [(name, array.dtype.str, array.shape) for name, array in named]
    # Sorted, as each worker names the outputs in an order of its own. With the lengths of all that
    # follows, so that bytes cannot pass from one value to the next.
    head = model, sorted(outputs), kinds, lengths
    digest = hashlib.blake2b(repr(head).encode() + b"\n")
    for _, array in named:
        if array.dtype == np.object_:
            for text in array.flat:
                digest.update(text)
        else:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()
