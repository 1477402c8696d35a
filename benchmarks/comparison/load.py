"""Load: threads that call, one call after the other, until the time is over. Knows no server."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from typing import Any, TypeVar

import grpc

from benchmarks.comparison.wires import Answer, Request

Asked = TypeVar("Asked")
Given = TypeVar("Given")
TIMEOUT_S = 600
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class CallError(Exception):
    """A request was not answered with 200."""


@dataclass(frozen=True)
class Load:
    """What threads measured: seconds of each call and of all, the last answer to each request."""

    latencies: list[float]
    elapsed: float
    answers: dict[int, Any]

    @property
    def rate(self) -> float:
        """Calls per second."""
        return len(self.latencies) / self.elapsed


def drive(
    connect: Callable[[], Callable[[Asked], Given]],
    requests: Sequence[Asked],
    threads: int,
    seconds: float,
) -> Load:
    """Call with `requests` in turn from as many threads, each with a connection of its own.

    Each thread calls at least once, and all that was begun in time is finished and counted.
    """
    load = Load([], 0.0, {})
    turn, calls = itertools.count(), [connect() for _ in range(threads)]
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(_work, call, requests, turn, start + seconds, load) for call in calls]
    elapsed = time.perf_counter() - start
    for job in jobs:
        job.result()
    return replace(load, elapsed=elapsed)


def _work(
    call: Callable[[Asked], Given],
    requests: Sequence[Asked],
    turn: Iterator[int],
    deadline: float,
    load: Load,
) -> None:
    while True:
        number = next(turn) % len(requests)
        start = time.perf_counter()
        load.answers[number] = call(requests[number])
        end = time.perf_counter()
        load.latencies.append(end - start)
        if end > deadline:
            return


def http_call(port: int) -> Callable[[Request], Answer]:
    """Return a call over a connection that stays open."""
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def call(request: Request) -> Answer:
        connection.request("POST", request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise CallError(f"{request.path} was answered {response.status}: {body[:500]!r}")
        return Answer(body, dict(response.headers))

    return call


def grpc_call(port: int) -> Callable[[Request], Answer]:
    """Return a call over a connection that stays open; bytes go in and come out as they are."""
    # Without a pool of its own each channel would share one connection.
    own = [*ANY_SIZE, ("grpc.use_local_subchannel_pool", 1)]
    method = grpc.insecure_channel(f"127.0.0.1:{port}", own).unary_unary(GRPC_METHOD)

    def call(request: Request) -> Answer:
        try:
            return Answer(method(request.body, timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            raise CallError(str(error)) from error

    return call
