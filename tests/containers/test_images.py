"""What the image of the server promises, by itself."""

import json
import math
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
import yaml
from PIL import Image as Pillow

from styleserve.declaration import PIPELINES
from styleserve.settings import ServerSettings
from tests.containers.conftest import Run
from tests.containers.engine import PHOTO, Container, docker, kill_inside, wait
from tests.e2e.running import ROOT

README = (ROOT / "README.md").read_text()
COMMAND = next(
    block for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "--cap-drop" in block
)
# As documented, without what a test chooses itself: name, ports, image, and who waits for it.
HARDENING = re.findall(r"--(?:read-only|(?:cap-drop|security-opt|tmpfs|shm-size)[ =]\S+)", COMMAND)
OPTIONS = [part for option in HARDENING for part in re.split("[ =]", option, maxsplit=1)]
LARGE_SIDE = 512  # takes the slow model some seconds


@pytest.fixture(scope="module")
def hardened(images: dict[str, str]) -> Iterator[Container]:
    container = Container(images["server"], *OPTIONS)
    wait(container.api.is_ready)
    yield container
    container.remove()


def test_the_embedded_styles_and_pipelines_paint(hardened: Container) -> None:
    styles = yaml.safe_load((ROOT / "params.yaml").read_text())["models"]
    styles |= yaml.safe_load((ROOT / "models" / PIPELINES).read_text())
    assert sorted(hardened.api.styles()) == sorted(styles)
    with Pillow.open(PHOTO) as photo:
        assert [hardened.api.paint(style) for style in styles] == [photo.size] * len(styles)


def test_every_model_takes_the_largest_picture(hardened: Container) -> None:
    side = math.isqrt(ServerSettings.model_fields["max_pixels"].default)
    image = triton.InferInput("image", [side, side, 3], "UINT8")
    image.set_data_from_numpy(np.zeros((side, side, 3), np.uint8))
    address = hardened.api.url.removeprefix("http://")
    with triton.InferenceServerClient(address, network_timeout=120) as client:
        for style in hardened.api.styles():
            styled = client.infer(style, [image]).as_numpy("styled_image")
            assert styled.shape == (side, side, 3), style


def test_the_container_becomes_healthy(hardened: Container) -> None:
    wait(lambda: hardened.state("Health.Status") == "healthy", 30)


def test_it_runs_hardened(hardened: Container) -> None:
    assert "--read-only" in OPTIONS
    status = hardened.run("cat", "/proc/self/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["10001"] * 4
    assert int(facts["CapBnd"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    with pytest.raises(AssertionError, match="Read-only file system"):
        hardened.run("touch", "/app/file")


def test_log_lines_are_json(hardened: Container) -> None:
    lines = [json.loads(line) for line in hardened.log().splitlines()]
    assert any("ready after" in line["message"] for line in lines)
    assert not [line for line in lines if line["level"] in ("WARNING", "ERROR")]


@pytest.mark.parametrize("target", ["server", "client"])
def test_no_build_tools_are_left(images: dict[str, str], target: str) -> None:
    script = (
        "! command -v gcc && ! command -v make && ! command -v dvc && ! python -c 'import onnx'"
    )
    docker("run", "--rm", "--entrypoint", "sh", images[target], "-c", script)


def test_a_killed_triton_heals_and_leaves_no_zombies(run: Run) -> None:
    container = run(*OPTIONS)
    wait(container.api.is_ready)
    kill_inside(container.name, "tritonserver")
    wait(lambda: not container.api.is_ready(), 5, every=0.05)
    print(f"healed in {wait(container.api.is_ready):.1f} s")  # noqa: T201  a figure for the README
    assert container.api.paint("dots")
    assert container.state("Status") == "running"
    zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"
    wait(lambda: container.run("sh", "-c", zombies) == "0", 10)


def test_a_stop_in_mid_request_loses_nothing(run: Run, slow_models: Path) -> None:
    models = ("-v", f"{slow_models}:/models:ro", "-e", "STYLESERVE_MODELS_DIR=/models")
    container = run(*OPTIONS, *models)
    wait(container.api.is_ready)
    assert sorted(container.api.styles()) == ["invert", "slow"]
    with ThreadPoolExecutor() as pool, Pillow.open(PHOTO) as photo:
        request = pool.submit(container.api.paint, "slow", max_side=LARGE_SIDE)
        time.sleep(1)
        assert not request.done()
        docker("stop", "--timeout", "45", container.name)
        assert request.result() == photo.size
    assert container.state("ExitCode") == "0"


def test_a_wrong_setting_is_told_with_exit_code_2(run: Run) -> None:
    container = run("-e", "STYLESERVE_QUEUE_SIZE=0")
    wait(lambda: container.state("Status") == "exited", 20)
    assert container.state("ExitCode") == "2"
    assert "queue_size" in container.log()


@pytest.mark.parametrize(("name", "mode"), [("", 0o700), ("", 0o744), ("slow.onnx", 0o600)])
def test_what_it_may_not_read_is_told(run: Run, slow_models: Path, name: str, mode: int) -> None:
    (slow_models / name).chmod(mode)
    container = run(
        *("--shm-size=1g", "-e", "STYLESERVE_MODELS_DIR=/models", "-v", f"{slow_models}:/models")
    )
    wait(lambda: container.state("Status") == "exited", 20)
    assert container.state("ExitCode") == "2"
    told = r"/models\S* cannot be read: Permission denied; let user 10001"
    assert re.search(told, container.log())


def test_threads_follow_the_quota(run: Run) -> None:
    container = run("--cpus", "1", "--shm-size", "1g")
    wait(lambda: "loading models" in container.log(), 60)
    assert "1 threads" in container.log()
