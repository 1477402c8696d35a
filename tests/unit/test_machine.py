"""What is asked of the machine before the start."""

import os
import re
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from styleserve import leftovers, machine
from styleserve.errors import ConfigError
from styleserve.settings import ServerSettings

PORTS = ("http_port", "grpc_port", "metrics_port")


@pytest.fixture
def free_ports() -> dict[str, int]:
    """Three ports that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        ports = [each.getsockname()[1] for each in sockets]
    return dict(zip(PORTS, ports, strict=True))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for the sockets of a cache, which tmp_path is not."""
    with TemporaryDirectory() as name:
        yield Path(name)


NAMES = ("catalog", "n" * 20)


def settings(ports: dict[str, int], cache_dir: Path, **others: str | int) -> ServerSettings:
    values: dict[str, Any] = {"host": "127.0.0.1", "max_pixels": 1000, **ports, **others}
    return ServerSettings(cache_dir=cache_dir, **values)


def problems(ports: dict[str, int], cache_dir: Path, **others: str | int) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        machine.check(settings(ports, cache_dir, **others), NAMES)
    assert not any("\n" in problem for problem in caught.value.problems)
    return caught.value.problems


def test_a_good_machine_is_taken(free_ports: dict[str, int], folder: Path) -> None:
    cache = folder / "not/yet/there"

    machine.check(settings(free_ports, cache), NAMES)

    assert list(cache.iterdir()) == []


def test_every_busy_port_is_told(free_ports: dict[str, int], folder: Path) -> None:
    with ExitStack() as stack:
        for port in free_ports.values():
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        told = problems(free_ports, folder)

    for field, problem in zip(PORTS, told, strict=True):
        assert f"port {free_ports[field]} on 127.0.0.1" in problem
        assert "in use" in problem
        assert f"STYLESERVE_{field.upper()}" in problem


def test_a_port_busy_on_one_address_is_busy_for_all(
    free_ports: dict[str, int], folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", free_ports["grpc_port"])):
        (told,) = problems(free_ports, folder, host="0.0.0.0")

    assert "STYLESERVE_GRPC_PORT" in told


def test_a_host_that_is_not_ours_is_told(free_ports: dict[str, int], folder: Path) -> None:
    assert all("STYLESERVE_HOST" in each for each in problems(free_ports, folder, host="192.0.2.1"))


def test_a_host_that_is_no_name_is_told(free_ports: dict[str, int], folder: Path) -> None:
    told = problems(free_ports, folder, host="a" * 70)

    assert all("aaa cannot be used" in problem for problem in told)


# --- Python


def test_another_system_is_told(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    (told,) = problems(free_ports, folder)

    assert "Linux only, this is darwin" in told


@pytest.mark.parametrize(
    "changed",
    [
        {"INSTSONAME": "libpython3.11.a"},
        {"INSTSONAME": None},
        {"LIBDIR": "/nowhere"},
        {"LIBDIR": "/nowhere", "MULTIARCH": None},
    ],
)
def test_a_python_without_shared_library_is_told(
    free_ports: dict[str, int],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str | None],
) -> None:
    use_config(monkeypatch, **changed)

    (told,) = problems(free_ports, folder)

    assert "no shared library" in told
    assert "--enable-shared" in told


def test_a_static_library_is_not_enough(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "libpython3.99.a").touch()
    use_config(monkeypatch, INSTSONAME="libpython3.99.a", LIBDIR=str(folder))

    (told,) = problems(free_ports, folder)

    assert "no shared library (libpython3.99.a is not in" in told


@pytest.mark.parametrize("place", ["libpython3.99.so.1.0", "x86_64-linux/libpython3.99.so.1.0"])
def test_the_shared_library_may_lie_in_debians_folder(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    library = folder / "lib" / place
    library.parent.mkdir(parents=True)
    library.touch()
    use_config(
        monkeypatch,
        INSTSONAME=library.name,
        LIBDIR=str(folder / "lib"),
        MULTIARCH="x86_64-linux",
    )

    machine.check(settings(free_ports, folder), NAMES)


def use_config(monkeypatch: pytest.MonkeyPatch, **changed: str | None) -> None:
    original = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: changed.get(name, original(name)))


@pytest.mark.parametrize(("before", "after"), [(None, ""), ("", ""), ("/a:/b", ":/a:/b")])
def test_the_own_library_comes_first(
    monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
) -> None:
    use_config(monkeypatch, LIBDIR="/own")
    if before is None:
        monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    else:
        monkeypatch.setenv("LD_LIBRARY_PATH", before)

    assert machine.library_path() == f"/own{after}"


# --- cache


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_cache_that_cannot_be_written_is_told(
    free_ports: dict[str, int], folder: Path, below: str
) -> None:
    file = folder / "file"
    file.touch()

    (told,) = problems(free_ports, file / below)

    assert "cannot be written" in told
    assert str(file) in told
    assert "STYLESERVE_CACHE_DIR" in told


def test_a_read_only_cache_is_told(free_ports: dict[str, int]) -> None:
    (told,) = problems(free_ports, Path("/proc/styleserve"))

    assert "cannot be written" in told


def test_a_noexec_cache_is_told(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noexec = SimpleNamespace(f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(machine, "_shm_problems", lambda *_: [])
    monkeypatch.setattr(os, "statvfs", lambda path: noexec)

    (told,) = problems(free_ports, folder)

    assert "noexec" in told
    assert "STYLESERVE_CACHE_DIR" in told


def test_a_cache_path_too_long_for_sockets_is_told(
    free_ports: dict[str, int], folder: Path
) -> None:
    (told,) = problems(free_ports, folder / ("x" * 100))

    assert re.search(rf"the name {NAMES[1]} are together \d+ characters too long", told)
    assert "STYLESERVE_CACHE_DIR" in told


def test_the_longest_name_has_just_room_for_its_socket(
    free_ports: dict[str, int], folder: Path
) -> None:
    """Its path is <home>/<name>_0.sock."""
    (told,) = problems(free_ports, folder / ("x" * 100))
    (excess,) = map(int, re.findall(r"together (\d+) characters too long", told))
    cache = folder / ("x" * (100 - excess))

    machine.check(settings(free_ports, cache), NAMES)
    home = cache / f"{leftovers.PREFIX}{machine.new_token()}"
    socket_path = home / f"{max(NAMES, key=len)}_0.sock"
    assert len(str(socket_path)) == 107  # all that Linux takes
    assert problems(free_ports, folder / ("x" * (101 - excess)))


def test_a_cache_without_room_for_tritons_files_is_told(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = (24 << 20) + len(NAMES) * (512 << 10)
    space = {machine.SHM: SimpleNamespace(free=1 << 30), folder: SimpleNamespace(free=needed)}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: space[place])

    machine.check(settings(free_ports, folder), NAMES)
    space[folder].free -= 1
    (told,) = problems(free_ports, folder)

    assert told == (
        f"the cache folder {folder} has 24 MiB free, Triton's files need 25 MiB; free some, "
        "or set STYLESERVE_CACHE_DIR to another folder"
    )


def test_tokens_are_new_each_time() -> None:
    """PyTriton would use the dead connections of an older server on the same path."""
    tokens = {machine.new_token() for _ in range(100)}

    assert len(tokens) == 100
    assert all(token.isalnum() for token in tokens)  # part of file names and of patterns


# --- shared memory and memory


@pytest.mark.parametrize("exists", [True, False])
def test_too_little_shared_memory_is_told(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    monkeypatch.setattr(machine, "SHM", folder if exists else folder / "none")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64 << 20))

    (told,) = problems(free_ports, folder, max_pixels=50_000_000)

    assert f"has {64 if exists else 0} MiB free" in told
    assert "50,000,000 pixels need 636 MiB" in told
    assert "--shm-size" in told
    assert "STYLESERVE_MAX_PIXELS" in told


def test_just_enough_shared_memory_is_taken(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=(64 << 20) + 12 * 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)

    machine.check(settings(free_ports, folder, max_pixels=1000), NAMES)
    assert problems(free_ports, folder, max_pixels=1001)


@pytest.mark.parametrize(("models", "warnings"), [(2, 0), (3, 1)])
def test_shared_memory_for_some_models_only_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, models: int, warnings: int
) -> None:
    free = SimpleNamespace(free=(64 << 20) + 2 * 12 * 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)

    assert machine._shm_problems(1000, models) == []

    assert len(caplog.records) == warnings


@pytest.mark.parametrize(
    ("path", "free"), [("folder", 77), ("none", 0)], ids=["a folder", "no folder"]
)
def test_free_shared_memory_is_that_of_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, path: str, free: int
) -> None:
    (folder / "folder").mkdir()
    monkeypatch.setattr(machine, "SHM", folder / path)
    places = {folder / "folder": SimpleNamespace(free=77)}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: places[place])

    assert machine.free_shm() == free


def test_a_cache_of_more_than_half_of_the_memory_is_told(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=2000 << 20))

    machine.check(settings(free_ports, folder, cache_mb=1000), NAMES)
    (told,) = problems(free_ports, folder, cache_mb=1001)

    assert "cache_mb: 1001 MiB are more than half of this machine's 2000 MiB" in told
    assert "STYLESERVE_CACHE_MB" in told


def test_all_problems_are_told_at_once(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    use_config(monkeypatch, LIBDIR="/nowhere")
    (folder / "file").touch()

    with socket.create_server(("127.0.0.1", free_ports["http_port"])):
        assert len(problems(free_ports, folder / "file")) == 4


# --- providers


@pytest.mark.parametrize("gpu", [True, False])
def test_cuda_without_a_gpu_is_told_once(
    free_ports: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    monkeypatch.setattr(machine, "choose_providers", lambda _: ("cuda", "cpu"))
    monkeypatch.setattr(machine, "has_gpu", lambda: gpu)

    if gpu:
        machine.check(settings(free_ports, folder), NAMES)
    else:
        (told,) = problems(free_ports, folder)
        assert "needs an NVIDIA GPU" in told
        assert "STYLESERVE_PROVIDERS=cpu" in told


def test_a_provider_that_is_not_there_is_told_among_others(
    free_ports: dict[str, int], folder: Path
) -> None:
    told = problems(free_ports, folder, providers="abacus", host="192.0.2.1")

    assert len(told) == len(PORTS) + 1
