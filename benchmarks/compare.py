"""This server side by side with others: speed, CPU time, memory and start, for the same answers.

All servers of a workload run at once, and idle but for one, which is under load (with large
pictures, for which memory would not do, each is started for its turn); each round gives each its
turn, in another order. Ratios are within a round, to plain ONNX Runtime in process.

    python benchmarks/compare.py [--model RAW.onnx] [--rounds N] [--seconds S] [--out FILE]
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, TypeVar

from benchmarks.comparison import environments, report
from benchmarks.comparison.sides import SIDES, Side
from benchmarks.comparison.trial import Plan, measure
from benchmarks.comparison.workloads import WORKLOADS, Workload

SMOKE = {"rounds": 1, "seconds": 0.1, "concurrency": [2], "workloads": ["fixed", "json"]}
Named = TypeVar("Named", Side, Workload)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("models/raw/dots-9.onnx"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="for each side in each round")
    parser.add_argument("--sides", nargs="+", default=[side.name for side in SIDES])
    parser.add_argument("--workloads", nargs="+", default=[one.name for one in WORKLOADS])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--out", type=Path, default=Path("comparison.jsonl"))
    parser.add_argument("--smoke", action="store_true", help="one short round; times mean nothing")
    options = parser.parse_args()
    if options.smoke:
        parser.set_defaults(**SMOKE)
        options = parser.parse_args()
    return options


def chosen(names: Sequence[str], known: Sequence[Named]) -> list[Named]:
    """Return those of `known` that are named."""
    by_name = {one.name: one for one in known}
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"{', '.join(unknown)}: there are {', '.join(by_name)}")
    return [by_name[name] for name in names]


def installed(sides: Sequence[Side], smoke: bool) -> list[Side]:
    """Make the environments of the sides; a smoke test leaves out those that cannot be made."""
    kept = []
    for side in sides:
        try:
            if side.peer:
                environments.python_for(side.peer)
        except environments.InstallError as error:
            if not smoke:
                sys.exit(f"{error}\nleave it out with --sides")
            print(f"left out: {error}", file=sys.stderr)
        else:
            kept.append(side)
    return kept


def run(options: argparse.Namespace, file: TextIO) -> list[report.Line]:
    """Measure all that is chosen; return the lines that were written into the file."""
    lines: list[report.Line] = []

    def record(**line: object) -> None:
        lines.append(line)
        print(json.dumps(line), file=file, flush=True)

    sides = installed(chosen(options.sides, SIDES), options.smoke)
    plan = Plan(options.rounds, options.seconds, options.concurrency, record)
    how = {name: getattr(options, name) for name in ("rounds", "seconds", "concurrency")}
    record(**report.machine(options.model, sides, **how))
    for workload in chosen(options.workloads, WORKLOADS):
        print(f"{workload.name}: {workload.title}", file=sys.stderr, flush=True)
        measure(workload, options.model, sides, plan)
    return lines


def main() -> None:
    """Measure and print a table."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the servers first
    with options.out.open("w") as file:
        about, *lines = run(options, file)
    print(f"{about['model']} on {about['cores']} cores of {about['cpu']}, {about['commit']}")
    for side, versions in about["versions"].items():
        print(f"{side}: {', '.join(f'{name} {version}' for name, version in versions.items())}")
    print(report.table(lines))


if __name__ == "__main__":
    main()
