"""The page as a subprocess."""

import json
import os
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

from tests.e2e.running import ROOT, free_ports

WAIT_S = 30.0
MAX_PIXELS = 1_000_000
NOWHERE = "http://127.0.0.1:9"  # as a proxy: nothing answers there


class Serving:
    """client.py as a subprocess, in a folder of its own."""

    def __init__(self, server_port: int, folder: Path, **settings: object) -> None:
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder, self.log_file = folder, folder.with_suffix(".log")
        own: dict[str, object] = {
            "url": f"http://127.0.0.1:{server_port}",
            "client_host": "127.0.0.1",
            "client_port": self.port,
            "max_pixels": MAX_PIXELS,
        }
        proxies = {name: NOWHERE for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy")}
        names = {f"STYLESERVE_{key.upper()}": str(value) for key, value in (own | settings).items()}
        temporary = folder.with_suffix(".tmp")
        for path in (folder, temporary):
            path.mkdir()
        with self.log_file.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "client.py")],
                cwd=folder,
                env=os.environ | proxies | names | {"no_proxy": "", "TMPDIR": str(temporary)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> "Serving":
        deadline = time.monotonic() + WAIT_S
        while not self.is_alive():
            assert self.process.poll() is None, f"the page ended:\n{self.log_file.read_text()}"
            assert time.monotonic() < deadline, f"no page:\n{self.log_file.read_text()}"
            time.sleep(0.1)
        return self

    def is_alive(self) -> bool:
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, bytes]:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
