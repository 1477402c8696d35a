"""The Python that runs a peer: this one if it has what the peer needs, else one made for it."""

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PEERS = Path(__file__).parents[1] / "peers"


class InstallError(Exception):
    """An environment could not be made."""


def python_for(peer: str) -> Path:
    """Return the interpreter of a peer; it is made where it is missing or its needs have changed.

    Raises:
        InstallError: with what pip said last.
    """
    if all(_is_here(name, version) for name, version in needs(peer).items()):
        return Path(sys.executable)
    file, home = PEERS / f"{peer}.txt", PEERS / ".venvs" / peer
    made_for = home / file.name
    if not made_for.exists() or made_for.read_text() != file.read_text():
        _make(home, file)
        shutil.copy(file, made_for)
    return home / "bin" / "python"


def needs(peer: str) -> dict[str, str]:
    """Return the packages that a peer needs, and their versions."""
    lines = (PEERS / f"{peer}.txt").read_text().splitlines()
    pinned = (line.partition("#")[0].strip().split("==") for line in lines)
    return {name: version for name, version in pinned}


def _is_here(name: str, version: str) -> bool:
    try:
        return metadata.version(name) == version
    except metadata.PackageNotFoundError:
        return False


def _make(home: Path, file: Path) -> None:
    print(f"making the environment of {file.stem}", file=sys.stderr)
    # This environment's pip installs into it, which saves installing another.
    make: list[str | Path] = [sys.executable, "-m", "venv", "--clear", "--without-pip", home]
    install: list[str | Path] = ["--python", home / "bin" / "python", "install", "-q", "-r", file]
    for command in (make, [sys.executable, "-m", "pip", *install]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise InstallError(f"{file.stem}: {said[-1] if said else done.returncode}")
