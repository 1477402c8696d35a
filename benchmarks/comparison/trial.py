"""One workload, all sides: rounds in which each is under load in turn, and is right."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
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


class WrongAnswer(Exception):  # noqa: N818  it is no error of this program
    """A side answered another picture."""


def measure(
    workload: Workload,
    model: Path,
    sides: Sequence[Side],
    rounds: int,
    seconds: float,
    concurrency: Sequence[int],
    record: Callable[..., None],
) -> None:
    """Start all sides, measure them in rounds, and record a line for each figure."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers, ours = prepare(model, workload, folder)
        local = stack.enter_context(closing(InProcess(workload, peers)))
        servers: list[Server] = [local]
        for side in sides:
            models = peers if side.peer else ours
            servers.append(stack.enter_context(closing(Served(side, workload, models))))
        right = local.answers()
        memory = {server.name: _warm_up(server, max(concurrency), seconds) for server in servers}
        for number in range(rounds):
            for threads in concurrency:
                first = (number + threads) % len(servers)
                turn = [*servers[first:], *servers[:first]]
                for name, figures in _round(turn, threads, seconds, right).items():
                    where = {"workload": workload.name, "side": name, "concurrency": threads}
                    record(kind="round", **where, round=number, **figures)
        for server in servers:
            held = memory[server.name] | {"after_mib": family.memory(server.process)}
            where = {"workload": workload.name, "side": server.name}
            record(kind="server", **where, cold_start_s=server.cold_start_s, **held)


def _warm_up(server: Server, threads: int, seconds: float) -> Figures:
    """Measure the memory, which takes time, under a load that is not timed."""
    idle = family.memory(server.process)
    with family.watched(server.process) as peak:
        server.drive(threads, seconds)
    return {"idle_mib": idle, "peak_mib": peak.mib}


def _round(
    turn: Sequence[Server], threads: int, seconds: float, right: Sequence[Image]
) -> dict[str, Figures]:
    found = {}
    for server in turn:
        before = family.cpu_seconds(server.process)
        load = server.drive(threads, seconds)
        cpu = family.cpu_seconds(server.process) - before
        found[server.name] = _figures(load, cpu) | _compared(server, load, right)
    measure_of_all = found[IN_PROCESS]["images_per_s"]
    return {
        name: figures | {"ratio": figures["images_per_s"] / measure_of_all}
        for name, figures in found.items()
    }


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
