"""What pipelines cost and gain, in process: overhead, branches side by side, peak memory.

Every round measures the sides of a ratio one after the other, and the table has the medians of the
rounds, so that a busy machine slows all sides alike.

    python benchmarks/pipelines.py [--models FOLDER] [--rounds N]
"""

import argparse
import multiprocessing
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from styleserve import memory
from styleserve.catalog import Catalog, find_models, load_catalog
from styleserve.probe import picture
from styleserve.reader import read
from styleserve.runtime import Runtime

KIB_PER_MIB = 1024
SMALL, LARGE = (480, 640), (1080, 1920)

DECLARED = """\
one: {{nodes: {{a: {{model: {model}}}}}, output: a}}
two:
  nodes:
    a: {{model: {model}}}
    b: {{model: {model}}}
    out: {{op: blend, inputs: [a, b], weights: [1, 1]}}
  output: out
six:
  nodes:
    subject: {{op: saliency}}
    soft: {{op: blur, radius: 0.01, inputs: [subject]}}
    inside: {{model: {model}}}
    around: {{model: {model}, inputs: [flipped]}}
    flipped: {{op: flip, axis: horizontal}}
    out: {{op: composite, inputs: [inside, around, soft]}}
  output: out
"""


def load(folder: Path, name: str, threads: int, at_once: int) -> Catalog:
    """Load one model of `folder` and pipelines of it."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(DECLARED.format(model=name))
        file.flush()
        declared = read(Path(file.name))
    paths = {name: find_models(folder)[name]}
    return load_catalog(paths, declared, Runtime.create("cpu", threads, at_once))


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def rounds(count: int, *calls: Callable[[], object]) -> list[list[float]]:
    """Return the seconds of each call, in each round; the first round is not counted."""
    return [[seconds(call) for call in calls] for _ in range(count + 1)][1:]


def resident(kind: str) -> float:
    """Return the MiB of this process: VmRSS for now, VmHWM for the most since it was reset."""
    (line,) = re.findall(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) / KIB_PER_MIB


def peak_mib(folder: Path, model: str, served: str) -> float:
    """Return by how much one large picture raises the memory of a fresh process at its peak."""
    memory.keep_freed()  # as the server does
    catalog = load(folder, model, 2, 1)
    image = picture(*LARGE)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    catalog[served](image, 0)
    return resident("VmHWM") - before


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("models/converted"))
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    memory.keep_freed()
    folder, name = arguments.models, min(find_models(arguments.models))
    image = picture(*SMALL)

    both = load(folder, name, 2, 1)
    times = rounds(arguments.rounds, lambda: both[name](image, 0), lambda: both["one"](image, 0))
    ratio = statistics.median(pipeline / model for model, pipeline in times)
    added = statistics.median(pipeline - model for model, pipeline in times)
    print(f"{name} at {SMALL[1]}x{SMALL[0]}, medians of {arguments.rounds} rounds")
    print(f"pipeline of one node / its model: {ratio:.4f} ({1e3 * added:+.2f} ms)")

    by_cap = [load(folder, name, threads, cap)["two"] for threads, cap in ((1, 1), (1, 2), (2, 1))]
    times = rounds(arguments.rounds, *(lambda p=p: p(image, 0) for p in by_cap))
    for what, column in (("one thread each, side by side", 1), ("two threads each, in turn", 2)):
        gain = statistics.median(row[column] / row[0] for row in times)
        print(f"two branches, {what} / one thread each, in turn: {gain:.3f}")

    context = multiprocessing.get_context("spawn")
    for served in (name, "one", "six"):
        with context.Pool(1) as pool:
            peak = pool.apply(peak_mib, (folder, name, served))
        print(f"peak memory of {LARGE[1]}x{LARGE[0]} through {served}: {peak:.0f} MiB more")


if __name__ == "__main__":
    main()
