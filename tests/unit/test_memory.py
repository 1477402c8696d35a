"""What a process keeps of freed memory, seen from outside."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
import numpy as np
import psutil
from styleserve import memory

memory.keep_freed()
resident = lambda: psutil.Process().memory_info().rss >> 20
blocks, size_mib = int(sys.argv[1]), int(sys.argv[2])
before = resident()

def work():
    arrays = [np.ones(size_mib << 20, np.uint8) for _ in range(blocks)]
    del arrays

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
    thread.join()
print(resident() - before)
memory.give_back()
print(resident() - before)
"""


@pytest.mark.parametrize(
    ("blocks", "size_mib", "kept_mib"),
    [
        (10, 4, (36, 48)),  # kept once, not by each thread
        (30, 4, (0, 70)),  # too much in all
        (2, 40, (0, 8)),  # too large
    ],
)
def test_some_freed_memory_is_kept_until_it_is_given_back(
    blocks: int, size_mib: int, kept_mib: tuple[int, int]
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(blocks), str(size_mib)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    kept, left = map(int, ran.stdout.split())

    assert kept_mib[0] <= kept <= kept_mib[1]
    assert left <= 8
