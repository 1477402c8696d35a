"""What a running Triton tells of itself over HTTP."""

import http.client
import re

TIMEOUT_S = 5.0
PENDING = re.compile(r"^nv_inference_pending_request_count\{.*\} (\d+)", re.MULTILINE)


def is_ready(host: str, port: int) -> bool:
    """Tell whether every model can be called."""
    return _get(host, port, "/v2/health/ready") is not None


def pending(host: str, metrics_port: int) -> int | None:
    """Return how many requests wait for a model; None if Triton does not tell."""
    text = _get(host, metrics_port, "/metrics")
    return None if text is None else sum(map(int, PENDING.findall(text)))


def _get(host: str, port: int, path: str) -> str | None:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        return text if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
