"""The DVC pipeline, run by the real `dvc` on copies of the project with tiny raw models."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import onnx
import pytest
import yaml  # its stubs are not installed
from onnx import ModelProto

from tests import tiny_models as tiny

ROOT = Path(__file__).parents[2]
OPSET = yaml.safe_load((ROOT / "params.yaml").read_text())["opset"]
ZOO_MD5 = {  # of the ONNX model zoo's own files
    "pointilism": "9d183f4afb1aef1ff105dacfa28b79bd",
    "udnie": "2a5627259cfffd2369a728b2ea30026a",
}
# What `make zoo` runs in models/zoo.
ZOO_FETCH = ("update", "pointilism-9.onnx.dvc", "udnie-9.onnx.dvc")
ZOO_CONVERT = ("repro", "--keep-going")


class Project:
    """A copy of the project's pipeline with raw models of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        skip = shutil.ignore_patterns("__pycache__", "*.onnx", "dvc.lock", "tmp", "cache")
        for name in ("styleserve", ".dvc", "models/zoo"):
            shutil.copytree(ROOT / name, folder / name, ignore=skip)
        for name in ("dvc.yaml", "params.yaml", ".dvcignore", ".gitignore"):
            shutil.copy(ROOT / name, folder / name)

    def add(self, raw: Mapping[str, ModelProto | bytes], int8: Sequence[str] = ()) -> None:
        """Make these, by name, the models of params.yaml; bytes are files as they are."""
        models = {}
        for name, content in raw.items():
            path = self.folder / f"models/raw/{name}-9.onnx"
            path.parent.mkdir(parents=True, exist_ok=True)
            data = content if isinstance(content, bytes) else content.SerializeToString()
            path.write_bytes(data)
            models[name] = {"raw": f"models/raw/{name}-9.onnx", "description": f"Tiny {name}"}
        params = {"opset": OPSET, "models": models, "int8": list(int8)}
        (self.folder / "params.yaml").write_text(yaml.safe_dump(params))

    def dvc(self, *words: str, within: str = ".") -> subprocess.CompletedProcess[str]:
        """Run dvc as in an activated environment; stdout holds stderr too."""
        return self._run(sys.executable, "-m", "dvc", *words, within=within)

    def _run(self, *command: str, within: str = ".") -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "DVC_SITE_CACHE_DIR": str(self.folder.parent / "site"),
            "NO_PROXY": "127.0.0.1",
        }
        return subprocess.run(
            command,
            cwd=self.folder / within,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def make(self, target: str) -> subprocess.CompletedProcess[str]:
        """Run make in an environment that stands already."""
        shutil.copy(ROOT / "Makefile", self.folder)
        venv = Path(sys.executable).parents[1]
        command = ["make", f"VENV={venv}", "--old-file", f"{venv}/models", target]
        return self._run(*command)

    def converted(self) -> dict[str, bytes]:
        paths = (self.folder / "models/converted").glob("*")
        return {path.name: path.read_bytes() for path in paths}

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        command = ["git", *identity, *words]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def test_git_checkout_and_unpacked_archive_give_the_same_once(
    project: Project, tmp_path: Path
) -> None:
    project.add({"residual": tiny.residual((64, 64)), "blocks": tiny.stride_two()}, ["residual"])
    project.git("init", "-q")

    first = project.dvc("repro")
    assert first.returncode == 0, first.stdout
    names = {"blocks-{}.onnx", "residual-{}.onnx", "residual-{}.int8"}
    assert set(project.converted()) == {name.format(OPSET) for name in names}
    second = project.dvc("repro")
    assert second.stdout.count("didn't change, skipping") == 3, second.stdout
    assert "up to date" in project.dvc("status").stdout

    project.git("add", ".")
    files = project.git("ls-files").split()
    assert "dvc.lock" in files
    assert not [name for name in files if "converted" in name or "/cache/" in name]
    project.git("commit", "-qm", "All")
    project.git("archive", "-o", str(tmp_path / "all.tar"), "HEAD")
    unpacked = Project(tmp_path / "elsewhere" / "deeper")
    shutil.rmtree(unpacked.folder)
    shutil.unpack_archive(tmp_path / "all.tar", unpacked.folder)
    assert not (unpacked.folder / ".git").exists()
    lock = (unpacked.folder / "dvc.lock").read_bytes()

    other = unpacked.dvc("repro")
    assert other.returncode == 0, other.stdout
    assert unpacked.converted() == project.converted()
    assert (unpacked.folder / "dvc.lock").read_bytes() == lock
    assert unpacked.dvc("repro").stdout.count("didn't change, skipping") == 3


def test_bad_raw_models_fail_alone_and_say_what_they_are(project: Project) -> None:
    whole = tiny.invert((32, 32)).SerializeToString()
    bad = {
        "pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git-LFS pointer"),
        "page": (b"<!DOCTYPE html><html></html>", "is a web page"),
        "nothing": (b"", "is an empty file"),
        "short": (whole[:-9], "is no complete ONNX model"),
        "foreign": (b"\xff\xd8\xff\xe0JFIF", "is a JPEG picture"),
        "blurred": (tiny.linear_upsample().SerializeToString(), "gives another picture"),
    }
    good = {"a": tiny.invert((32, 32)), "z": tiny.mask()}
    project.add({**{name: content for name, (content, _) in bad.items()}, **good})

    done = project.dvc("repro", "--keep-going")

    assert done.returncode != 0
    for name, (_, words) in bad.items():
        assert f"error: models/raw/{name}-9.onnx {words}" in done.stdout
    assert set(project.converted()) == {f"a-{OPSET}.onnx", f"z-{OPSET}.onnx"}


def test_linked_outputs_are_replaced_and_the_cache_is_left_alone(project: Project) -> None:
    project.add({"style": tiny.invert((32, 32))})
    assert project.dvc("config", "--local", "cache.type", "symlink").returncode == 0
    target = project.folder / f"models/converted/style-{OPSET}.onnx"

    assert project.dvc("repro").returncode == 0
    assert target.is_symlink()
    assert _nodes(target) == ["Sub"]
    project.add({"style": tiny.identity((32, 32))})
    assert project.dvc("repro").returncode == 0
    assert _nodes(target) == ["Identity"]

    cached = [path for path in (project.folder / ".dvc/cache/files").rglob("*") if path.is_file()]
    assert len(cached) == 2
    for path in cached:
        assert path.parent.name + path.name == hashlib.md5(path.read_bytes()).hexdigest()


def test_a_cache_of_ones_own_replaces_one_that_is_read_only(
    project: Project, tmp_path: Path
) -> None:
    project.add({"style": tiny.invert((32, 32))})
    assert project.dvc("repro").returncode == 0
    cache = project.folder / ".dvc/cache"
    before = sorted(cache.rglob("*"))
    for path in [cache, *before]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    assert project.dvc("cache", "dir", "--local", str(tmp_path / "own")).returncode == 0
    project.add({"style": tiny.identity((32, 32))})
    done = project.dvc("repro")

    assert done.returncode == 0, done.stdout
    assert sorted(cache.rglob("*")) == before
    for path in [cache, *before]:
        path.chmod(0o755)


def test_ctrl_c_of_make_starts_nothing_again(tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "dvc"
    fake.parent.mkdir()
    (tmp_path / "models").touch()
    fake.write_text("#!/bin/sh\ntrap 'kill $!; exit 1' INT\necho called\nsleep 9 & wait\n")
    fake.chmod(0o755)
    make = ["make", f"VENV={tmp_path}", "--old-file", f"{tmp_path}/models", "models"]
    command = ["env", "--default-signal=INT", *make]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout
        told = list(iter(running.stdout.readline, "called\n"))
        os.killpg(running.pid, signal.SIGINT)
        told += running.stdout.readlines()

    assert running.returncode != 0
    assert "called\n" not in told


@pytest.mark.parametrize("folder", [".", "models/zoo"])
@pytest.mark.parametrize(
    ("stage", "data"), [("convert", set()), ("quantize", {"styleserve/photo.jpg"})]
)
def test_every_module_that_a_stage_runs_is_a_dependency(
    stage: str, data: set[str], folder: str
) -> None:
    script = f"import sys, styleserve.{stage}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    modules = {
        f"styleserve/{name.split('.')[1]}.py" for name in loaded if name.startswith("styleserve.")
    }
    stages = yaml.safe_load((ROOT / folder / "dvc.yaml").read_text())["stages"]
    model, *code = stages[stage]["do"]["deps"]
    assert Path(model).name.startswith("${")
    assert {name.removeprefix("../../") for name in code} == modules | data


@pytest.fixture
def zoo(project: Project, tmp_path: Path) -> Iterator["Zoo"]:
    (tmp_path / "served").mkdir()
    with Zoo(project, tmp_path / "served") as zoo:
        yield zoo


class Zoo(ThreadingHTTPServer):
    """Serve stand-ins for the zoo's files on 127.0.0.1, without an ETag, as the zoo lays them."""

    daemon_threads = True

    def __init__(self, project: Project, folder: Path) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                asked.append(self.path)

        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        Thread(target=self.serve_forever, daemon=True).start()
        self.project, self.folder = project, folder
        config = project.folder / "models/zoo/.dvc/config"
        address = f"http://127.0.0.1:{self.server_port}"
        config.write_text(re.sub(r"url = .*", f"url = {address}", config.read_text()))
        self.path = {name: self._serve_at(name) for name in ZOO_MD5}

    def _serve_at(self, name: str) -> Path:
        pointer = yaml.safe_load((ROOT / f"models/zoo/{name}-9.onnx.dvc").read_text())
        path: Path = self.folder / pointer["deps"][0]["path"].removeprefix("remote://zoo/")
        path.parent.mkdir(parents=True)
        return path

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def serve(self, name: str, content: bytes, pinned: bytes | None = None) -> None:
        """Serve content as a model; pin its checksum, or that of other bytes."""
        self.path[name].write_bytes(content)
        md5 = hashlib.md5(pinned or content).hexdigest()
        for file in ("dvc.yaml", f"{name}-9.onnx.dvc"):
            path = self.project.folder / "models/zoo" / file
            path.write_text(path.read_text().replace(ZOO_MD5[name], md5))

    def make(self) -> tuple[subprocess.CompletedProcess[str], ...]:
        """Do what `make zoo` does."""
        commands = (ZOO_FETCH, ZOO_CONVERT)
        return tuple(self.project.dvc(*words, within="models/zoo") for words in commands)


def test_zoo_models_are_fetched_and_converted(project: Project, zoo: "Zoo") -> None:
    zoo.serve("pointilism", tiny.residual((224, 224)).SerializeToString())
    zoo.serve("udnie", tiny.residual((224, 224), blocks=3).SerializeToString())

    for done in zoo.make():
        assert done.returncode == 0, done.stdout
    names = {f"{name}-{OPSET}.{kind}" for name in ZOO_MD5 for kind in ("onnx", "int8")}
    assert set(project.converted()) == names
    fetched, converted = zoo.make()
    assert (fetched.returncode, converted.returncode) == (0, 0)
    assert converted.stdout.count("Stage 'convert@") == 2
    assert converted.stdout.count("didn't change, skipping") == 6

    # Everything else neither sees them nor asks for them.
    project.add({"style": tiny.invert((32, 32))})
    zoo.asked.clear()
    assert project.dvc("repro").returncode == 0
    assert "up to date" in project.dvc("status").stdout
    assert set(project.converted()) == {*names, f"style-{OPSET}.onnx"}
    assert zoo.asked == []


def test_wrong_zoo_file_is_not_converted(project: Project, zoo: "Zoo") -> None:
    wrong, right = (make((224, 224)).SerializeToString() for make in (tiny.identity, tiny.invert))
    zoo.serve("pointilism", wrong, pinned=right)
    zoo.serve("udnie", right)

    _, done = zoo.make()

    assert done.returncode != 0
    found, pinned = (hashlib.md5(content).hexdigest() for content in (wrong, right))
    assert (
        f"error: models/zoo/pointilism-9.onnx has the md5 {found}, not the pinned {pinned}"
        in done.stdout
    )
    assert set(project.converted()) == {f"udnie-{OPSET}.onnx"}


@pytest.mark.parametrize("target", ["models", "zoo"])
@pytest.mark.parametrize("params", ["opset: [", "opset: {a: b}\nmodels: 5"])
def test_make_tells_what_is_wrong_with_params(
    project: Project, zoo: "Zoo", target: str, params: str
) -> None:
    for name in ZOO_MD5:
        zoo.serve(name, tiny.invert((224, 224)).SerializeToString())
    (project.folder / "params.yaml").write_text(params)

    done = project.make(target)

    assert done.returncode != 0
    assert re.search(r"ERROR: .*(params\.yaml|'dvc\.yaml')", done.stdout), done.stdout


def test_make_zoo_tells_what_dvc_says_of_a_failure(project: Project, zoo: "Zoo") -> None:
    wrong, right = (make((224, 224)).SerializeToString() for make in (tiny.identity, tiny.invert))
    zoo.serve("pointilism", wrong, pinned=right)
    zoo.serve("udnie", right)

    done = project.make("zoo")

    assert done.returncode != 0
    assert re.search(r"ERROR: failed to reproduce.* 'convert@pointilism'", done.stdout), done.stdout
    assert set(project.converted()) == {f"udnie-{OPSET}.onnx"}


def test_make_zoo_is_quiet_when_all_is_well(project: Project, zoo: "Zoo") -> None:
    for name in ZOO_MD5:
        zoo.serve(name, tiny.residual((224, 224)).SerializeToString())

    assert project.make("zoo").returncode == 0
    assert "Running stage" not in project.make("zoo").stdout
    assert len(project.converted()) == 4


def test_absent_zoo_file_fails_by_its_address(project: Project, zoo: "Zoo") -> None:
    zoo.serve("udnie", tiny.invert((224, 224)).SerializeToString())

    fetched, _ = zoo.make()

    assert fetched.returncode != 0
    assert "pointilism-9.onnx" in fetched.stdout


def test_zoo_checksums_and_the_address_are_declared_once() -> None:
    zoo = ROOT / "models/zoo"
    stages = yaml.safe_load((zoo / "dvc.yaml").read_text())["stages"]["convert"]["foreach"]
    for name, md5 in ZOO_MD5.items():
        pointer = yaml.safe_load((zoo / f"{name}-9.onnx.dvc").read_text())
        assert pointer["outs"][0]["md5"] == stages[name]["md5"] == md5
        assert pointer["outs"][0]["size"] == 6_728_029
        # A commit, not a branch: what a name stands for there never changes.
        wanted = rf"remote://zoo/{name}-9/resolve/[0-9a-f]{{40}}/{name}-9\.onnx"
        assert re.fullmatch(wanted, pointer["deps"][0]["path"])
    files = [path for path in zoo.rglob("*") if path.is_file() and path.suffix != ".onnx"]
    with_address = [path.name for path in files if b"https://" in path.read_bytes()]
    assert with_address == ["config"]


def _nodes(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]
