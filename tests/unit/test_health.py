"""What is asked of a running Triton, answered here by a small server."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from styleserve import health

# As Triton writes it, one model for each line.
METRICS = """\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="udnie",version="1"} 12
nv_inference_pending_request_count{model="catalog",version="1"} 0
nv_inference_pending_request_count{model="candy",version="1"} 3
nv_inference_count{model="candy",version="1"} 500
"""


class Triton(BaseHTTPRequestHandler):
    """Knows one path."""

    path_known = ""
    status = 200
    body = b""

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == self.path_known else 404)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Triton) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield http.server_port
        http.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "ready"), [(200, True), (400, False), (503, False)])
def test_ready_is_what_triton_says(
    port: int, monkeypatch: pytest.MonkeyPatch, status: int, ready: bool
) -> None:
    monkeypatch.setattr(Triton, "path_known", "/v2/health/ready")
    monkeypatch.setattr(Triton, "status", status)

    assert health.is_ready("127.0.0.1", port) is ready


@pytest.mark.parametrize(
    ("status", "text", "count"),
    [
        (200, METRICS, 15),
        (200, "nv_other 5\n\xff", 0),
        (503, METRICS, None),
    ],
)
def test_pending_requests_are_those_of_all_models(
    port: int, monkeypatch: pytest.MonkeyPatch, status: int, text: str, count: int | None
) -> None:
    monkeypatch.setattr(Triton, "path_known", "/metrics")
    monkeypatch.setattr(Triton, "status", status)
    monkeypatch.setattr(Triton, "body", text.encode("latin-1"))

    assert health.pending("127.0.0.1", port) == count


def test_a_closed_port_tells_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

    assert not health.is_ready("127.0.0.1", port)
    assert health.pending("127.0.0.1", port) is None


@pytest.mark.parametrize("words", [b"", b"no HTTP\r\n\r\n"], ids=["silent", "other"])
def test_what_does_not_answer_as_triton_does_tells_nothing_in_time(
    monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    monkeypatch.setattr(health, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.sendall(words)
                connection.recv(1000)
                connection.recv(1000)  # until the other side gives up

        thread = threading.Thread(target=answer)
        thread.start()

        assert health.pending("127.0.0.1", listening.getsockname()[1]) is None

        thread.join(5)
        assert not thread.is_alive()
