"""One workload, all sides: rounds in which each is under load in turn, and is right."""

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison import family
from benchmarks.comparison.load import Load
from benchmarks.comparison.servers import InProcess, Served, Server
from benchmarks.comparison.sides import IN_PROCESS, Side
from benchmarks.comparison.workloads import Workload, prepare
from styleserve.image import Image

NEAR = 2  # levels of 255 that rounding may take
ENOUGH_DB = 40.0  # where less than fp32 is computed
SAME_DB = 99.0  # equal pictures have no end of it

Figures = dict[str, Any]
Turn = Callable[[], AbstractContextManager[Server]]  # gives a side for as long as it is measured


class WrongAnswer(Exception):  # noqa: N818  it is no error of this program
    """A side answered another picture."""


@dataclass(frozen=True)
class Plan:
    """How long each side is measured, and where the figures go."""

    rounds: int
    seconds: float
    concurrency: Sequence[int]
    record: Callable[..., None]


def measure(workload: Workload, model: Path, sides: Sequence[Side], plan: Plan) -> None:
    """Measure all sides in rounds, and record a line for each start and each load."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers, ours = prepare(model, workload, folder)
        starts: list[Callable[[], Server]] = [partial(InProcess, workload, peers)]
        starts += [partial(Served, side, workload, peers if side.peer else ours) for side in sides]
        with closing(InProcess(workload, peers)) as local:
            right = local.answers()
        turns: list[Turn] = [partial(_running, start, workload, plan) for start in starts]
        levels = [list(plan.concurrency)]
        if not workload.alone:
            servers = [stack.enter_context(turn()) for turn in turns]
            turns = [partial(_kept, server) for server in servers]
            levels = [[threads] for threads in plan.concurrency]
        for number, threads in itertools.product(range(plan.rounds), levels):
            first = (number + threads[0]) % len(turns)
            for line in _round([*turns[first:], *turns[:first]], threads, plan.seconds, right):
                plan.record(kind="round", workload=workload.name, round=number, **line)


def _kept(server: Server) -> AbstractContextManager[Server]:
    return nullcontext(server)


@contextmanager
def _running(start: Callable[[], Server], workload: Workload, plan: Plan) -> Iterator[Server]:
    """Start a side, measure its memory under a load that is not timed, and end it in the end."""
    with closing(start()) as server:
        idle = family.memory(server.process)
        with family.watched(server.process) as peak:
            server.drive(max(plan.concurrency), plan.seconds)
        yield server
        held = {"idle_mib": idle, "peak_mib": peak.mib, "after_mib": family.memory(server.process)}
        where = {"workload": workload.name, "side": server.name}
        plan.record(kind="server", **where, cold_start_s=server.cold_start_s, **held)


def _round(
    turns: Sequence[Turn], levels: Sequence[int], seconds: float, right: Sequence[Image]
) -> list[Figures]:
    lines: list[Figures] = []
    for turn in turns:
        with turn() as server:
            for threads in levels:
                before = family.cpu_seconds(server.process)
                load = server.drive(threads, seconds)
                cpu = family.cpu_seconds(server.process) - before
                line = {"side": server.name, "concurrency": threads}
                lines.append(line | _figures(load, cpu) | _compared(server, load, right))
    rates = {(line["side"], line["concurrency"]): line["images_per_s"] for line in lines}
    for line in lines:
        line["ratio"] = line["images_per_s"] / rates[IN_PROCESS, line["concurrency"]]
    return lines


def _figures(load: Load, cpu: float) -> Figures:
    p50, p95 = np.quantile(load.latencies, (0.5, 0.95))
    return {
        "images_per_s": load.rate,
        "p50_ms": 1e3 * p50,
        "p95_ms": 1e3 * p95,
        "cpu_s_per_image": cpu / len(load.latencies),
    }


def _compared(server: Server, load: Load, right: Sequence[Image]) -> Figures:
    """Compare the answers with the right ones.

    Raises:
        WrongAnswer: if they are too far apart.
    """
    differences = [
        np.abs(answer.astype(np.int16) - right[number]) for number, answer in load.answers.items()
    ]
    largest = max(int(difference.max()) for difference in differences)
    error = max(float(np.mean(np.square(difference, dtype=float))) for difference in differences)
    psnr = 10 * np.log10(255**2 / error) if error else SAME_DB
    if (largest > NEAR) if server.exact else (psnr < ENOUGH_DB):
        raise WrongAnswer(
            f"{server.name} answered another picture: up to {largest} of 255 apart, {psnr:.1f} dB"
        )
    return {"max_difference": largest, "psnr_db": float(psnr)}
