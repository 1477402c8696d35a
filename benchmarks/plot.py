"""Draw the results of compare.py: `python benchmarks/plot.py [RESULTS.jsonl] [FIGURE.svg]`."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display is needed
from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.comparison import report
from benchmarks.comparison.sides import IN_PROCESS, SIDES
from benchmarks.comparison.workloads import WORKLOADS

HIGHEST = 4.0  # higher bars are cut; their figures tell
WIDTH = 0.8  # of all bars of a workload together
OURS, OTHERS = ("#b2182b", "#ef8a62"), ("#2166ac", "#67a9cf", "#4d4d4d", "#999999", "#5aae61")


def colours(sides: list[str]) -> dict[str, str]:
    """Give our own sides warm colours, and cool ones to the others."""
    ours = [side for side in sides if side.startswith("styleserve")]
    others = [side for side in sides if side not in ours]
    return dict(zip(ours, OURS, strict=False)) | dict(zip(others, OTHERS, strict=False))


def draw_bars(axes: Axes, ratios: dict[str, list[float]]) -> None:
    """Draw a group of bars for each workload, one for each side."""
    width = WIDTH / len(ratios)
    for place, (side, colour) in enumerate(colours(list(ratios)).items()):
        first = (place + 0.5) * width - WIDTH / 2
        at = [middle + first for middle in range(len(ratios[side]))]
        shown = [min(ratio, HIGHEST) for ratio in ratios[side]]
        bars = axes.bar(at, shown, 0.9 * width, color=colour, label=side)
        texts = [f"{ratio:.2f}" for ratio in ratios[side]]
        axes.bar_label(bars, texts, rotation=90, padding=3, fontsize=8)
    axes.axhline(1, color="black", linewidth=1, linestyle="--", label=IN_PROCESS)


def draw(about: report.Line, lines: list[report.Line], concurrency: int, target: Path) -> None:
    """Draw the medians of one concurrency into a file."""
    found = report.medians(lines)
    workloads = [one for one in WORKLOADS if (one.name, IN_PROCESS, concurrency) in found]
    measured = {line["side"] for line in lines}
    sides = [side.name for side in SIDES if side.name in measured]
    figure, axes = pyplot.subplots(figsize=(12, 5.5), layout="constrained")
    ratios = [[found[one.name, side, concurrency]["ratio"] for one in workloads] for side in sides]
    draw_bars(axes, dict(zip(sides, ratios, strict=True)))
    axes.set_xticks(range(len(workloads)), [one.title.replace(", ", ",\n") for one in workloads])
    axes.set_ylim(0, HIGHEST + 0.4)
    axes.set_ylabel("images/s, in process = 1")
    axes.set_title(
        f"{about['model']}, {concurrency} requests at once, {about['cores']} cores of "
        f"{about['cpu']}, {about['commit']}; more is better",
        fontsize=11,
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(sides) + 1, frameon=False)
    figure.savefig(target)


def main() -> None:
    """Draw one figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("comparison.jsonl"))
    parser.add_argument("figure", type=Path, nargs="?", default=Path("docs/benchmark.svg"))
    parser.add_argument("--concurrency", type=int, default=4)
    arguments = parser.parse_args()
    draw(*report.read(arguments.results), arguments.concurrency, arguments.figure)


if __name__ == "__main__":
    main()
