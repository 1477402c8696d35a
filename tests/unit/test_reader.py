"""Files of pipelines: what they may say, and how each fault is told with its line."""

from pathlib import Path

import pytest

from styleserve import reader
from styleserve.declaration import Declaration, Node
from styleserve.errors import ConfigError

GOOD = """\
# a remark
painted:
  description: Painted
  timeout: 2.5
  nodes:
    mask: {op: saliency}
    soft:
      op: blur
      radius: 0.02
      inputs: [mask]
    dots: {model: dots, on_error: use image}
    out: {op: composite, inputs: [dots, image, soft]}
  output: out
plain:
  nodes: {one: {model: dots}}
  output: one
"""


def read(folder: Path, text: str) -> Declaration:
    file = folder / "pipelines.yaml"
    file.write_text(text)
    return reader.read(file)


def faults(folder: Path, text: str) -> list[str]:
    start = f"{folder}/pipelines.yaml:"
    told = read(folder, text).faults
    assert all(fault.startswith(start) for fault in told)
    return [fault.removeprefix(start) for fault in told]


def test_a_file_becomes_graphs_of_nodes(tmp_path: Path) -> None:
    declared = read(tmp_path, GOOD)

    assert declared.faults == []
    assert declared.lines == {"painted": 2, "plain": 14}
    painted, plain = declared.graphs
    assert (painted.description, painted.timeout_s, painted.output) == ("Painted", 2.5, "out")
    assert (plain.description, plain.timeout_s) == ("", reader.TIMEOUT_S)
    assert list(painted.nodes.values()) == [
        Node("mask", 6, ("image",), op="saliency"),
        Node("soft", 7, ("mask",), op="blur", options={"radius": 0.02}),
        Node("dots", 11, ("image",), model="dots", fallback="image"),
        Node("out", 12, ("dots", "image", "soft"), op="composite"),
    ]


def test_options_that_are_not_said_have_their_defaults(tmp_path: Path) -> None:
    text = "p: {nodes: {a: {op: resize}}, output: a}"

    (graph,) = read(tmp_path, text).graphs

    assert graph.nodes["a"].options == {"scale": 1.0}


@pytest.mark.parametrize("text", ["", "# only a remark\n", "{}", "---\n"])
def test_an_empty_file_declares_nothing(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text).graphs == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", r":1: this is no YAML: .*; mend the file"),
        ("a:\n  b: c: d\n", r":2: this is no YAML: "),
        ("a: {timeout: !!bool maybe}", r": this is no YAML: "),
        ("a: {timeout: !!int ''}", r": this is no YAML: "),
        (f"a: {{timeout: {'1:' * 400}1.5}}", r": this is no YAML: "),
        ("a: !!python/name:os.system x", r":1: this is no YAML: "),
        ("a: &x\n  b: *x\n", r":1: this is no YAML: too deep or too long"),
        ("[1, 2]", "maps names to pipelines"),
        ("text", "maps names to pipelines"),
        ("? {a: 1}\n: {output: b}", r":1: a name is plain text, got a mapping; write a name"),
        ("p: {}\n? [a, b]\n: {output: b}", r":2: a name is plain text, got a list; "),
        ("p:\n  nodes:\n    {{ name }}: {model: a}", r":3: a name is plain text, got a mapping; "),
        ("p:\n  nodes: {a: {model: b, [c]: 1}}", r":2: a name is plain text, got a list; "),
    ],
)
def test_what_is_no_file_of_pipelines_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"pipelines\.yaml.*" + told):
        read(tmp_path, text)


def test_a_missing_file_is_refused_naming_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read: .*STYLESERVE_PIPELINES"):
        reader.read(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a: \x00"])
def test_a_binary_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(data)

    with pytest.raises(ConfigError, match=r"x\.yaml.*this is no YAML"):
        reader.read(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("p: 5", "1: pipeline p: input should be"),
        ("p: {output: a}", "1: pipeline p: nodes is missing"),
        ("p:\n  nodes: {}\n  output: a", "2: pipeline p: nodes: dictionary should have at least 1"),
        ("p:\n  nodes:\n    a: {model: b}", "1: pipeline p: output is missing"),
        ("p: {nodes: {a: {model: b}}, output: a, x: 1}", "1: pipeline p: there is no 'x' here"),
        (
            "p: {nodes: {a: {model: b}}, output: a, descripton: x}",
            "1: pipeline p: there is no 'descripton' here; did you mean description?",
        ),
        (
            "p:\n  nodes: {a: {model: b}}\n  output: a\n  timeout: 0",
            "4: pipeline p: timeout: input should be greater than 0, got 0",
        ),
        *(
            (
                f"p:\n  nodes: {{a: {{model: b}}}}\n  output: a\n  timeout: {value}",
                "4: pipeline p: timeout: input should be",
            )
            for value in ("true", "'5'", "1e308", "86401", "2020-01-01")
        ),
        (
            f"p: {{nodes: {{a: {{model: b}}}}, output: a, description: [{'word, ' * 999}]}}",
            "1: pipeline p: description: input should be a valid string, "
            "got ['word', 'word', 'word', 'word', 'word', 'word', ...]",
        ),
        ("p: {nodes: {a: {model: b}}, output: ''}", "1: pipeline p: output: string should have"),
        ("p: {nodes: {a: {model: b}}, output: 3}", "1: pipeline p: output: input should be"),
        (
            "p: {nodes: {a: {model: b}}, ouput: a}",
            "1: pipeline p: there is no 'ouput' here; did you mean output?",
        ),
    ],
)
def test_a_pipeline_that_is_none(tmp_path: Path, text: str, told: str) -> None:
    (fault,) = faults(tmp_path, text)
    assert fault.startswith(told)


NODES = {
    "{}": "say either which model or which op",
    "5": "say either which model or which op",
    "{op: blur, model: dots, radius: 0.1}": "say either which model or which op",
    "{op: salency}": "there is no operation 'salency'; did you mean saliency?",
    "{op: zzz}": "there is no operation 'zzz'; there are blend, blur,",
    "{op: [blur]}": "there is no operation",
    "{op: blur}": "radius is missing",
    "{op: blur, radius: 7}": "radius: input should be less than or equal to 0.2, got 7",
    "{op: blur, radius: .nan}": "radius: input should be",
    "{op: blur, radius: 0.1, sigma: 2}": "there is no 'sigma' here",
    "{op: blur, radius: wide}": "radius: input should be a valid number",
    "{op: blur, radius: '0.1'}": "radius: input should be a valid number, got '0.1'",
    "{op: blur, radius: yes}": "radius: input should be a valid number, got True",
    "{op: rotate, degrees: 45}": "degrees: input should be 90, 180 or 270, got 45",
    "{op: flip, axis: up}": "axis: input should be 'horizontal' or 'vertical', got 'up'",
    "{op: blur, radus: 0.1}": "there is no 'radus' here; did you mean radius?",
    "{op: crop, region: [0, 0, 1]}": "region.3 is missing",
    "{op: crop, region: [0.5, 0, 0.5, 1]}": "region: left must be below right",
    "{op: crop, region: [0, 0, 1, 2]}": "region.3: input should be less than or equal to 1, got 2",
    "{op: select, measure: weight, below: [1]}": "measure: input should be 'aspect', 'size'",
    "{op: select, measure: size, below: []}": "below: list should have at least 1 item",
    "{op: select, measure: size, below: [2, 1]}": "below: each must be above the one before",
    "{op: select, measure: brightness, below: [120]}": (
        "below: limits of brightness are above 0, up to 1, got [120]"
    ),
    "{op: select, measure: area, below: [0.5, 1.1]}": "below: limits of area are above 0, up to 1",
    "{op: select, measure: aspect, below: [-1]}": "below: limits of aspect are above 0, got [-1]",
    "{op: select, measure: size, below: [0, 9]}": "below: limits of size are above 0, got [0, 9]",
    "{op: select, measure: weight, below: [-1]}": "measure: input should be 'aspect', 'size'",
    "{op: blend, weights: [0]}": "weights.0: input should be greater than 0, got 0",
    "{model: dots, radius: 1}": "there is no 'radius' here; there are inputs, model, on_error",
    "{model: ''}": "model: string should have at least 1 character",
    "{model: dots, inputs: image}": "inputs: input should be a valid list, got 'image'",
    "{model: dots, on_error: dots}": "on_error: string should match pattern",
}


@pytest.mark.parametrize(("text", "told"), NODES.items(), ids=NODES)
def test_a_node_that_is_none_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    (fault,) = faults(tmp_path, f"p:\n  output: a\n  nodes:\n\n    a: {text}\n")
    assert fault.startswith(f"5: pipeline p: node a: {told}"), fault


def test_a_name_that_stands_twice_is_a_fault(tmp_path: Path) -> None:
    text = "p:\n  nodes:\n    a: {model: b}\n    a: {model: c}\n  output: a\np: {}\n"

    twice, pipeline, *_ = faults(tmp_path, text)

    assert twice.startswith("4: pipeline p: node a: 'a' stands here a second time")
    assert pipeline.startswith("6: pipeline p: 'p' stands here a second time")


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = """\
one:
  nodes:
    a: {op: blur, radius: -1, extra: 1}
    b: {op: none}
  output: b
two: {}
three:
  nodes: {a: {model: dots, inputs: 3}}
  output: a
"""
    told = faults(tmp_path, text)

    lines = [fault.partition(": ")[0] for fault in told]
    assert lines == ["3", "3", "4", "6", "6", "8"]


@pytest.mark.parametrize("header", ["timout: 5", "timeout: 0", "description: [1]", "x: 1"])
def test_a_fault_of_a_pipeline_hides_none_of_its_nodes(tmp_path: Path, header: str) -> None:
    text = f"p:\n  nodes:\n    a: {{op: blur}}\n    b: {{op: none}}\n  output: b\n  {header}\n"

    told = faults(tmp_path, text)

    assert [fault.partition(": ")[0] for fault in told] == ["3", "4", "6"]


@pytest.mark.parametrize("sigma", ["inputz: [a]", "sigma: 2"])
def test_what_is_missing_is_told_beside_what_is_not_meant_by_it(tmp_path: Path, sigma: str) -> None:
    told = faults(tmp_path, f"p:\n  output: a\n  nodes:\n    a: {{op: blur, {sigma}}}\n")

    assert any("radius is missing" in fault for fault in told)
    assert len(told) == 2


@pytest.mark.parametrize("count", [reader.MOST_NODES, reader.MOST_NODES + 1])
def test_a_pipeline_has_so_many_nodes_at_most(tmp_path: Path, count: int) -> None:
    nodes = "".join(f"  n{number}: {{op: invert}}\n" for number in range(count))
    declared = read(tmp_path, f"a:\n output: n0\n nodes:\n{nodes}")

    assert any("at most 100 are allowed" in fault for fault in declared.faults) == (count > 100)
