"""Declared pipelines as typed nodes, and what is wrong with them.

`styleserve.reader` makes them of a YAML file, `styleserve.wiring` checks whether they fit together.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

PIPELINES = "pipelines.yaml"
IMAGE = "image"  # the name under which every node finds the picture of the request


@dataclass(frozen=True)
class Node:
    """One step: a model, or an operation with its options, on the results of other nodes."""

    name: str
    line: int
    inputs: tuple[str, ...] = ()
    model: str = ""
    op: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    fallback: str = ""  # the node whose result takes the place of a failure

    @property
    def reads(self) -> tuple[str, ...]:
        """The nodes whose results this one may need."""
        return (*self.inputs, self.fallback) if self.fallback else self.inputs

    @property
    def is_broken(self) -> bool:
        """Tell whether it had a fault, so that only its name is known."""
        return not (self.model or self.op)


@dataclass(frozen=True)
class Graph:
    """A declared pipeline, in the order of the file."""

    name: str
    line: int
    description: str
    nodes: Mapping[str, Node]
    output: str  # empty where it could not be read
    timeout_s: float


@dataclass
class Declaration:
    """The pipelines of a file, as far as they could be read, and what is wrong with them."""

    path: Path | None = None
    lines: dict[str, int] = field(default_factory=dict)  # where each pipeline begins
    graphs: list[Graph] = field(default_factory=list)
    _noted: list[tuple[int, str]] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """What is wrong, in the order of the lines."""
        return [what for _, what in sorted(self._noted, key=itemgetter(0))]

    def fault(self, line: int, pipeline: str, node: str, what: str) -> None:
        """Note what is wrong in a line; `node` may be empty."""
        inner = f"node {node}: " if node else ""
        self._noted.append((line, f"{self.path}:{line}: pipeline {pipeline}: {inner}{what}"))


def find_file(setting: str, models: Path) -> Path | None:
    """Return the file that `setting` names, or, if empty, one in the folder `models` or beside."""
    if setting:
        return Path(setting)
    usual = (folder / PIPELINES for folder in (models, models.absolute().parent))
    return next((path for path in usual if path.exists()), None)


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Say what may have been meant by `wrong`."""
    names = sorted(known)
    near = nearest(wrong, names)
    return f"did you mean {near}?" if near else f"there are {', '.join(names) or 'none'}"


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Return the name that is nearly `wrong`, or nothing."""
    return "".join(difflib.get_close_matches(wrong, sorted(known), n=1))
