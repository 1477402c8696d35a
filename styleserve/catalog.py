"""From a folder of model files to {served name: callable}."""

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from styleserve.errors import ModelError
from styleserve.image import Image
from styleserve.model import StyleModel
from styleserve.runtime import Runtime

LOGGER = logging.getLogger(__name__)

RESERVED = "catalog"  # the model that lists the others
ALLOWED_NAME = re.compile(r"[A-Za-z0-9._-]+")
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
        ModelError: if there is none, or listing every file whose name clashes or is not allowed.
    """
    if folder.is_file():
        raise ModelError(f"{folder} is a file; set STYLESERVE_MODELS_DIR to the folder it lies in")
    paths = sorted(_model_files(folder))
    if not paths:
        raise ModelError(
            f"no *.onnx file in {folder.resolve()}; run `make models`, or set "
            f"STYLESERVE_MODELS_DIR to the folder with yours"
        )
    problems = [problem for path in paths if (problem := _name_problem(path))]
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


def load_catalog(models: Mapping[str, Path], runtime: Runtime) -> Catalog:
    """Load and warm up {served name: file}, in parallel, telling the progress in the log.

    Raises:
        ModelError: with one line for each file that cannot be served.
    """
    catalog: dict[str, Stylizer] = {}
    problems: list[str] = []
    with ThreadPoolExecutor(max_workers=runtime.threads) as pool:
        jobs = {name: pool.submit(_load, path, runtime) for name, path in models.items()}
        for number, (name, job) in enumerate(jobs.items(), start=1):
            try:
                catalog[name], seconds = job.result()
            except ModelError as error:
                problems.extend(error.problems)
                continue
            detail = catalog[name].describe()
            LOGGER.info(
                "model %d of %d ready: %s on %s, %s, size %s, %.2f s",
                *(number, len(models), name, detail["provider"], detail["precision"]),
                *(detail["size"], seconds),
            )
    if problems:
        raise ModelError(*problems)
    return catalog


def _model_files(folder: Path) -> Iterator[Path]:
    """Follow links, but into no folder twice, and leave out what is hidden.

    Kubernetes keeps second copies of mounted files in hidden folders.
    """
    seen: set[str] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        new = [name for name in folders if os.path.realpath(f"{root}/{name}") not in seen]
        folders[:] = [name for name in sorted(new) if not name.startswith(".")]
        seen.update(os.path.realpath(f"{root}/{name}") for name in (".", *folders))
        for name in files:
            if name.endswith(".onnx") and not name.startswith("."):
                yield Path(root, name)


def _load(path: Path, runtime: Runtime) -> tuple[StyleModel, float]:
    start = time.perf_counter()
    return StyleModel(path, runtime), time.perf_counter() - start


def _name_problem(path: Path) -> str | None:
    name = served_name(path)
    if not path.is_file():
        return f"{path} is no file, or a link to none; remove it"
    if not ALLOWED_NAME.fullmatch(name):
        return (
            f"{path}: a served name has letters, digits, '.', '_' and '-', got {name!r}; rename it"
        )
    if name.lower() == RESERVED:
        return f"{path}: the name {RESERVED} belongs to the list of models; rename the file"
    return None
