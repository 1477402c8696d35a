"""Pipelines on a running server: served like styles, failures, limits, metrics, the page."""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
from onnx import ModelProto
from tritonclient.utils import InferenceServerException

from styleserve import image as pictures
from styleserve.image import Image
from styleserve.remote import Options, Remote
from styleserve.studio import Studio
from tests import tiny_models as tiny
from tests.e2e.conftest import Launch, slow
from tests.e2e.running import ROOT, Running, _tensor
from tests.pictures import noise, png

DECLARED = """\
half-inverted:
  description: Inverted where it is bright
  nodes:
    mask: {model: brightness}
    other: {model: invert}
    out: {op: composite, inputs: [other, image, mask]}
  output: out
twice:
  nodes:
    one: {model: half-inverted}
    out: {op: keep_color, inputs: [one, image]}
  output: out
fragile:
  nodes: {first: {model: odd}, out: {model: invert, inputs: [first]}}
  output: out
careful:
  nodes: {first: {model: odd, on_error: use image}, out: {model: invert, inputs: [first]}}
  output: out
hasty:
  timeout: 0.5
  nodes: {first: {model: slow}, out: {model: slow, inputs: [first]}}
  output: out
patient:
  nodes:
    first: {model: slow}
    second: {model: slow, inputs: [first]}
    out: {model: slow, inputs: [second]}
  output: out
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("pipelines")
    models = folder / "models"
    tiny.save(tiny.invert(), models / "invert.onnx")
    tiny.save(tiny.mask(), models / "brightness.onnx")
    tiny.save(slow(), models / "slow.onnx")
    tiny.save(fails_when_wide(), models / "odd.onnx")
    (folder / "pipelines.yaml").write_text(DECLARED)
    running = Running(models, folder, log_level="debug")
    try:
        yield running.wait_ready()
    finally:
        running.kill()


def fails_when_wide() -> ModelProto:
    """Make a model that takes pictures of up to 300 pixels of width, and fails beyond."""
    nodes = [
        tiny.node("Shape", ["image"], "shape"),
        tiny.node("Div", ["shape", "limits"], "excess"),
        tiny.node("Add", ["excess", "one"], "factors"),
        tiny.node("Mul", ["shape", "factors"], "wanted"),
        tiny.node("Reshape", ["image", "wanted"]),  # to twice the width, beyond 300
    ]
    limits = np.array([1000, 1000, 1_000_000, 301])
    return tiny.model(nodes, size=None, limits=limits, one=np.array([1]))


def test_pipelines_are_listed_and_masks_are_not(served: Running) -> None:
    names = [name.decode() for name in served.infer("catalog", "names")]
    details = [json.loads(text) for text in served.infer("catalog", "details")]
    kinds = {name: info["kind"] for name, info in zip(names, details, strict=True)}
    pipelines = {"careful", "fragile", "half-inverted", "hasty", "patient", "twice"}
    assert {name for name, kind in kinds.items() if kind == "pipeline"} == pipelines
    assert {name for name, kind in kinds.items() if kind == "style"} == {"invert", "odd", "slow"}


@pytest.fixture
def small(photo: Image) -> Image:
    return np.ascontiguousarray(photo[:120, :160])


def expected(image: Image) -> Image:
    mask = image.mean(axis=2, keepdims=True) / 255
    return np.asarray(np.rint(mask * (255.0 - image) + (1 - mask) * image), np.uint8)


def test_a_pipeline_answers_like_a_style(served: Running, small: Image) -> None:
    styled = served.infer("half-inverted", image=small)
    assert np.abs(styled.astype(int) - expected(small)).max() <= 1
    assert np.array_equal(served.infer_grpc("half-inverted", image=small), styled)
    nested = served.infer("twice", image=small)
    assert np.array_equal(nested, pictures.keep_color(styled, small))


def test_the_options_are_those_of_styles(served: Running, small: Image) -> None:
    styled = served.infer("half-inverted", image=small)
    half = served.infer("half-inverted", image=small, strength=0.5)
    colour = served.infer("half-inverted", image=small, keep_color=True)
    coarse = served.infer("half-inverted", image=small, max_side=20)
    assert np.array_equal(half, pictures.blend(small, styled, 0.5))
    assert np.array_equal(colour, pictures.keep_color(styled, small))
    assert coarse.shape == small.shape
    assert not np.array_equal(coarse, styled)


def test_files_and_any_size_are_taken(served: Running) -> None:
    remote = Remote(f"http://127.0.0.1:{served.http}")
    file = (ROOT / "docs" / "examples" / "coffee.jpg").read_bytes()
    assert remote.stylise_file(file, "half-inverted")[:2] == b"\xff\xd8"
    for size in ((1, 1), (1, 50), (33, 2)):
        assert served.infer("twice", image=np.zeros((*size, 3), np.uint8)).shape == (*size, 3)


def test_the_page_has_them_with_their_thumbnails(served: Running, tmp_path: Path) -> None:
    studio = Studio(Remote(f"http://127.0.0.1:{served.http}"), tmp_path, 10**7)
    names = [style.name for style in studio.styles()]
    assert {"half-inverted", "twice"} <= set(names)
    described = {style.name: style.description for style in studio.styles()}
    assert described["half-inverted"] == "Inverted where it is bright"
    picture = tmp_path / "small.png"
    picture.write_bytes(png(noise(30, 40)))
    urls = dict(zip(names, studio.thumbnails(picture), strict=True))
    assert urls["twice"].startswith("data:image/jpeg;base64,")


def test_a_failure_names_its_node_and_a_fallback_takes_its_place(served: Running) -> None:
    fits, wide = np.full((40, 300, 3), 9, np.uint8), np.full((40, 301, 3), 9, np.uint8)
    assert (served.infer("fragile", image=fits) == 246).all()
    with pytest.raises(InferenceServerException) as caught:
        served.infer("fragile", image=wide)
    assert caught.value.status() == "500"
    told = str(caught.value.message())
    assert told.startswith("pipeline fragile: node first: it failed at 301x40: ")
    assert "\n" not in told
    assert (served.infer("careful", image=wide) == 246).all()
    assert "node first: it failed at 301x40" in served.log


def test_the_time_limit_is_held(served: Running) -> None:
    start = time.monotonic()
    with pytest.raises(InferenceServerException) as caught:
        served.infer("hasty", image=np.zeros((256, 256, 3), np.uint8))
    assert caught.value.status() == "500"
    assert "pipeline hasty: not done within its timeout of 0.5 s, still at first" in str(
        caught.value
    )
    assert time.monotonic() - start < 30


def test_a_cancelled_call_starts_no_further_nodes(served: Running) -> None:
    before = node_metric(served, "count", "patient", "out")
    with grpc.InferenceServerClient(f"127.0.0.1:{served.grpc}") as client:
        tensor = _tensor(grpc, "image", np.zeros((256, 256, 3), np.uint8))
        logged = len(served.log)
        call = client.async_infer("patient", [tensor], lambda result, error: None)
        time.sleep(0.3)
        call.cancel()
        served.wait_log("patient: refused: pipeline patient: ", 60, logged)
    told = r"refused: pipeline patient: (node \w+: )?stopped, nobody waits"
    assert re.search(told, served.log[logged:])
    assert node_metric(served, "count", "patient", "out") == before


def node_metric(served: Running, kind: str, pipeline: str, node: str) -> float:
    text = served.get("/metrics", served.metrics)[1].decode()
    labels = rf'\{{model="{pipeline}",node="{node}"\}}'
    found = re.findall(rf"^styleserve_node_{kind}{labels} (\S+)$", text, re.MULTILINE)
    return float(found[0]) if found else 0.0


def test_the_metrics_tell_of_every_node(served: Running, small: Image) -> None:
    def figures(node: str) -> list[float]:
        kinds = ("count", "failure", "seconds")
        return [node_metric(served, kind, "fragile", node) for kind in kinds]

    first, out = figures("first"), figures("out")
    served.infer("fragile", image=small)
    with pytest.raises(InferenceServerException):
        served.infer("fragile", image=np.zeros((40, 301, 3), np.uint8))
    now, out_now = figures("first"), figures("out")
    assert [now[0] - first[0], now[1] - first[1]] == [2, 1]
    assert now[2] > first[2]
    assert [out_now[0] - out[0], out_now[1] - out[1]] == [1, 0]


def test_pipelines_and_styles_at_once(served: Running, small: Image) -> None:
    names = ["half-inverted", "twice", "careful", "invert", "odd"] * 4
    alone = {name: served.infer(name, image=small) for name in set(names)}
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: served.infer(name, image=small), names))
    for name, answer in zip(names, answers, strict=True):
        assert np.array_equal(answer, alone[name]), name


def test_options_of_a_page_reach_them(served: Running, small: Image) -> None:
    remote = Remote(f"http://127.0.0.1:{served.http}")
    assert np.array_equal(remote.stylise(small, "twice", Options(strength=0.0)), small)


def test_faults_end_the_start_before_a_port_opens(launch: Launch, tmp_path: Path) -> None:
    models = tmp_path / "models"
    tiny.save(tiny.invert(), models / "invert.onnx")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "invert: {nodes: {a: {model: invert}}, output: a}\n"
        "p: {nodes: {a: {model: nothing}, b: {op: zzz}}, output: c}\n"
    )
    running = launch(models, pipelines=file)
    assert running.wait(20) == 2
    lines = [line for line in running.log.splitlines() if "cannot start: " in line]
    told = [line.partition("mine.yaml:")[2] for line in lines]
    assert [each.partition(": ")[0] for each in told] == ["1", "2", "2", "2"]
    assert "starting Triton" not in running.log


def test_a_name_that_is_none_is_told_with_file_and_line(launch: Launch, tmp_path: Path) -> None:
    tiny.save(tiny.invert(), tmp_path / "models" / "invert.onnx")
    file = tmp_path / "mine.yaml"
    file.write_text("? {a: 1}\n: {nodes: {a: {model: invert}}, output: a}\n")
    running = launch(tmp_path / "models", pipelines=file)
    assert running.wait(20) == 2
    (line,) = [line for line in running.log.splitlines() if "cannot start: " in line]
    assert f"{file}:1: a name is plain text, got a mapping" in line


def test_a_node_that_takes_long_holds_up_neither_a_restart_nor_the_stop(
    launch: Launch, tiny_folder: Path, tmp_path: Path
) -> None:
    declared = tmp_path / "pipelines.yaml"
    declared.write_text("long: {nodes: {out: {op: blur, radius: 0.2}}, output: out}")
    running = launch(tiny_folder, pipelines=declared).wait_ready()
    running.wait_log("ready after", 5)
    large = np.zeros((2000, 3000, 3), np.uint8)  # for which that takes a minute
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(running.infer, "long", image=large)]
        time.sleep(1)
        for process in running.processes("tritonserver"):
            process.kill()
        running.wait_log("restarting", 5)
        running.wait_log("ready after", 25, after=running.log.index("restarting"))
        calls.append(pool.submit(running.infer, "long", image=large))
        time.sleep(1)
        assert running.stop() == 0
        for call in calls:
            with pytest.raises((InferenceServerException, OSError, HTTPException)):
                call.result()
    assert [path.name for path in running.cache.iterdir()] == []
