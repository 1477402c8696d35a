"""The layout's rules: who may import what, who reads the environment, how long a module is."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import styleserve

PACKAGE = Path(styleserve.__file__).parent
FILES = {path.stem: path for path in sorted(PACKAGE.glob("*.py"))}
SCRIPTS = [path for name in ("server.py", "client.py") if (path := PACKAGE.parent / name).exists()]
LONGEST = 200
LONGEST_SCRIPT = {"server": 120, "client": 400}  # all widgets of the page are in client.py
# Modules that one other module uses alone, and the tests that run them through it.
TESTED_THROUGH = {
    "candidates": "test_quantize",
    "colours": "test_codec",
    "declaration": "test_reader",
    "diagram": "test_pipeline",
    "graph": "test_convert",
    "kinds": "test_wiring",
    "mailbox": "test_channel",
    "network": "test_model",
    "recognise": "test_convert",
    "trial": "test_convert",
}
FORBIDDEN_AT_START = ("onnxruntime", "onnx", "pytriton", "gradio", "cv2", "numpy", "tritonclient")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """List the modules that a file imports anywhere, by their full names."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def imports_package(path: Path, package: str) -> bool:
    return any(name.split(".")[0] == package for name in imports(path))


def own_imports(path: Path) -> set[str]:
    """List the modules of this package that a file imports."""
    parts = (name.split(".") for name in imports(path))
    return {part[1] for part in parts if part[0] == "styleserve" and len(part) > 1} & set(FILES)


@pytest.mark.parametrize(
    ("package", "importers"),
    [
        ("pytriton", {"binding", "serving", "triton"}),
        ("tritonclient", {"remote"}),
        ("gradio", set()),  # the widgets are in client.py
        ("uvicorn", {"hosting"}),
        ("fastapi", {"hosting"}),
        (
            "onnxruntime",
            {"backend", "candidates", "convert", "half", "memory", "replay", "runtime", "trial"},
        ),
        (
            "onnx",
            {"candidates", "convert", "equalise", "graph", "half", "quantize", "rewrite", "trial"},
        ),
        ("pydantic_settings", {"settings"}),
        ("PIL", {"codec", "colours"}),
        ("yaml", {"reader"}),
        ("cachetools", {"cache"}),
        ("psutil", {"machine", "processes", "triton"}),
    ],
)
def test_a_library_is_known_at_one_place(package: str, importers: set[str]) -> None:
    found = {name for name, path in FILES.items() if imports_package(path, package)}

    assert found == importers


def test_nothing_imports_upwards() -> None:
    for name in (
        "channel",
        "errors",
        "health",
        "logs",
        "mailbox",
        "metadata",
        "processes",
        "ticket",
        "worker",
    ):
        assert own_imports(FILES[name]) == set(), name
    for name in ("colours", "graph", "image", "probe", "recognise", "settings"):
        assert own_imports(FILES[name]) == {"errors"}, name
    assert own_imports(FILES["declaration"]) == set()
    assert own_imports(FILES["operations"]) == {"errors", "image", "saliency"}
    assert own_imports(FILES["execution"]) == {"declaration", "errors", "image", "operations"}
    assert own_imports(FILES["codec"]) <= {"colours", "errors"}
    assert own_imports(FILES["cache"]) == {"endpoint", "ticket"}
    assert own_imports(FILES["endpoint"]) <= {"catalog", "codec", "errors", "image"}


def test_no_module_imports_in_a_circle() -> None:
    graph = {name: own_imports(path) for name, path in FILES.items()}

    assert set(TopologicalSorter(graph).static_order()) == set(FILES)


@pytest.mark.parametrize("module", ["styleserve", "server"])
def test_neither_the_package_nor_help_loads_the_models_libraries(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    ).stdout.split()

    assert module in loaded
    assert not {name.split(".")[0] for name in loaded} & set(FORBIDDEN_AT_START)


def test_settings_are_the_only_reader_of_the_environment() -> None:
    def reads(path: Path) -> bool:
        return any(
            isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
            for node in ast.walk(tree(path))
        )

    readers = {path.stem for path in (*FILES.values(), *SCRIPTS) if reads(path)}

    # LD_LIBRARY_PATH is for Triton's workers, which inherit it.
    assert readers <= {"settings", "machine", "lifecycle"}
    for name in ("machine", "lifecycle"):
        keys = re.findall(r"environ\W+(?:get\()?\W*(\w+)", FILES[name].read_text())
        assert set(keys) <= {"LD_LIBRARY_PATH"}, name


def test_nothing_is_printed() -> None:
    for path in (*FILES.values(), *SCRIPTS):
        calls = (node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
        assert not any(isinstance(call, ast.Name) and call.id == "print" for call in calls), path


def test_every_module_says_what_it_is_for_and_is_short() -> None:
    for path in (*FILES.values(), *SCRIPTS):
        assert len(ast.get_docstring(tree(path)) or "") > 20, path
        longest = LONGEST_SCRIPT[path.stem] if path in SCRIPTS else LONGEST
        assert len(path.read_text().splitlines()) <= longest, path


def test_every_module_has_its_tests() -> None:
    here = Path(__file__).parent

    untested = {name for name in FILES if not (here / f"test_{name}.py").exists()}

    assert untested <= {"__init__", "metadata", *TESTED_THROUGH}
    assert all((here / f"{name}.py").exists() for name in TESTED_THROUGH.values())


def test_every_error_told_to_people_can_be_acted_on() -> None:
    """Nobody raises the base class, which does not say who must act."""
    for path in FILES.values():
        raised = (
            node.exc.func
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        )
        names = {call.id for call in raised if isinstance(call, ast.Name)}
        assert not names & {"StyleServeError", "Exception", "RuntimeError", "ValueError"}, path
