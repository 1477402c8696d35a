"""From a folder of model files and a file of pipelines to {served name: callable}."""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from styleserve import reader, wiring
from styleserve.declaration import Declaration, find_file
from styleserve.errors import ConfigError, ModelError, unreadable
from styleserve.image import Image
from styleserve.kinds import Kind
from styleserve.model import MaskModel, StyleModel, load_models
from styleserve.pipeline import Model, Pipeline
from styleserve.runtime import Runtime

LOGGER = logging.getLogger(__name__)

RESERVED = "catalog"  # the model that lists the others
ALLOWED_CHARACTERS = "letters, digits, '_', '-' and, but for the first one, '.'"
ALLOWED_NAME = re.compile(r"(?![.])[A-Za-z0-9._-]+")
ROOTS = "lost+found"  # in every file system of its own, for root only
MOST_RUNS = 1000  # nodes of one request
VERSION_SUFFIX = re.compile(r"-\d+$")


class Stylizer(Protocol):
    """What is served: a picture in, a picture of the same size out."""

    def __call__(self, image: Image, max_side: int) -> Image:
        """Return `image` (uint8 HxWx3 RGB) styled, worked on at `max_side` pixels (0: no limit)."""

    def describe(self) -> dict[str, Any]:
        """Tell callers about it, as JSON."""


Catalog = Mapping[str, Stylizer]


def served_name(path: Path) -> str:
    """Return the name a model file is served under: its stem up to the last `-<digits>`."""
    return VERSION_SUFFIX.sub("", path.stem)


def find_models(folder: Path) -> dict[str, Path]:
    """Return {served name: file} for every *.onnx below `folder`, hidden folders left out.

    Raises:
        ModelError: if there is none, if a folder cannot be read, or listing every file whose name
            clashes or is not allowed.
    """
    try:
        paths = _model_paths(folder)
        problems = [problem for path in paths if (problem := _name_problem(path))]
    except OSError as error:
        raise ModelError(unreadable(error)) from error
    found: dict[str, Path] = {}
    for path in paths:
        # Triton's Python layer tells names apart without regard to case.
        other = found.setdefault(served_name(path).lower(), path)
        if other != path:
            problems.append(
                f"{other} and {path} would both be served as {served_name(path)}; "
                "rename or remove one"
            )
    if problems:
        raise ModelError(*problems)
    return {served_name(path): path for path in paths}


def find_pipelines(setting: str, models: Path) -> Declaration:
    """Read the file that `setting` names, or, if it is empty, one in the folder `models` or beside.

    Raises:
        ConfigError: if there is no such file, or it is no YAML.
    """
    path = find_file(setting, models)
    return reader.read(path) if path else Declaration()


def load_catalog(models: Mapping[str, Path], declared: Declaration, runtime: Runtime) -> Catalog:
    """Load and warm up {served name: file}, and make the declared pipelines of them.

    Masks are for the pipelines alone: they give no pictures, so they are not served by themselves.

    Raises:
        ModelError: with one line for each file that cannot be served.
        ConfigError: with one line for each fault of the pipelines.
    """
    loaded = load_models(models, runtime)
    pipelines = make_pipelines(declared, loaded, runtime.concurrency)
    styles = {name: model for name, model in loaded.items() if isinstance(model, StyleModel)}
    return {**styles, **pipelines}


def make_pipelines(
    declared: Declaration, loaded: Mapping[str, StyleModel | MaskModel], at_once: int
) -> Mapping[str, Pipeline]:
    """Make the declared pipelines, of which each runs at most `at_once` nodes of a request.

    Raises:
        ConfigError: with one line for each fault.
    """
    gives: dict[str, Kind] = {
        name: "mask" if isinstance(model, MaskModel) else "image" for name, model in loaded.items()
    }
    _check_names(declared, loaded)
    wiring.check(declared, gives)
    if declared.faults:
        raise ConfigError(*declared.faults)
    models: dict[str, Model] = dict(loaded)
    made: dict[str, Pipeline] = {}
    runs: dict[str, int] = {}  # with those of nested pipelines
    for graph in wiring.nested_first(declared.graphs):
        runs[graph.name] = sum(runs.get(node.model, 1) for node in graph.nodes.values())
        if runs[graph.name] > MOST_RUNS:
            raise ConfigError(
                f"{declared.path}:{graph.line}: pipeline {graph.name}: with the pipelines in it, "
                f"it has {runs[graph.name]:,} nodes, and at most {MOST_RUNS:,} are allowed"
            )
        models[graph.name] = made[graph.name] = Pipeline(graph, models, at_once)
        LOGGER.info("pipeline ready: %s of %d nodes", graph.name, len(graph.nodes))
    return made


def _check_names(declared: Declaration, models: Iterable[str]) -> None:
    """Hold the names of the pipelines to the rules for all that is served."""
    taken = {name.lower(): "a model" for name in models} | {RESERVED: "the list of models"}
    for name, line in declared.lines.items():
        if not ALLOWED_NAME.fullmatch(name):
            what = f"its name has other characters than {ALLOWED_CHARACTERS}; rename it"
            declared.fault(line, name, "", what)
        if name.lower() in taken:
            what = f"this name belongs to {taken[name.lower()]}; rename the pipeline"
            declared.fault(line, name, "", what)
        taken[name.lower()] = "another pipeline"


def _model_paths(folder: Path) -> list[Path]:
    if folder.is_file():
        raise ModelError(f"{folder} is a file; set STYLESERVE_MODELS_DIR to the folder it lies in")
    if paths := sorted(_model_files(folder)):
        return paths
    raise ModelError(
        f"no *.onnx file in {folder.resolve()}; run `make models`, or set STYLESERVE_MODELS_DIR to "
        f"the folder with yours; in a container, see what is mounted there"
    )


def _model_files(folder: Path) -> Iterator[Path]:
    """Follow links, but into no folder twice, and leave out what is hidden.

    Kubernetes keeps second copies of mounted files in hidden folders.
    """
    seen: set[Path] = set()
    for root, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        if (real := Path(root).resolve()) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name != ROOTS and name[0] != ".")
        for name in files:
            if name.endswith(".onnx") and not name.startswith("."):
                yield Path(root, name)


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _name_problem(path: Path) -> str | None:
    name = served_name(path)
    if not path.is_file():
        return f"{path} is no file, or a link to none; remove it"
    if not ALLOWED_NAME.fullmatch(name):
        return f"{path}: a served name has {ALLOWED_CHARACTERS}, got {name!r}; rename it"
    if name.lower() == RESERVED:
        return f"{path}: the name {RESERVED} belongs to the list of models; rename the file"
    return None
