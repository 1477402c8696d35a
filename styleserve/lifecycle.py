"""Start the server, watch it, restart it when a part of it dies, stop it."""

import logging
import os
import resource
import threading
import time
from collections import deque

from styleserve import machine
from styleserve.catalog import Catalog
from styleserve.serving import Server
from styleserve.settings import ServerSettings
from styleserve.triton import StartError

LOGGER = logging.getLogger(__name__)

# Triton copies a JSON body onto a thread's stack and dies where it does not fit. Bodies of half of
# this passed in every trial; the memory is reserved, not used.
STACK_BYTES = 512 << 20
WATCH_PERIOD_S = 0.75
MAX_RESTARTS = 5
RESTART_WINDOW_S = 600.0


def run(catalog: Catalog, settings: ServerSettings, stop: threading.Event) -> bool:
    """Serve `catalog` until `stop` is set; restart when tritonserver or a worker dies.

    Returns:
        True after an orderly stop, False when it died too often to go on.
    """
    os.environ["LD_LIBRARY_PATH"] = machine.library_path()
    _raise_stack_limit()
    deaths: deque[float] = deque(maxlen=MAX_RESTARTS + 1)
    while not stop.is_set():
        _serve(catalog, settings, stop)
        if stop.is_set():
            break
        deaths.append(time.monotonic())
        if len(deaths) > MAX_RESTARTS and deaths[-1] - deaths[0] < RESTART_WINDOW_S:
            LOGGER.error("giving up: %d restarts in %d s", MAX_RESTARTS, RESTART_WINDOW_S)
            return False
    return True


def _serve(catalog: Catalog, settings: ServerSettings, stop: threading.Event) -> None:
    """Serve until asked to stop or until something dies."""
    LOGGER.info("starting Triton")
    start = time.perf_counter()
    server = Server(catalog, settings, stop)
    try:
        server.start()
        LOGGER.info(
            "ready after %.1f s: POST http://%s:%d/v2/models/NAME/infer, NAME one of %s; "
            "gRPC on port %d, metrics on %d",
            *(time.perf_counter() - start, settings.host, settings.http_port),
            *(", ".join(catalog), settings.grpc_port, settings.metrics_port),
        )
        _watch(server, stop)
    except StartError as error:
        LOGGER.log(logging.INFO if stop.is_set() else logging.ERROR, "%s", error)
    finally:
        try:
            server.stop()
        finally:
            server.kill()
            server.release()


def _watch(server: Server, stop: threading.Event) -> None:
    while not stop.wait(WATCH_PERIOD_S):
        if not server.is_whole():
            LOGGER.error("a process of Triton has died, restarting it")
            server.kill()  # else a request that waits for the dead one holds everything up
            return
    LOGGER.info("stopping, running requests are finished first")


def _raise_stack_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    allowed = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (allowed, hard))
    if allowed < STACK_BYTES:
        LOGGER.warning(
            "the stack limit of this machine allows JSON bodies of up to %d MiB, larger ones "
            "restart the server; raise `ulimit -Hs` to %d",
            *(allowed >> 21, STACK_BYTES >> 10),
        )
