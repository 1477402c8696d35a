"""Prometheus and Grafana as the profile `monitoring` brings them up."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import Api, Project, has_image, running, wait
from tests.e2e.running import ROOT


def project_with(checkout: Path, service: str) -> Project:
    """A project without the services whose images are not to be had."""
    project = Project(checkout, {})
    config = json.loads(project.compose("--profile", "*", "config", "--format", "json"))
    image = config["services"][service]["image"]
    if not has_image(image):
        pytest.skip(f"the image {image} is not to be had")
    return project


@pytest.fixture(scope="module")
def project(checkout: Path, images: dict[str, str]) -> Iterator[Project]:
    with running(project_with(checkout, "prometheus"), "server", "prometheus") as up:
        yield up


def ask(project: Project, path: str) -> dict[str, list[dict[str, object]]]:
    status, answer = Api(project.ports["PROMETHEUS_PORT"]).get(f"/api/v1/{path}")
    assert status == 200, answer
    return dict(json.loads(answer)["data"])


def test_prometheus_finds_the_server(project: Project) -> None:
    def health() -> list[object]:
        return [target["health"] for target in ask(project, "targets")["activeTargets"]]

    wait(lambda: health() == ["up"], 60)


def test_prometheus_has_every_rule(project: Project) -> None:
    (group,) = ask(project, "rules")["groups"]
    rules = group["rules"]
    assert isinstance(rules, list)
    text = (ROOT / "deploy" / "monitoring" / "rules.yml").read_text()
    assert len(rules) == text.count("alert:")
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}  # unknown before the first run


def test_grafana_shows_the_dashboard(checkout: Path, images: dict[str, str]) -> None:
    services = ("server", "prometheus", "grafana")
    with running(project_with(checkout, "grafana"), *services) as project:
        grafana = Api(project.ports["GRAFANA_PORT"])
        wait(lambda: grafana.get("/api/dashboards/uid/styleserve")[0] == 200, 60)
