"""Run a web application until a signal comes: port, health, temporary files. Knows no widgets."""

import contextlib
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from styleserve.errors import ConfigError
from styleserve.remote import Remote

GRACE_S = 3  # for answers under way when the page ends
HEALTH_TIMEOUT_S = 2.0
KEPT_S, SWEEP_S = 3600, 60
PREFIX = "styleserve-page-"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: if the port is taken or the address is none of this machine.
    """
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"port {port} on {host} cannot be used ({error.strerror}); "
            "stop what runs there, or set STYLESERVE_CLIENT_PORT"
        ) from error


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make the folder for all temporary files of this process; nothing in it gets old.

    What a killed process left is deleted at the same age.
    """
    parent = Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    tempfile.tempdir = str(folder)
    stop = threading.Event()

    def keep_clean() -> None:
        while not stop.wait(SWEEP_S):
            sweep([*parent.glob(f"{PREFIX}*")], KEPT_S)

    threading.Thread(target=keep_clean, daemon=True).start()
    try:
        yield folder
    finally:
        stop.set()
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folders: Sequence[Path], age_s: float) -> None:
    """Delete the files below `folders` that lie there for `age_s`, and the folders left empty."""
    limit = time.time() - age_s
    for folder in folders:
        for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before itself
            try:
                if path.lstat().st_ctime >= limit:
                    continue
                path.rmdir() if path.is_dir() else path.unlink()
            except OSError:  # in use, or gone already
                continue


def application(url: str) -> FastAPI:
    """Make an application that tells its own health and that of the server at `url`."""
    app = FastAPI(openapi_url=None)
    remote = Remote(url, HEALTH_TIMEOUT_S)

    @app.get("/health")
    def health() -> dict[str, str | bool]:
        return {"page": "ok", "server": remote.is_ready()}

    return app


def run(app: FastAPI, listener: socket.socket) -> None:
    """Serve `app` until SIGTERM or SIGINT."""
    # uvicorn raises the signal again when it has stopped; that must not end the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S
    )
    uvicorn.Server(config).run(sockets=[listener])
