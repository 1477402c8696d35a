"""Calls from Triton's workers to this server: tensors lie in shared memory, a socket tells where.

PyTriton's own way leads through a third process, which keeps the memory, and through five threads.
This takes one thread for each worker; what is said about the tensors is JSON.

`styleserve.binding` copies this file next to the worker's; it may import nothing else of this
package than what is copied too.
"""

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from .mailbox import FullError, Inbox, Outbox, Tensors

LOGGER = logging.getLogger(__name__)

SHM = Path("/dev/shm")
GONE: list[Any] = []  # what a worker says when its caller no longer waits


class Error(NamedTuple):
    """Why there is no answer."""

    message: str
    is_callers: bool


class Reply(NamedTuple):
    """What comes back for a request: an answer or an error, and what is to be counted."""

    answer: Tensors
    error: Error | None
    figures: list[Any]  # see `styleserve.ticket`; anything that JSON can say


class Caller:
    """The worker's end of a channel."""

    def __init__(self, home: Path, name: str) -> None:
        """Connect to the desk of this `name`, which must be there."""
        connecting = socket.socket(socket.AF_UNIX)
        connecting.connect(str(_address(home, name)))
        self._connection = Connection(connecting.detach())
        self._outbox, self._inbox = Outbox(_requests(home, name)), Inbox(_answers(home, name))

    def send(self, tensors: Tensors, outputs: list[str]) -> None:
        """Ask for `outputs`.

        Raises:
            FullError: if shared memory has no room for `tensors`.
        """
        _say(self._connection, [self._outbox.put(tensors), outputs])

    def withdraw(self) -> None:
        """Say that nobody waits for the answer any more."""
        _say(self._connection, GONE)

    def receive(self) -> Reply:
        """Wait for the reply; its numbers are views, which the next one changes."""
        places, error, figures = _hear(self._connection)
        self._outbox.trim()
        return Reply(self._inbox.get(places), Error(*error) if error else None, figures)


class Desk(threading.Thread):
    """The server's end of a channel: a thread that answers one request after another."""

    def __init__(self, home: Path, name: str) -> None:
        """Listen for the worker; `serve` to answer it."""
        super().__init__(name=f"desk of {name}", daemon=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(_address(home, name)))
        listener.listen(1)
        self._sockets = [listener]
        self._is_closed = False
        self._connection: Connection | None = None
        self._outbox, self._inbox = Outbox(_answers(home, name)), Inbox(_requests(home, name))

    def serve(self, call: Callable[[Tensors, list[str]], Reply]) -> None:
        """Answer with what `call` makes of the tensors and the names of the outputs asked for."""
        self._call = call
        self.start()

    def is_gone(self) -> bool:
        """Tell whether nobody waits for the answer that is being made."""
        try:
            return self._connection is not None and self._connection.poll()
        except OSError:
            return True

    def close(self) -> None:
        """End, after the answer that is being made, which nobody gets."""
        self._is_closed = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Answer until the worker ends, or this server does."""
        with contextlib.suppress(EOFError, OSError):
            accepted, _ = self._sockets[0].accept()
            self._sockets.append(accepted)
            self._connection = Connection(os.dup(accepted.fileno()))
            while not self._is_closed:
                message = _hear(self._connection)
                if message != GONE:  # else it came when the answer had been sent
                    self._outbox.trim()
                    places, outputs = message
                    _say(self._connection, self._reply(self._inbox.get(places), outputs))
        for each in (*self._sockets, self._connection, self._outbox, self._inbox):
            if each:
                each.close()

    def _reply(self, tensors: Tensors, outputs: list[str]) -> list[Any]:
        reply = self._call(tensors, outputs)
        try:
            return [self._outbox.put(reply.answer), reply.error, reply.figures]
        except FullError as error:
            LOGGER.error("%s: %s (%s)", self.name, FullError.MESSAGE, error)
            return [[], Error(FullError.MESSAGE, is_callers=False), reply.figures]


def _say(connection: Connection, message: list[Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _hear(connection: Connection) -> Any:  # noqa: ANN401  what JSON can say
    return json.loads(connection.recv_bytes())


def _address(home: Path, name: str) -> Path:
    return home / f"{name}.sock"


def _requests(home: Path, name: str) -> Path:
    # The name of the server's folder in front lets a clean-up find it when a kill leaves it behind.
    return SHM / f"{home.name}-{name}.requests"


def _answers(home: Path, name: str) -> Path:
    return SHM / f"{home.name}-{name}.answers"
