"""Files of the command line: found by name, folder or pattern, and written whole or not at all."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from styleserve.errors import ConfigError

PHOTOS = (
    *(".png", ".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".avif", ".heic", ".heif"),
)
VIDEOS = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".wmv", ".mpg", ".mpeg")
STDIO = "-"
NAME_BYTES = 255  # the longest name that Linux's file systems take
_MAGIC = "*?["


@dataclass(frozen=True)
class Found:
    """A file to style."""

    path: Path | None  # None is standard input
    place: Path  # where its result goes, below OUT

    def __str__(self) -> str:
        """Name it as the user did."""
        return STDIO if self.path is None else str(self.path)


def is_video(path: Path) -> bool:
    """Tell by its name whether `path` is a video."""
    return path.suffix.lower() in VIDEOS


def find(inputs: Sequence[str], out: str) -> list[Found]:
    """Find the files that `inputs` name: files, folders, patterns, `-`.

    Hidden files below a folder are left out, and so are other kinds than photos and videos, and
    the results of an earlier run, when the folder `out` lies inside an input folder. A file named
    by itself is taken whatever it is called.

    Raises:
        ConfigError: naming an input that does not exist, or one with nothing to style.
    """
    for text in (*inputs, out):
        check_names(Path(text))
    return [found for text in inputs for found in _find(text, Path(out).resolve())]


def check_names(path: Path) -> None:
    """Refuse a path that no file can have, of which the system tells only once a folder is there.

    Raises:
        ConfigError: naming the part that is too long.
    """
    for name in path.parts:
        size = len(os.fsencode(name))
        if size > NAME_BYTES:
            raise ConfigError(
                f"the name {name} has {size} bytes, allowed are {NAME_BYTES}; shorten it"
            )


def prepare(target: Path | None) -> None:
    """Make the folder of a result: if that fails, it does so before anything is sent.

    Raises:
        ConfigError: if not.
    """
    if target is None:
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror
    else:
        reason = "" if os.access(target.parent, os.W_OK) else "Permission denied"
    if reason:
        raise ConfigError(f"{target.parent} cannot be written to ({reason}); name another folder")


@contextmanager
def saving(target: Path, then: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Give a path to write to; that file becomes `target` at the end, or vanishes on an error.

    `then` is called with it: no signal comes between the two.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Nothing is made here: an interrupt between making it and `try` would leave it behind.
    part = target.with_name(f".part-{token_hex(8)}{target.suffix}")
    try:
        yield part
        with _uninterrupted():
            part.replace(target)
            then()
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the end of this, which has to be short."""
    late: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, lambda came, _: late.append(came))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came in late:
            signal.raise_signal(came)


def _find(text: str, out: Path) -> list[Found]:
    path = Path(text)
    if text == STDIO:
        return [Found(None, Path(STDIO))]
    if path.is_dir():
        found = _below(path, path.rglob("*"), out)
    elif path.exists():
        return [Found(path, Path(path.name))]
    else:
        found = _matching(path, out)
    if not found:
        kinds = ", ".join(PHOTOS + VIDEOS)
        raise ConfigError(f"{text} holds no photo or video; looked for files with {kinds}")
    return found


def _matching(pattern: Path, out: Path) -> list[Found]:
    fixed = 0
    while fixed < len(pattern.parts) and not set(pattern.parts[fixed]) & set(_MAGIC):
        fixed += 1
    if fixed == len(pattern.parts):
        raise ConfigError(f"{pattern} does not exist; name a photo, a video, a folder or a pattern")
    base = Path(*pattern.parts[:fixed])
    try:
        return _below(base, base.glob("/".join(pattern.parts[fixed:])), out)
    except ValueError as error:
        raise ConfigError(
            f"{pattern} is no pattern: {error}; ** stands for whole folders"
        ) from error


def _below(base: Path, paths: Iterable[Path], out: Path) -> list[Found]:
    folder = base.resolve()
    results = out if out != folder and out.is_relative_to(folder) else None

    def wanted(path: Path) -> bool:
        hidden = any(part.startswith(".") for part in path.relative_to(base).parts)
        old = results is not None and path.resolve().is_relative_to(results)
        return path.suffix.lower() in PHOTOS + VIDEOS and path.is_file() and not hidden and not old

    return [Found(path, path.relative_to(base)) for path in sorted(paths) if wanted(path)]
