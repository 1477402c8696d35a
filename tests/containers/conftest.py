"""Both images, built from a copy of what Git knows."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tiny_models as tiny
from tests.containers.engine import Container, Project, docker, why_not
from tests.e2e.conftest import slow
from tests.e2e.running import ROOT

Run = Callable[..., Container]
Compose = Callable[..., Project]


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """Skip without a Docker Engine."""
    if reason := why_not():
        pytest.skip(f"no Docker Engine: {reason}")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the user of the container can read, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="styleserve-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def checkout() -> Iterator[Path]:
    """A copy of the repository with nothing that was built in it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="styleserve-") as folder:
        Path(folder).chmod(0o755)
        for name in names.splitlines():
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        yield Path(folder)


@pytest.fixture(scope="session")
def images(checkout: Path, engine: None) -> dict[str, str]:
    """Build both images as Compose does."""
    docker("compose", "build", cwd=checkout)
    return {name: f"styleserve/{name}:latest" for name in ("server", "client")}


@pytest.fixture
def run(images: dict[str, str]) -> Iterator[Run]:
    """Start containers of the server that are gone when the test ends."""
    started: list[Container] = []

    def start(*options: str) -> Container:
        started.append(Container(images["server"], *options))
        return started[-1]

    yield start
    for container in started:
        container.remove()


@pytest.fixture
def slow_models(open_folder: Path) -> Path:
    tiny.save(slow(), open_folder / "slow.onnx")
    tiny.save(tiny.invert(), open_folder / "invert.onnx")
    for path in open_folder.iterdir():
        path.chmod(0o644)
    return open_folder
