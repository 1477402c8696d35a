"""What serving costs over the same work in process, five models at once: time, memory, start.

Both sides are called in turn, and the figures are medians, of differences and ratios within a pair
too, so that a busy machine slows both sides alike.

    python benchmarks/overhead.py [--models FOLDER] [--rounds N]
"""

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import tritonclient.http as triton

from benchmarks.comparison import family
from styleserve import memory
from styleserve.catalog import find_models
from styleserve.endpoint import Limits, StyleEndpoint
from styleserve.image import Image
from styleserve.model import StyleModel, load_model
from styleserve.probe import picture
from styleserve.runtime import Runtime
from tests.e2e.running import Running

HEIGHT, WIDTH = 480, 640
LARGE = 3000, 4000
MODELS = 5


def copy_model(model: Path, folder: Path, name: str) -> None:
    """Copy a model, and its layers in 8 bits, under another name."""
    for file in model.parent.glob(f"{model.stem}.*"):
        shutil.copy(file, folder / f"{name}{file.suffix}")


@contextmanager
def serving(models: list[Path]) -> Iterator[tuple[Running, float]]:
    """Serve copies of `models`, as many as needed; yield the server and its seconds to ready."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    for number in range(MODELS):
        copy_model(models[number % len(models)], folder, f"model{number}")
    start = time.perf_counter()
    running = Running(folder, folder).wait_ready()
    try:
        yield running, time.perf_counter() - start
    finally:
        running.stop()
        running.kill()
        shutil.rmtree(folder)


def seconds(call: Callable[[], object]) -> float:
    """Return the time that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def throughput(call: Callable[[], object], threads: int, count: int) -> float:
    """Return calls per second of `threads` threads that make `count` calls each."""

    def repeat() -> None:
        for _ in range(count):
            call()

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(repeat) for _ in range(threads)]
    for job in jobs:
        job.result()
    return threads * count / (time.perf_counter() - start)


def over_http(port: int, image: Image) -> Callable[[], object]:
    """Return a call that sends `image` as a binary tensor and reads the answer's bytes."""
    tensor = {"name": "image", "shape": image.shape, "datatype": "UINT8"}
    size = {"parameters": {"binary_data_size": image.nbytes}}
    answer = {"name": "styled_image", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [tensor | size], "outputs": [answer]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    clients = threading.local()  # a connection serves one thread

    def call() -> bytes:
        if not hasattr(clients, "own"):
            clients.own = HTTPConnection("127.0.0.1", port)
        clients.own.request("POST", "/v2/models/model0/infer", head + image.tobytes(), headers)
        return bytes(clients.own.getresponse().read())

    return call


def by_tritonclient(port: int, image: Image) -> Callable[[], object]:
    """Return a call that does the same with NVIDIA's client library."""
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")

    def call() -> object:
        tensor = triton.InferInput("image", image.shape, "UINT8")
        tensor.set_data_from_numpy(image)
        return client.infer("model0", [tensor]).as_numpy("styled_image")

    return call


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("models/converted"))
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    memory.keep_freed()  # as the server does
    models = sorted(find_models(arguments.models).values())
    image = picture(HEIGHT, WIDTH)
    model = load_model(models[0], Runtime.create())
    assert isinstance(model, StyleModel)
    endpoint = StyleEndpoint(model, Limits(1024, HEIGHT * WIDTH))

    def in_process() -> object:
        return endpoint({"image": image}, ["styled_image"])

    with serving(models) as (running, ready_s):
        idle = family.memory(running.process)
        remote, client = over_http(running.http, image), by_tritonclient(running.http, image)
        ways = in_process, remote, client
        for call in ways:
            call()
        times, rates = [], []
        for _ in range(arguments.rounds):
            times += [tuple(map(seconds, ways)) for _ in range(8)]
            rates.append((throughput(in_process, 4, 4), throughput(remote, 4, 4)))
        over_http(running.http, np.zeros((*LARGE, 3), np.uint8))()
        used = family.memory(running.process)
    local = statistics.median(row[0] for row in times)
    http, library = (statistics.median(row[way] - row[0] for row in times) for way in (1, 2))
    local_rate, http_rate = (statistics.median(column) for column in zip(*rates, strict=True))
    rate = statistics.median(remote / ours for ours, remote in rates)
    print(f"{models[0].name} at {WIDTH}x{HEIGHT}, medians of {arguments.rounds} rounds")
    print(f"one at a time: in process {1e3 * local:.1f} ms")
    print(f"  HTTP adds {1e3 * http:.1f} ms, by tritonclient {1e3 * library:.1f} ms")
    print(f"four at once: in process {local_rate:.2f}/s, HTTP {http_rate:.2f}/s, ratio {rate:.3f}")
    print(f"{MODELS} models: ready after {ready_s:.1f} s, {idle:.0f} MiB idle")
    print(f"  {used:.0f} MiB after these requests and a {LARGE[1]}x{LARGE[0]} picture")


if __name__ == "__main__":
    main()
