"""The README says what the code does."""

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import SecretStr

from styleserve import diagram, kinds, reader, wiring
from styleserve.catalog import served_name
from styleserve.operations import MOST, OPERATIONS, Measure
from styleserve.settings import PREFIX, ClientSettings, ServerSettings
from tests.e2e.running import ROOT

README = (ROOT / "README.md").read_text()


def test_every_setting_is_told_with_its_default_and_meaning() -> None:
    tables = README.partition("<!-- settings")[2].partition("<!-- end of settings")[0]
    told = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", tables, re.MULTILINE)
    wanted = []
    for fields in (ServerSettings.model_fields, ClientSettings.model_fields):
        for name, field in fields.items():
            secret = isinstance(field.default, SecretStr)
            default = "" if secret else str(field.default)
            shown = f"`{default}`" if default else "empty"
            wanted.append((PREFIX + name.upper(), shown, field.description))
    assert told == wanted


def test_only_real_settings_are_named() -> None:
    named = set(re.findall(rf"{PREFIX}(\w+)", README))
    real = set(ServerSettings.model_fields) | set(ClientSettings.model_fields)
    assert {name.lower() for name in named} <= real


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make (\w+)", README))))
def test_every_make_target_exists(target: str) -> None:
    answer = subprocess.run(
        ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert answer.returncode == 0, answer.stderr


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^):#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_embedded_styles_are_named() -> None:
    raw = [served_name(path) for path in (ROOT / "models" / "raw").glob("*.onnx")]
    assert raw
    assert [name for name in raw if f"`{name}`" not in README] == []


def test_every_alert_is_told() -> None:
    (told,) = re.findall(r"\(deploy/monitoring/rules\.yml\): ([^.]+)\.", README)
    (group,) = yaml.safe_load((ROOT / "deploy/monitoring/rules.yml").read_text())["groups"]
    assert len(told.split(",")) == len(group["rules"])


def test_every_operation_is_told() -> None:
    table = README.partition("<!-- operations")[2].partition("<!-- end of operations")[0]
    told = re.findall(r"^\| `(\w+)` \| (.+) \| (.*) \| (.+) \|$", table, re.MULTILINE)
    assert [name for name, *_ in told] == list(OPERATIONS)
    for name, inputs, options, _ in told:
        assert inputs == kinds.inputs_of(name)
        named = re.findall(r"`(\w+)`", options)
        assert named == [option.name for option in kinds.options_of(name)], name


def test_every_node_that_is_told_can_be_read(tmp_path: Path) -> None:
    told = re.findall(r"`(\{(?:model|op): [^`]*)`", README)
    assert any("on_error" in node for node in told)
    file = tmp_path / "pipelines.yaml"
    for node in told:
        file.write_text(f"p: {{nodes: {{plain: {{op: invert}}, a: {node}}}, output: a}}")
        declared = reader.read(file)
        wiring.check(declared, {"swirl": "image"})
        assert declared.faults == []


def test_every_measure_of_select_is_told_with_its_unit_and_range() -> None:
    (row,) = re.findall(r"^\| `select` .*", README, re.MULTILINE)
    told = dict(re.findall(r"(\w+) \(([^)]+)\)", row))
    assert set(told) == set(MOST) == set(get_args(Measure))
    assert {name for name, unit in told.items() if unit.endswith("0..1")} == {
        name for name, most in MOST.items() if most == 1
    }


def test_the_pipeline_that_is_told_is_the_one_that_ships() -> None:
    declared = reader.read(ROOT / "models" / "pipelines.yaml")
    (told,) = re.findall(r"```yaml\n(painted-subject:\n.*?)```", README, re.DOTALL)
    assert told in (ROOT / "models" / "pipelines.yaml").read_text()
    (figure,) = re.findall(r"```mermaid\n(.*?)```", README, re.DOTALL)
    assert figure == diagram.draw(declared.graphs[0])
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    wiring.check(declared, dict.fromkeys(params["models"], "image"))
    assert declared.faults == []
    assert [graph.name for graph in declared.graphs if f"`{graph.name}`" not in README] == []
