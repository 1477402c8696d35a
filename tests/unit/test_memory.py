"""What a process keeps of freed memory, seen from outside."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import onnxruntime
import pytest

from styleserve.backend import PROVIDERS
from tests import tiny_models as tiny

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
        (13, 3, (36, 48)),  # kept once, not by each thread
        (40, 3, (0, 70)),  # too much in all
        (10, 4, (0, 8)),  # too large
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


SHARED = """
import resource, sys
import numpy as np
import psutil
from pathlib import Path
from styleserve import memory
from styleserve.backend import REFERENCE
from styleserve.runtime import Runtime

sessions = [Runtime.create("cpu").open(Path(sys.argv[1]), REFERENCE) for _ in range(2)]
small = np.zeros((1, 3, 64, 64), np.float32)
large = np.zeros((1, 3, 1500, 1500), np.float32)  # 26 MiB

def run(session, picture, is_large):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    session.run(None, {"image": picture}, memory.kept_after(is_large))
    new_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * 4096 >> 20
    print(new_mib, psutil.Process().memory_info().rss >> 20)

run(sessions[0], small, False)  # as a model's warm-up does: what is taken first is never given back
run(sessions[0], large, False)
run(sessions[1], large, False)
run(sessions[1], large, True)
run(sessions[0], small, True)
"""


def test_sessions_share_what_is_kept_and_give_back_what_a_large_picture_took(
    tmp_path: Path,
) -> None:
    steps = ["image", "x1", "x2", "x3"]
    nodes = [tiny.node("Sigmoid", [given], made) for given, made in pairwise(steps)]
    path = tiny.save(tiny.model([*nodes, tiny.node("Neg", ["x3"])], size=None), tmp_path / "a.onnx")
    command = [sys.executable, "-c", SHARED, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = [list(map(int, line.split())) for line in ran.stdout.splitlines()]
    _, (first, kept), (second, _), (_, left), (_, last) = lines

    answer_mib = 26  # which is a new array each time
    assert first >= 2 * answer_mib
    assert second <= 1.2 * answer_mib
    assert kept - left >= 0.8 * answer_mib
    assert kept - last >= 1.8 * answer_mib


SIZES = """
import sys
from pathlib import Path
import numpy as np
import psutil
from styleserve.backend import Backend
from styleserve.runtime import Runtime

backend = Backend(("openvino", "cpu"))
session = Runtime.create("openvino", threads=1).open(Path(sys.argv[1]), backend)
for number in range(800):
    picture = np.zeros((1, 3, 32 + 4 * (number % 40), 32 + 4 * (number // 40)), np.float32)
    session.run(None, {"image": picture})
    if number in (199, 799):
        print(psutil.Process().memory_info().rss >> 20)
"""


def test_many_sizes_leave_little_behind(tmp_path: Path) -> None:
    if PROVIDERS["openvino"] not in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime is installed without OpenVINO")
    path = tiny.save(tiny.residual(), tmp_path / "a-18.onnx")
    command = [sys.executable, "-c", SIZES, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    early, late = map(int, ran.stdout.split())

    assert late - early < 60  # 150 MiB and more if all are kept
