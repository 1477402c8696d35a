"""What the README tells people to type works as it stands there."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image as Pillow

from styleserve import convert
from tests.e2e.page import Serving
from tests.e2e.running import ROOT, Running, serving

README = (ROOT / "README.md").read_text()
BLOCKS = {
    language: re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    for language in ("sh", "python")
}
PHOTO = ROOT / "docs" / "examples" / "astronaut.jpg"
COFFEE = ROOT / "docs" / "examples" / "coffee.jpg"


@pytest.fixture(scope="module")
def styles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The embedded styles and pipelines, served as `make run` serves them."""
    folder = tmp_path_factory.mktemp("styles") / "converted"
    shutil.copy(ROOT / "models" / "pipelines.yaml", folder.parent)
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    for name, item in params["models"].items():
        target = folder / f"{name}-{params['opset']}.onnx"
        convert.convert(ROOT / item["raw"], target, params["opset"], item["description"])
    with serving(folder, tmp_path_factory.mktemp("styles-server")) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like the repository to the commands, and takes what they write."""
    for name in ("docs", "query.json"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def _curl(number: int, styles: Running, folder: Path) -> bytes:
    commands = [block for block in BLOCKS["sh"] if "curl" in block]
    command = commands[number].replace("localhost:8000", f"127.0.0.1:{styles.http}")
    script = f"set -euo pipefail\n{command}"
    answer = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stderr.decode()
    return answer.stdout


def test_the_smallest_request(styles: Running, folder: Path) -> None:
    (output,) = json.loads(_curl(0, styles, folder))["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == (
        "styled_image",
        "UINT8",
        [5, 5, 3],
    )
    assert len(output["data"]) == 75


def test_a_photo_as_a_file(styles: Running, folder: Path) -> None:
    _curl(1, styles, folder)
    with Pillow.open(folder / "styled.jpg") as styled, Pillow.open(PHOTO) as photo:
        assert (styled.format, styled.size) == ("JPEG", photo.size)


def test_the_python_snippet(styles: Running, folder: Path) -> None:
    snippet, _ = BLOCKS["python"]
    code = snippet.replace("localhost:8000", f"127.0.0.1:{styles.http}")
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stderr.decode()
    with Pillow.open(folder / "styled.png") as styled, Pillow.open(PHOTO) as photo:
        assert styled.size == photo.size


def test_the_snippet_for_the_page(styles: Running, folder: Path) -> None:
    page = Serving(styles.http, folder / "page").wait_ready()
    try:
        _, snippet = BLOCKS["python"]
        code = snippet.replace("http://localhost:7860", page.url) + "print(png)"
        answer = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, timeout=60, check=False
        )
    finally:
        page.end()
    assert answer.returncode == 0, answer.stderr.decode()
    written = answer.stdout.decode().splitlines()[-1]
    with Pillow.open(written) as painted, Pillow.open(COFFEE) as photo:
        assert (painted.format, painted.size) == ("PNG", photo.size)


def _served(styles: Running, kind: str) -> list[str]:
    names, details = (styles.infer("catalog", output) for output in ("names", "details"))
    kinds = [json.loads(text)["kind"] for text in details]
    return [name.decode() for name, found in zip(names, kinds, strict=True) if found == kind]


def test_the_styles_differ_and_change_the_photo(styles: Running) -> None:
    with Pillow.open(PHOTO) as file:
        photo = np.asarray(file)
    names = _served(styles, "style")
    pictures = {name: styles.infer(name, image=photo).astype(int) for name in names}
    assert len(names) == 4
    for name, picture in pictures.items():
        assert np.abs(picture - photo).mean() > 10, name
        others = [other for key, other in pictures.items() if key != name]
        assert min(np.abs(picture - other).mean() for other in others) > 10, name


def test_the_pipelines_change_the_photo(styles: Running) -> None:
    with Pillow.open(PHOTO) as file:
        photo = np.asarray(file)
    names = _served(styles, "pipeline")
    assert names == ["painted-subject", "printed-scene"]
    for name in names:
        picture = styles.infer(name, image=photo).astype(int)
        assert picture.shape == photo.shape
        assert np.abs(picture - photo).mean() > 5, name
