"""What the C library does with freed memory: kept, it saves time; given back, it serves others."""

import ctypes

LIBC = ctypes.CDLL(None)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # <malloc.h>
KEPT_BYTES, LARGEST_KEPT_BYTES = 64 << 20, 32 << 20


def keep_freed() -> None:
    """Keep up to 64 MiB of what is freed, but no block of 32 MiB or more; for all threads together.

    By default each picture's arrays are new pages, which the system has to clear first: for a
    model that does nothing, 640x480 took twice as long. With one such store for each thread,
    memory would be kept many times over.
    """
    LIBC.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    LIBC.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
    LIBC.mallopt(M_ARENA_MAX, 1)


def give_back() -> None:
    """Give all free pages back to the system."""
    LIBC.malloc_trim(0)
