"""Results: lines of JSON, their medians, and the table that is printed."""

import json
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.comparison import environments
from benchmarks.comparison.sides import IN_PROCESS, SIDES, Side
from benchmarks.comparison.workloads import ROOT, WORKLOADS

Line = dict[str, Any]
Key = tuple[Any, Any, Any]  # workload, side, concurrency

COLUMNS = {
    "ratio": ("images/s, of in process", "{:.3f}"),
    "images_per_s": ("images/s", "{:.2f}"),
    "p50_ms": ("p50 ms", "{:.0f}"),
    "p95_ms": ("p95 ms", "{:.0f}"),
    "cpu_s_per_image": ("CPU s/image", "{:.3f}"),
    "max_difference": ("max difference", "{:.0f}"),
    "psnr_db": ("PSNR dB", "{:.1f}"),
    "cold_start_s": ("cold start s", "{:.1f}"),
    "idle_mib": ("idle MiB", "{:.0f}"),
    "peak_mib": ("peak MiB", "{:.0f}"),
    "after_mib": ("after MiB", "{:.0f}"),
}


def machine(model: Path, sides: Iterable[Side], **options: object) -> Line:
    """Say what is measured, and on what."""
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "kind": "machine",
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(psutil.Process().cpu_affinity()),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "model": model.name,
        "versions": {side.name: environments.needs(side.peer) for side in sides if side.peer},
        **options,
    }


def read(file: Path) -> tuple[Line, list[Line]]:
    """Read a file of results: the machine, and all other lines."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return lines[0], lines[1:]


def medians(lines: Sequence[Line]) -> dict[Key, Line]:
    """Return the medians of the rounds, and of the ratios within a round."""
    groups: dict[Key, list[Line]] = {}
    for line in lines:
        key = line["workload"], line["side"], line.get("concurrency")
        groups.setdefault(key, []).append(line)
    middles = {key: _middle(rows) for key, rows in groups.items()}
    return {
        (workload, side, concurrency): middle | middles[workload, side, None]
        for (workload, side, concurrency), middle in middles.items()
        if concurrency
    }


def _middle(rows: list[Line]) -> Line:
    # Whoever reads one figure of correctness wants the worst.
    of = {"max_difference": max, "psnr_db": min}
    known = [name for name in COLUMNS if name in rows[0]]
    return {name: of.get(name, statistics.median)(row[name] for row in rows) for name in known}


def table(lines: Sequence[Line]) -> str:
    """Return the medians as a Markdown table."""
    head = ["workload", "at once", "side", *(title for title, _ in COLUMNS.values())]
    rows = [head, ["---"] * len(head)]
    found = medians(lines)
    names = [one.name for one in WORKLOADS]
    sides = [IN_PROCESS, *(side.name for side in SIDES)]
    in_order = sorted(found, key=lambda k: (names.index(k[0]), k[2], sides.index(k[1])))
    for workload, side, concurrency in in_order:
        figures = found[workload, side, concurrency]
        cells = [form.format(figures[name]) for name, (_, form) in COLUMNS.items()]
        rows.append([workload, str(concurrency), side, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
