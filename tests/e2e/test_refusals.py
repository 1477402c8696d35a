"""What server.py refuses: exit code 2 within seconds, one line for each thing to change."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import tiny_models as tiny
from tests.e2e.conftest import Launch

REFUSAL_S = 10.0
REFUSED = 2


@pytest.fixture
def refuse(launch: Launch) -> Callable[..., list[str]]:
    def start(models: Path, **settings: object) -> list[str]:
        running = launch(models, **settings)
        assert running.wait(REFUSAL_S) == REFUSED, running.log
        lines = [line for line in running.log.splitlines() if "cannot start: " in line]
        assert lines, running.log
        assert "Traceback" not in running.log
        return [line.partition("cannot start: ")[2] for line in lines]

    return start


Refuse = Callable[..., list[str]]


@pytest.fixture
def busy() -> Iterator[list[int]]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        yield [one.getsockname()[1] for one in taken]


def test_busy_ports_are_all_named(refuse: Refuse, tiny_folder: Path, busy: list[int]) -> None:
    names = ("http_port", "grpc_port", "metrics_port")
    problems = refuse(tiny_folder, **dict(zip(names, busy, strict=True)))
    assert len(problems) == 3
    for port, name, problem in zip(busy, names, problems, strict=True):
        assert str(port) in problem
        assert f"STYLESERVE_{name.upper()}" in problem


def test_bad_settings_are_all_named(refuse: Refuse, tiny_folder: Path) -> None:
    problems = refuse(tiny_folder, http_port="many", queue_size=0, log_level="loud")
    assert len(problems) == 3
    assert all("STYLESERVE_" in problem for problem in problems)
    assert "'many'" in problems[0]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 22 MiB, on a path that is short enough for sockets."""
    folder = tempfile.mkdtemp(prefix="ss-")
    mount = ["mount", "-t", "tmpfs", "-o", "size=22m", "none", folder]
    try:
        if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("no file system can be mounted here")
        yield Path(folder)
        subprocess.run(["umount", "--lazy", folder], check=True)
    finally:
        shutil.rmtree(folder)


def test_a_cache_folder_without_space(refuse: Refuse, tiny_folder: Path, small_disk: Path) -> None:
    (problem,) = refuse(tiny_folder, cache_dir=small_disk)
    assert problem.startswith(f"the cache folder {small_disk} has 22 MiB free, Triton's files need")
    assert "STYLESERVE_CACHE_DIR" in problem
    assert list(small_disk.iterdir()) == []


def test_unknown_setting(refuse: Refuse, tiny_folder: Path) -> None:
    (problem,) = refuse(tiny_folder, htpp_port=8000)
    assert "STYLESERVE_HTPP_PORT" in problem


def test_no_models(refuse: Refuse, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no *.onnx file" in refuse(empty)[0]
    assert "no *.onnx file" in refuse(tmp_path / "missing")[0]


def test_two_files_of_one_name(refuse: Refuse, tmp_path: Path) -> None:
    models = tmp_path / "models"
    tiny.save(tiny.identity(), models / "candy-8.onnx")
    tiny.save(tiny.identity(), models / "deep" / "Candy-9.onnx")
    (problem,) = refuse(models)
    assert "candy-8.onnx" in problem
    assert "Candy-9.onnx" in problem


NO_MODELS = {
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git-LFS"),
    "html": (b"<!DOCTYPE html><html><body>Not found</body></html>", "web page"),
    "empty": (b"", "empty"),
    "jpeg": (b"\xff\xd8\xff\xe0" + b"\0" * 100, "JPEG"),
    "garbage": (bytes(range(256)) * 40, "damaged"),
    "truncated": (tiny.invert().SerializeToString()[:-40], "cut short"),
}


@pytest.mark.parametrize(("data", "reason"), NO_MODELS.values(), ids=NO_MODELS)
def test_a_broken_file_among_good_ones(
    refuse: Refuse, tmp_path: Path, data: bytes, reason: str
) -> None:
    models = tmp_path / "models"
    tiny.save(tiny.identity(), models / "good.onnx")
    (models / "garbage.onnx").write_bytes(data)
    (problem,) = refuse(models)
    assert "garbage.onnx" in problem
    assert reason in problem


def test_models_of_the_wrong_kind_are_all_named(refuse: Refuse, tmp_path: Path) -> None:
    models = tmp_path / "models"
    tiny.save(tiny.two_inputs(), models / "two.onnx")
    tiny.save(tiny.channels_last(), models / "last.onnx")
    tiny.save(tiny.not_a_number(), models / "nan.onnx")
    tiny.save(tiny.identity(), models / "good.onnx")
    problems = refuse(models)
    assert len(problems) == 3
    assert {"two.onnx", "last.onnx", "nan.onnx"} == {
        Path(problem.partition(": ")[0]).name for problem in problems
    }


def test_a_folder_that_contains_itself_and_a_pipe(refuse: Refuse, tmp_path: Path) -> None:
    models = tmp_path / "models"
    tiny.save(tiny.identity(), models / "good.onnx")
    (models / "loop").symlink_to(models)
    (models / "again").symlink_to(models)
    os.mkfifo(models / "pipe.onnx")
    (problem,) = refuse(models)
    assert "pipe.onnx is no file" in problem


@pytest.mark.parametrize(
    ("setting", "value"),
    [("access_token", "a b"), ("cache_mb", 65536), ("host", "::1"), ("max_side", -1)],
)
def test_a_setting_out_of_range(
    refuse: Refuse, tiny_folder: Path, setting: str, value: object
) -> None:
    (problem,) = refuse(tiny_folder, **{setting: value})
    assert f"STYLESERVE_{setting.upper()}" in problem


def test_absent_provider(refuse: Refuse, tiny_folder: Path) -> None:
    (problem,) = refuse(tiny_folder, providers="tensorrt")
    assert "tensorrt" in problem
    assert "installed are" in problem


def test_cache_folder_that_is_a_file(refuse: Refuse, tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (problem,) = refuse(tiny_folder, cache_dir=tmp_path / "file")
    assert "STYLESERVE_CACHE_DIR" in problem


def test_host_of_another_machine(refuse: Refuse, tiny_folder: Path) -> None:
    problems = refuse(tiny_folder, host="192.0.2.1")
    assert "192.0.2.1" in problems[0]
