"""Pipelines of real tiny models: results, failures, the cap, what is told and drawn."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from styleserve import catalog, pipeline, reader
from styleserve.catalog import Catalog
from styleserve.declaration import Graph, Node
from styleserve.errors import ConfigError, InferenceError, RequestError
from styleserve.image import Image
from styleserve.pipeline import Pipeline
from styleserve.runtime import Runtime
from styleserve.ticket import CURRENT, Ticket
from tests import tiny_models as tiny
from tests.pictures import noise
from tests.unit.test_model import SpyRuntime, spying

PATIENCE_S = 10.0
PICTURE = noise(40, 50)

DECLARED = """\
bright:
  description: The bright parts, inverted
  nodes:
    mask: {model: brightness}
    other: {model: invert}
    out: {op: composite, inputs: [other, image, mask]}
  output: out
nested:
  nodes:
    inner: {model: bright}
    again: {model: bright}
    out: {op: blend, inputs: [inner, again, image], weights: [1, 1, 2]}
  output: out
picked:
  nodes:
    wide: {model: bright}
    high: {model: nested}
    out: {op: select, inputs: [image, high, wide], measure: aspect, below: [1]}
  output: out
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, made in {
        "invert": tiny.invert(),
        "same": tiny.identity(),
        "swap": tiny.swap_red_blue(),
        "brightness": tiny.mask(),
    }.items():
        tiny.save(made, folder / "converted" / f"{name}-9.onnx")
    return folder / "converted"


def load(
    models: Path, folder: Path, text: str = DECLARED, runtime: Runtime | None = None
) -> Catalog:
    file = folder / "pipelines.yaml"
    file.write_text(text)
    made = runtime or Runtime.create("cpu", threads=1, concurrency=2)
    return catalog.load_catalog(catalog.find_models(models), reader.read(file), made)


def bright(image: Image) -> Image:
    mask = image.mean(axis=2, keepdims=True) / 255
    return np.asarray(np.rint(mask * (255.0 - image) + (1 - mask) * image), np.uint8)


# --- limits


def doubling(depth: int) -> str:
    """Declare pipelines of which each runs the one before twice."""
    body = "{{nodes: {{a: {{model: {0}}}, b: {{model: {0}, inputs: [a]}}}}, output: b}}\n"
    names = ["invert", *(f"p{number}" for number in range(depth))]
    return "".join(f"{name}: {body.format(other)}" for other, name in itertools.pairwise(names))


@pytest.mark.parametrize(("depth", "refused"), [(9, False), (10, True), (40, True)])
def test_nested_pipelines_have_so_many_nodes_in_all(
    models: Path, tmp_path: Path, depth: int, refused: bool
) -> None:
    told = pytest.raises(ConfigError, match=r":10: pipeline p9: .* has 1,024 nodes, .* 1,000 are")
    with told if refused else nullcontext():
        load(models, tmp_path, doubling(depth))


# --- results


@pytest.mark.parametrize("cap", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (40, 50), (50, 40), (1, 99)])
def test_a_pipeline_is_its_nodes_one_after_another(
    models: Path, tmp_path: Path, cap: int, size: tuple[int, int]
) -> None:
    served = load(models, tmp_path, runtime=Runtime.create("cpu", 1, cap))
    picture = noise(*size)
    once = served["bright"](picture, 0)
    nested = served["nested"](picture, 0)

    assert np.abs(once.astype(int) - bright(picture)).max() <= 1
    assert np.abs(nested.astype(int) - np.rint(once / 2 + picture / 2)).max() <= 1
    assert (served["picked"](picture, 0) == (nested if size[1] < size[0] else once)).all()


def test_masks_are_no_styles_and_pipelines_are(models: Path, tmp_path: Path) -> None:
    served = load(models, tmp_path)

    assert set(served) == {"invert", "same", "swap", "bright", "nested", "picked"}
    assert served["bright"].describe() == {
        "kind": "pipeline",
        "description": "The bright parts, inverted",
        "size": "any",
        "nodes": {"mask": "brightness", "other": "invert", "out": "composite"},
        "timeout": 300.0,
    }


def test_max_side_is_where_the_models_work(models: Path, tmp_path: Path) -> None:
    runtime = spying()
    served = load(models, tmp_path, runtime=runtime)
    runtime.shapes.clear()

    styled = served["nested"](noise(400, 500), 100)

    assert styled.shape == (400, 500, 3)
    assert {shape[-2:] for shape in runtime.shapes} == {(80, 100)}


# --- faults of the declaration end the start


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("invert", "1: pipeline invert: this name belongs to a model; rename the pipeline"),
        ("Invert", "1: pipeline Invert: this name belongs to a model"),
        ("Catalog", "1: pipeline Catalog: this name belongs to the list of models"),
        ("a b", "1: pipeline a b: its name has other characters than letters, digits"),
    ],
)
def test_a_name_that_cannot_be_served_is_refused(
    models: Path, tmp_path: Path, name: str, told: str
) -> None:
    text = f"{name}: {{nodes: {{a: {{model: same}}}}, output: a}}"

    with pytest.raises(ConfigError) as caught:
        load(models, tmp_path, text)

    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path}/pipelines.yaml:{told}")


def test_names_that_differ_by_case_only_are_refused(models: Path, tmp_path: Path) -> None:
    one = "{nodes: {a: {model: same}}, output: a}"

    with pytest.raises(ConfigError, match="2: pipeline P: this name belongs to another pipeline"):
        load(models, tmp_path, f"p: {one}\nP: {one}\n")


def test_faults_of_reading_and_of_wiring_are_told_together(models: Path, tmp_path: Path) -> None:
    text = """\
one: {nodes: {a: {op: blur}}, output: a}
two: {nodes: {a: {model: nothing}}, output: a}
three: {nodes: {a: {model: brightness}}, output: a}
"""
    with pytest.raises(ConfigError) as caught:
        load(models, tmp_path, text)

    problems = [problem.partition("yaml:")[2] for problem in caught.value.problems]
    assert [problem.partition(": ")[0] for problem in problems] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("header", "lines"),
    [
        ("output: zzz\n  timout: 5", "1359"),
        ("output: out\n  timeout: -1", "359"),
        ("ouput: out", "358"),
        ("description: x", "135"),
    ],
)
def test_all_faults_of_a_pipeline_are_told_at_once_by_line(
    models: Path, tmp_path: Path, header: str, lines: str
) -> None:
    text = f"""\
p:
  nodes:
    a: {{model: nothing}}
    b: {{model: same}}
    c: {{op: blend, inputs: [a, d], weights: [1, 1]}}
    out: {{model: same, inputs: [b]}}

  {header}
"""
    with pytest.raises(ConfigError) as caught:
        load(models, tmp_path, text)

    problems = [problem.partition("yaml:")[2] for problem in caught.value.problems]
    assert "".join(problem.partition(": ")[0] for problem in problems) == lines


def test_without_a_file_there_are_no_pipelines(tmp_path: Path) -> None:
    assert catalog.find_pipelines("", tmp_path / "models").graphs == []


def test_the_file_lies_among_or_beside_the_models_or_where_the_setting_says(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    text = "p: {nodes: {a: {model: same}}, output: a}"
    (tmp_path / "pipelines.yaml").write_text(text)
    (tmp_path / "models" / "mine.yaml").write_text("")

    beside = catalog.find_pipelines("", tmp_path / "models")
    named = catalog.find_pipelines(str(tmp_path / "models" / "mine.yaml"), tmp_path / "models")

    assert list(beside.lines) == ["p"]
    assert list(named.lines) == []
    (tmp_path / "models" / "pipelines.yaml").write_text(text.replace("p:", "q:"))
    assert list(catalog.find_pipelines("", tmp_path / "models").lines) == ["q"]
    with pytest.raises(ConfigError, match=r"other\.yaml cannot be read"):
        catalog.find_pipelines(str(tmp_path / "other.yaml"), tmp_path)


# --- failures while it serves


def failing(error: Exception) -> Pipeline:
    """Make a pipeline that contains another one, in which the node `bad` fails."""

    def fail(image: Image, max_side: int) -> Image:
        raise error

    bad, node = Node("bad", 1, ("image",), model="fail"), Node("n", 1, ("image",), model="inner")
    inner = Pipeline(Graph("inner", 1, "", {"bad": bad}, "bad", PATIENCE_S), {"fail": fail}, 1)
    outer = Graph("outer", 1, "", {"n": node}, "n", PATIENCE_S)
    return Pipeline(outer, {"inner": inner}, 1)


@pytest.mark.parametrize("kind", [InferenceError, RequestError])
def test_a_failure_names_the_pipeline_and_the_node_and_keeps_its_kind(
    kind: type[Exception],
) -> None:
    broken = failing(kind("it broke"))

    with pytest.raises(kind) as caught:
        broken(PICTURE, 0)

    assert str(caught.value) == "pipeline outer: node n: pipeline inner: node bad: it broke"


def test_an_unexpected_failure_is_hidden_but_kept_for_the_log() -> None:
    broken = failing(KeyError("/srv/secret"))

    with pytest.raises(InferenceError, match="node bad: the server failed inside") as caught:
        broken(PICTURE, 0)

    assert "secret" not in str(caught.value)
    cause = caught.value.__cause__
    assert cause is not None
    assert isinstance(cause.__cause__, KeyError)


@pytest.mark.parametrize("gone", [False, True])
def test_figures_and_the_callers_going_are_those_of_the_request(
    models: Path, tmp_path: Path, gone: bool
) -> None:
    served = load(models, tmp_path)
    counted: list[tuple[str, str, str, bool]] = []

    class Spy(Ticket):
        def add(self, metric: str, value: float, /, **labels: str) -> None:
            counted.append((metric, labels["model"], labels["node"], value > 0))

    token = CURRENT.set(Spy(lambda: gone))
    try:
        if gone:
            with pytest.raises(RequestError, match="pipeline nested: stopped"):
                served["nested"](PICTURE, 0)
        else:
            served["nested"](PICTURE, 0)
            inner = [("bright", node) for node in ("mask", "other", "out")]
            outer = [("nested", node) for node in ("inner", "again", "out")]
            grown = {"count": True, "failure": False, "seconds": True}
            assert sorted(counted) == sorted(
                (f"styleserve_node_{kind}", *node, grows)
                for kind, grows in grown.items()
                for node in [*inner * 2, *outer]
            )
    finally:
        CURRENT.reset(token)


# --- the cap


@contextmanager
def watched(runtime: SpyRuntime) -> Iterator[list[int]]:
    """Yield [models that run now, the most that ever ran at once]."""
    counts, lock = [0, 0], threading.Lock()
    meeting = threading.Event()

    def enter() -> None:
        with lock:
            counts[0] += 1
            counts[1] = max(counts)
        meeting.wait(0.01)  # long enough for others to come
        with lock:
            counts[0] -= 1

    runtime.before_run.append(enter)
    yield counts
    runtime.before_run.clear()


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_three_pipelines_and_three_styles_at_once_keep_the_cap(
    models: Path, tmp_path: Path, cap: int
) -> None:
    runtime = spying(cap)
    served = load(models, tmp_path, runtime=runtime)
    names = ["bright", "nested", "picked", "invert", "same", "swap"] * 3
    expected = {name: served[name](PICTURE, 0) for name in set(names)}

    with watched(runtime) as counts, ThreadPoolExecutor(len(names)) as pool:
        jobs = [(name, pool.submit(served[name], PICTURE, 0)) for name in names]
        answers = [(name, job.result(6 * PATIENCE_S)) for name, job in jobs]

    assert counts[1] == cap
    assert all((answer == expected[name]).all() for name, answer in answers)


# --- drawing


def drawn(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert pipeline.main(["draw", *argv]) == 0
    return capsys.readouterr().out


def test_draw_prints_a_flowchart_for_each_pipeline(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(DECLARED.replace("{model: invert}", "{model: invert, on_error: use image}"))

    text = drawn(capsys, str(file))

    assert text.count("```mermaid\nflowchart LR\n") == text.count("## ") == 3
    assert 'n1[["mask<br/>brightness"]]' in text
    assert "n0 --> n2\n" in text
    assert "n0 -. on error .-> n2\n" in text
    assert 'n3 --> answer(["answer"])' in text


def test_a_file_that_cannot_be_drawn_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("p: {}")

    assert pipeline.main(["draw", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {file}:1: pipeline p: nodes is missing\n")


@pytest.mark.parametrize("place", ["beside", "among", "named"])
def test_draw_finds_the_file_as_the_server_does(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str,
) -> None:
    (tmp_path / "models").mkdir()
    places = {
        "beside": tmp_path / "pipelines.yaml",
        "among": tmp_path / "models" / "pipelines.yaml",
        "named": tmp_path / "mine.yaml",
    }
    for name in list(places)[: list(places).index(place) + 1]:  # each goes before the last
        places[name].write_text(f"{name}: {{nodes: {{a: {{model: same}}}}, output: a}}")
    monkeypatch.setenv("STYLESERVE_MODELS_DIR", str(tmp_path / "models"))
    if place == "named":
        monkeypatch.setenv("STYLESERVE_PIPELINES", str(places[place]))

    assert drawn(capsys).startswith(f"## {place}\n")
    assert drawn(capsys, str(places["beside"])).startswith("## beside\n")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("MODELS_DIR", "{}/models", "no pipelines.yaml in {}/models or beside it; name the file"),
        ("PIPELINES", "{}/other.yaml", "{}/other.yaml cannot be read: "),
        ("PIPELINE", "x", "STYLESERVE_PIPELINE is no setting of this server"),
    ],
)
def test_draw_tells_where_it_looked(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    value: str,
    told: str,
) -> None:
    monkeypatch.setenv(f"STYLESERVE_{name}", value.format(tmp_path))

    assert pipeline.main(["draw"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {told.format(tmp_path)}")
