"""What happens to freed memory: kept, it saves time; given back, it serves others."""

import ctypes
import functools

import onnxruntime

LIBC = ctypes.CDLL(None)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # <malloc.h>
KEPT_BYTES, LARGEST_KEPT_BYTES = 64 << 20, 4 << 20


def keep_freed() -> None:
    """Keep up to 64 MiB of what is freed, but no block of 4 MiB or more; for all threads together.

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


@functools.cache
def share() -> None:
    """Let all sessions of this process that say so have one store, for their runs take turns.

    New pages for each run take a fifth of its time at 640x480. What is taken first is never given
    back, so the first run should be of a small picture, as warm-ups are.
    """
    kind, use = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, use), None)


def kept_after(is_large: bool) -> onnxruntime.RunOptions:
    """Return how to run so that the store keeps its memory, but not that of a large picture."""
    options = onnxruntime.RunOptions()
    if is_large:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options
