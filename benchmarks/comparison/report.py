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
from benchmarks.comparison.sides import Side
from benchmarks.comparison.workloads import ROOT

Line = dict[str, Any]
Key = tuple[str, str, int]  # workload, side, concurrency

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
    servers = {(line["workload"], line["side"]): line for line in lines if line["kind"] == "server"}
    rounds: dict[Key, list[Line]] = {}
    for line in lines:
        if line["kind"] == "round":
            key = line["workload"], line["side"], line["concurrency"]
            rounds.setdefault(key, []).append(line)
    return {key: _middle(rows) | servers[key[:2]] for key, rows in rounds.items()}


def _middle(rows: list[Line]) -> Line:
    known = [name for name in COLUMNS if name in rows[0]]
    middle = {name: statistics.median(row[name] for row in rows) for name in known}
    # Whoever reads one figure of correctness wants the worst.
    middle["max_difference"] = max(row["max_difference"] for row in rows)
    middle["psnr_db"] = min(row["psnr_db"] for row in rows)
    return middle


def table(lines: Sequence[Line]) -> str:
    """Return the medians as a Markdown table."""
    head = ["workload", "at once", "side", *(title for title, _ in COLUMNS.values())]
    rows = [head, ["---"] * len(head)]
    found = medians(lines)
    places = {(line["workload"], line["side"]): place for place, line in enumerate(lines)}
    workloads = list(dict.fromkeys(workload for workload, *_ in found))
    by_place = sorted(found, key=lambda k: (workloads.index(k[0]), k[2], places[k[:2]]))
    for workload, side, concurrency in by_place:
        figures = found[workload, side, concurrency]
        cells = [form.format(figures[name]) for name, (_, form) in COLUMNS.items()]
        rows.append([workload, str(concurrency), side, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
