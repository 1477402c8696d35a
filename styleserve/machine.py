"""What the server needs of the machine, checked before it starts, and what it leaves behind."""

import logging
import os
import secrets
import shutil
import socket
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

import psutil

from styleserve import channel, leftovers
from styleserve.backend import GPU, choose_providers
from styleserve.errors import ConfigError
from styleserve.settings import ServerSettings

LOGGER = logging.getLogger(__name__)

SHM = channel.SHM
# Measured: each worker reserves 4 MB, and a picture lies there up to four times (request and
# answer, once for Triton and once in our mailboxes). Until Triton starts anew, it keeps the room
# that each worker's largest picture took.
SHM_BASE_BYTES = 64 << 20
SHM_COPIES = 4
# Triton is copied into the cache folder, and 316 KiB of files for each model: 23 MiB for three.
CACHE_BASE_BYTES, CACHE_MODEL_BYTES = 24 << 20, 512 << 10
# A socket's path may have 107 characters; the longest of ours is <home>/<model name>_0.sock.
SOCKET_PATH_LIMIT = 107


def check(settings: ServerSettings, names: Collection[str]) -> None:
    """Refuse a machine on which the server could not serve models of these `names`.

    Raises:
        ConfigError: with one line for each thing to change.
    """
    problems = (
        *_port_problems(settings),
        *_python_problems(),
        *_cache_problems(settings.cache_dir, names),
        *_shm_problems(settings.max_pixels, len(names)),
        *_memory_problems(settings.cache_mb << 20),
        *_provider_problems(settings.providers),
    )
    if problems:
        raise ConfigError(*problems)


def new_token() -> str:
    """Return a part of a file name that no other server has, nor this one before a restart."""
    return secrets.token_hex(4)


def library_path() -> str:
    """Return LD_LIBRARY_PATH with this Python's own libpython first.

    Triton's workers are linked to libpython3.X.so. Where they find the system's copy of another
    patch version, no model loads.
    """
    own = str(sysconfig.get_config_var("LIBDIR"))
    return ":".join(filter(None, (own, os.environ.get("LD_LIBRARY_PATH"))))


def has_gpu() -> bool:
    """Tell whether this machine shows an NVIDIA GPU."""
    return Path("/dev/nvidiactl").exists()


def free_shm() -> int:
    """Return the bytes that are free in shared memory."""
    return shutil.disk_usage(SHM).free if SHM.is_dir() else 0


def _port_problems(settings: ServerSettings) -> list[str]:
    problems = []
    for field in ("http_port", "grpc_port", "metrics_port"):
        port = getattr(settings, field)
        try:
            with socket.create_server((settings.host, port)):
                pass
        except OSError as error:
            problems.append(
                f"port {port} on {settings.host} cannot be used: {error.strerror}; free it or set "
                f"STYLESERVE_{field.upper()} or STYLESERVE_HOST"
            )
    return problems


def _python_problems() -> list[str]:
    if not sys.platform.startswith("linux"):
        return [f"PyTriton runs on Linux only, this is {sys.platform}; use the container"]
    name = sysconfig.get_config_var("INSTSONAME") or "libpython"
    folder, triplet = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("MULTIARCH")
    if any(Path(folder, part, name).exists() for part in ("", triplet or "")) and ".so" in name:
        return []
    return [
        f"this Python {sys.version.split()[0]} has no shared library ({name} is not in {folder}), "
        f"which Triton's workers need; install one built with --enable-shared (for pyenv: "
        f"PYTHON_CONFIGURE_OPTS=--enable-shared) or Debian's libpython3"
    ]


def _cache_problems(folder: Path, names: Collection[str]) -> list[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        return [f"the cache folder {folder} cannot be written: {error.strerror}; {_set_cache()}"]
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return [f"the cache folder {folder} is mounted noexec, Triton runs from it; {_set_cache()}"]
    return [*_length_problems(folder, max(names, key=len)), *_space_problems(folder, len(names))]


def _length_problems(folder: Path, longest_name: str) -> list[str]:
    workspace = folder.resolve() / leftovers.PREFIX
    longest = len(f"{workspace}{new_token()}/_0.sock") + len(longest_name)
    if longest <= SOCKET_PATH_LIMIT:
        return []
    return [
        f"the cache folder's path {folder} and the name {longest_name} are together "
        f"{longest - SOCKET_PATH_LIMIT} characters too long; {_set_cache()}, or shorten the name"
    ]


def _space_problems(folder: Path, models: int) -> list[str]:
    free = shutil.disk_usage(folder).free
    needed = CACHE_BASE_BYTES + models * CACHE_MODEL_BYTES
    if free >= needed:
        return []
    return [
        f"the cache folder {folder} has {free >> 20} MiB free, Triton's files need {needed >> 20} "
        f"MiB; free some, or {_set_cache()}"
    ]


def _set_cache() -> str:
    return "set STYLESERVE_CACHE_DIR to another folder"


def _shm_problems(max_pixels: int, models: int) -> list[str]:
    free = free_shm()
    needed, wanted = (SHM_BASE_BYTES + SHM_COPIES * 3 * max_pixels * n for n in (1, models))
    if free >= needed:
        if free < wanted:
            LOGGER.warning(
                "%s has %d MiB free; the largest pictures in every model would take %d MiB, with "
                "less some are refused until a restart; enlarge it or lower STYLESERVE_MAX_PIXELS",
                *(SHM, free >> 20, wanted >> 20),
            )
        return []
    return [
        f"{SHM} has {free >> 20} MiB free, pictures of up to {max_pixels:,} pixels need "
        f"{needed >> 20} MiB; enlarge it (docker run --shm-size=4g) or lower STYLESERVE_MAX_PIXELS"
    ]


def _memory_problems(cache_bytes: int) -> list[str]:
    total = psutil.virtual_memory().total
    if cache_bytes <= total // 2:
        return []
    return [
        f"cache_mb: {cache_bytes >> 20} MiB are more than half of this machine's "
        f"{total >> 20} MiB of memory; lower STYLESERVE_CACHE_MB"
    ]


def _provider_problems(setting: str) -> list[str]:
    try:
        wanted = GPU & set(choose_providers(setting))
    except ConfigError as error:
        return list(error.problems)
    if not wanted or has_gpu() or Path("/dev/dxg").exists():  # which Windows gives to WSL
        return []
    names = ", ".join(sorted(wanted))
    return [
        f"providers: {names} needs an NVIDIA GPU, and this machine or container shows none; start "
        f"it with one (docker run --gpus=all), or set STYLESERVE_PROVIDERS=cpu"
    ]
