"""The README says what the code does."""

import re
import subprocess

import pytest
from pydantic import SecretStr

from styleserve.catalog import served_name
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
