"""How fast models run, side by side in process: `python benchmarks/models.py MODEL...`.

The first model is the measure of the others. Each round runs every model once, and the table has
the medians of the rounds and of the ratios within a round, so that a busy machine slows all alike.
"""

import argparse
import statistics
import time
from pathlib import Path

from styleserve.model import MaskModel, StyleModel, load_model
from styleserve.probe import picture
from styleserve.runtime import Runtime

SIZES = (480, 640), (224, 224)


def seconds(model: StyleModel | MaskModel, height: int, width: int) -> float:
    """Return the time that `model` takes for one picture."""
    image = picture(height, width)
    start = time.perf_counter()
    model(image, 0)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="ONNX files")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    runtime = Runtime.create()
    models = [load_model(path, runtime) for path in arguments.models]
    print(f"{runtime.threads} threads, {' or '.join(map(str, runtime.backends))}")
    for size in SIZES:
        rounds = [[seconds(model, *size) for model in models] for _ in range(arguments.rounds)]
        for number, path in enumerate(arguments.models):
            middle = statistics.median(row[number] for row in rounds)
            share = statistics.median(row[number] / row[0] for row in rounds)
            print(f"{size[1]}x{size[0]} {path}: {1e3 * middle:.0f} ms, {share:.3f} of the first")


if __name__ == "__main__":
    main()
