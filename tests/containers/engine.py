"""Images, containers and Compose projects on a real Docker Engine."""

import base64
import contextlib
import http.client
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

from tests.e2e.running import ROOT, free_ports

PHOTO = ROOT / "docs" / "examples" / "coffee.jpg"
COMMAND_S = 900.0
READY_S = 120.0

# Ends the processes of that name in a container, whose image has no pkill.
KILL = """
import os, pathlib, sys
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    if (folder / "comm").read_text().startswith(sys.argv[1]) and int(folder.name) != os.getpid():
        os.kill(int(folder.name), 9)
"""


def docker(*arguments: str, cwd: Path = ROOT, **environment: str) -> str:
    """Run a docker command and return what it prints."""
    answer = subprocess.run(
        ["docker", *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    assert answer.returncode == 0, f"docker {' '.join(arguments)}:\n{answer.stderr[-3000:]}"
    return answer.stdout.strip()


def why_not() -> str:
    """Tell why there is no engine to test with; empty if there is one."""
    if not shutil.which("docker"):
        return "there is no docker command"
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if answer.returncode:
            return f"{' '.join(command)}: {answer.stderr.strip()}"
    return ""


def has_image(name: str) -> bool:
    """Tell whether an image is here or can be fetched."""
    commands = (["docker", "image", "inspect", name], ["docker", "pull", "--quiet", name])
    return any(
        subprocess.run(command, capture_output=True, timeout=COMMAND_S).returncode == 0
        for command in commands
    )


def wait(what: Callable[[], Any], seconds: float = READY_S, every: float = 0.2) -> float:
    """Wait until `what` is true; return the seconds that took."""
    start = time.monotonic()
    while not what():
        assert time.monotonic() < start + seconds, f"not within {seconds} s"
        time.sleep(every)
    return time.monotonic() - start


def kill_inside(container: str, name: str) -> None:
    """Kill the processes of that name in a container, which may end with them."""
    command = ["docker", "exec", container, "python", "-c", KILL, name]
    subprocess.run(command, capture_output=True, timeout=30)


class Api:
    """The HTTP endpoint on a port of this machine."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/v2/health/ready")[0] == HTTPStatus.OK
        return False

    def get(self, path: str) -> tuple[int, bytes]:
        return self._call("GET", path, b"", {})

    def post(self, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        return self._call("POST", path, body, headers)

    def styles(self) -> list[str]:
        status, answer = self.post("/v2/models/catalog/infer", b'{"inputs":[]}')
        assert status == HTTPStatus.OK, answer
        outputs = {output["name"]: output["data"] for output in json.loads(answer)["outputs"]}
        return list(outputs["names"])

    def paint(self, style: str, photo: Path = PHOTO, max_side: int = 128) -> tuple[int, int]:
        """Have a photo painted; return the size of the answer."""
        text = base64.b64encode(photo.read_bytes()).decode()
        inputs = [
            {"name": "encoded", "shape": [1], "datatype": "BYTES", "data": [text]},
            {"name": "max_side", "shape": [1], "datatype": "INT32", "data": [max_side]},
        ]
        body = json.dumps({"inputs": inputs}).encode()
        status, answer = self.post(f"/v2/models/{style}/infer", body)
        assert status == HTTPStatus.OK, answer[:500]
        painted = base64.b64decode(json.loads(answer)["outputs"][0]["data"][0])
        return Pillow.open(BytesIO(painted)).size

    def _call(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            with contextlib.suppress(BrokenPipeError):  # refused before all of it was sent
                connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


class Container:
    """A container of one image with the API on a port of its own."""

    def __init__(self, image: str, *options: str) -> None:
        self.name = f"styleserve-test-{secrets.token_hex(4)}"
        (port,) = free_ports(1)
        self.api = Api(port)
        published = f"127.0.0.1:{port}:8000"
        docker("run", "-d", "--name", self.name, "-p", published, *options, image)

    def state(self, part: str) -> str:
        return docker("inspect", "-f", f"{{{{.State.{part}}}}}", self.name)

    def log(self) -> str:
        command = ["docker", "logs", self.name]
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stderr

    def run(self, *command: str) -> str:
        return docker("exec", self.name, *command)

    def remove(self) -> None:
        docker("rm", "--force", self.name)


class Project:
    """A Compose project in a copy of the repository, on ports of its own."""

    def __init__(self, folder: Path, settings: dict[str, str], files: Sequence[str] = ()) -> None:
        ports = dict(zip(("HTTP", "GRPC", "METRICS", "CLIENT"), free_ports(4), strict=True))
        others = dict(zip(("PROMETHEUS_PORT", "GRAFANA_PORT"), free_ports(2), strict=True))
        self.ports = ports | others
        lines = {f"STYLESERVE_{name}_PORT": str(port) for name, port in ports.items()}
        lines |= {name: str(port) for name, port in others.items()}
        lines |= {"STYLESERVE_HOST": "127.0.0.1", "STYLESERVE_CLIENT_HOST": "127.0.0.1"}
        text = "\n".join(f"{name}={value}" for name, value in (lines | settings).items())
        (folder / ".env").write_text(text)
        self.api, self.page = Api(ports["HTTP"]), Api(ports["CLIENT"])
        self._folder = folder
        self._name = f"styleserve-test-{secrets.token_hex(4)}"
        self._files = [part for file in files for part in ("-f", file)]

    def compose(self, *arguments: str) -> str:
        return docker("compose", "-p", self._name, *self._files, *arguments, cwd=self._folder)

    def up(self, *arguments: str) -> None:
        self.compose("up", "--detach", "--wait", "--no-build", *arguments)

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--all", "--quiet", service).split()

    def down(self) -> None:
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "5")


@contextlib.contextmanager
def running(project: Project, *arguments: str) -> Iterator[Project]:
    """Bring a project up until the block ends."""
    try:
        project.up(*arguments)
        yield project
    finally:
        project.down()
