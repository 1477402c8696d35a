"""Memory of the real server: over many pictures of many sizes, and for more models and pixels.

python benchmarks/soak.py [--models FOLDER] [--models-count N...]
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison import family
from benchmarks.comparison.load import http_call
from benchmarks.comparison.wires import V2
from benchmarks.overhead import copy_model
from styleserve.catalog import find_models
from styleserve.probe import picture
from tests.e2e.running import Running

REQUESTS, SAMPLE_EVERY = 2000, 100
SIZES, SHORTEST, LONGEST, SEED = 300, 64, 1024, 7
LIMIT = 1.05  # of the second half of the samples over the first
PICTURES = (480, 640), (1080, 1920), (2160, 3840)
SETTLE_S = 35.0  # the server gives memory back after 30
WIRE = V2("styled_image", binary=True)


@contextmanager
def serving(models: dict[str, Path]) -> Iterator[Running]:
    """Serve files under these names, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        for name, path in models.items():
            copy_model(path, Path(folder), name)
        running = Running(Path(folder), Path(folder))
        try:
            yield running.wait_ready()
            running.stop()
        finally:
            running.kill()


def soak(models: dict[str, Path]) -> None:
    """Send pictures of many sizes to all models in turn, and print the memory on the way."""
    chance, names, held = random.Random(SEED), list(models), list[float]()
    sides = range(SHORTEST, LONGEST + 1)
    pictures = [picture(*chance.choices(sides, k=2)) for _ in range(SIZES)]
    with serving(models) as running:
        call = http_call(running.http)
        print(f"{len(names)} models, {REQUESTS} pictures of {SIZES} sizes")
        print("| requests | PSS MiB |\n| --- | --- |")
        print(f"| 0 | {family.memory(running.process):.0f} |")
        for number in range(1, REQUESTS + 1):
            call(WIRE.ask(names[number % len(names)], chance.choice(pictures)))
            if number % SAMPLE_EVERY == 0:
                held.append(family.memory(running.process))
                print(f"| {number} | {held[-1]:.0f} |", flush=True)
    half = len(held) // 2
    ratio = statistics.median(held[half:]) / statistics.median(held[:half])
    verdict = "within" if ratio <= LIMIT else "ABOVE"
    print(f"second half / first half, medians: {ratio:.3f}, {verdict} the limit of {LIMIT}\n")


def grow(models: dict[str, Path], counts: list[int]) -> None:
    """Print the memory for more and more models, each called with larger and larger pictures."""
    files = list(models.values())
    print(
        "| models | picture | idle PSS, RSS MiB | peak | after |\n| --- | --- | --- | --- | --- |"
    )
    for count in counts:
        with serving({f"m{n}": files[n % len(files)] for n in range(count)}) as running:
            root, call = running.process, http_call(running.http)
            for height, width in PICTURES:
                idle = both(running)
                image = picture(height, width)
                with family.watched(root) as pss, family.watched(root, "rss") as rss:
                    for number in range(count):
                        call(WIRE.ask(f"m{number}", image))
                time.sleep(SETTLE_S)
                peak = f"{pss.mib:.0f}, {rss.mib:.0f}"
                print(f"| {count} | {width}x{height} | {idle} | {peak} | {both(running)} |")


def both(running: Running) -> str:
    """Tell the PSS and the RSS of a server, in MiB."""
    held = [family.memory(running.process, kind) for kind in ("pss", "rss")]
    return ", ".join(f"{mib:.0f}" for mib in held)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=Path, default=Path("models/converted"))
    parser.add_argument("--models-count", type=int, nargs="*", default=[1, 5, 10])
    arguments = parser.parse_args()
    models = find_models(arguments.models)
    soak(models)
    grow(models, arguments.models_count)


if __name__ == "__main__":
    main()
