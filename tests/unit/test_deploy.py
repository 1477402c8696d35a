"""What is deployed agrees with the settings, with itself, and with the schemas of Kubernetes."""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import SecretStr

from styleserve import __version__, lifecycle, machine
from styleserve.declaration import PIPELINES
from styleserve.settings import PREFIX, ClientSettings, ServerSettings
from styleserve.triton import DRAIN_TIMEOUT_S
from tests.e2e.running import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = sorted(ROOT.glob("docker-compose*.yml"))
FIELDS = ServerSettings.model_fields | ClientSettings.model_fields
OVERLAYS = [".", "gpu", "monitoring", "gpu-monitoring"]
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
# Not in the schemas of Kubernetes itself.
CUSTOM = {"InferenceService", "PodMonitor", "PrometheusRule", "Kustomization", "Component"}

yaml.SafeLoader.add_constructor("!reset", lambda *_: None)


def default(name: str) -> str:
    value = FIELDS[name].default
    return "" if isinstance(value, SecretStr) else str(value)


def used_variables() -> dict[str, str]:
    """List the variables that the Compose files fill in, with the defaults they have there."""
    text = "".join(path.read_text() for path in COMPOSE)
    return dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))


def example() -> dict[str, str]:
    return dict(re.findall(r"^# (\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))


def documents(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def manifests() -> list[Path]:
    folders = ("base", "examples", "monitoring/component")
    return [path for folder in folders for path in sorted((DEPLOY / folder).glob("*.yaml"))]


def base(kind: str, name: str = "styleserve") -> dict[str, Any]:
    found = [
        item
        for path in (DEPLOY / "base").glob("*.yaml")
        for item in documents(path)
        if item["kind"] == kind and item.get("metadata", {}).get("name") == name
    ]
    assert len(found) == 1
    return found[0]


def pod(name: str = "styleserve") -> dict[str, Any]:
    return dict(base("Deployment", name)["spec"]["template"])


def test_the_example_lists_every_setting_and_variable() -> None:
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["server"]
    values = service["environment"].items()
    fixed = {name for name, value in values if value and "$" not in str(value)}
    settings = {PREFIX + name.upper() for name in FIELDS}
    unchangeable = fixed - set(used_variables())
    assert unchangeable == {"STYLESERVE_CACHE_DIR"}
    assert set(example()) == (settings | set(used_variables())) - unchangeable


def test_the_example_shows_the_defaults() -> None:
    ours = {PREFIX + name.upper(): default(name) for name in FIELDS}
    # In the containers the page calls another container, and no setting means the image's models.
    wanted = ours | used_variables()
    wanted["STYLESERVE_URL"] = "http://server:8000"
    wanted["STYLESERVE_MODELS_DIR"] = default("models_dir")
    wanted["STYLESERVE_PIPELINES"] = f"models/{PIPELINES}"
    assert example() == {name: wanted[name] for name in example()}


def test_the_defaults_of_compose_are_those_of_the_settings() -> None:
    others = {"STYLESERVE_URL", "STYLESERVE_MODELS_DIR", "STYLESERVE_PIPELINES"}
    for name, value in used_variables().items():
        if name.startswith(PREFIX) and name not in others:
            assert value == default(name.removeprefix(PREFIX).lower()), name


def test_the_page_gets_its_own_settings_and_no_others() -> None:
    page = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["client"]
    assert "env_file" not in page
    assert set(page["environment"]) == {
        PREFIX + name.upper() for name in ClientSettings.model_fields
    }


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_accepts_the_files(path: Path) -> None:
    files = dict.fromkeys(("docker-compose.yml", path.name))
    options = ["--env-file", "/dev/null", *(part for file in files for part in ("-f", file))]
    if not shutil.which("docker") or subprocess.run(["docker", "compose", "version"]).returncode:
        pytest.skip("there is no docker compose")
    answer = subprocess.run(
        ["docker", "compose", *options, "--profile", "*", "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr


def test_ports_are_the_same_everywhere() -> None:
    assert {name: int(default(f"{name}_port")) for name in PORTS} == PORTS
    (container,) = pod()["spec"]["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == PORTS
    dockerfile = (ROOT / "Dockerfile").read_text()
    exposed = re.findall(r"^EXPOSE (.*)$", dockerfile, re.MULTILINE)
    assert exposed == [default("client_port"), " ".join(map(str, PORTS.values()))]
    (page,) = pod("styleserve-page")["spec"]["containers"]
    assert page["ports"][0]["containerPort"] == int(default("client_port"))


def test_the_balancer_lets_pass_what_triton_survives_and_no_more() -> None:
    limits = re.findall(
        r"(?:limit: &limit|bytes:) (\d+)", (DEPLOY / "envoy/envoy.yaml").read_text()
    )
    limit = int(limits[0])
    assert 3 * int(default("max_pixels")) < limit < lifecycle.STACK_BYTES // 2


@pytest.mark.parametrize("path", manifests(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_manifests_are_valid(path: Path) -> None:
    for item in documents(path):
        if item["kind"] not in CUSTOM:
            kubernetes_validate.validate(item, "1.37", strict=True)


def render(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what Kustomize makes of a folder, by kind and name."""
    tools = (("kustomize", "build"), ("kubectl", "kustomize"))
    tool = next((tool for tool in tools if shutil.which(tool[0])), None)
    if not tool:
        pytest.skip("there is neither kustomize nor kubectl")
    answer = subprocess.run([*tool, str(folder)], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    items = yaml.safe_load_all(answer.stdout)
    return {(item["kind"], item["metadata"]["name"]): item for item in items}


def test_the_gpu_image_stays_when_the_registry_is_another(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path, dirs_exist_ok=True)
    for part in ("base", "gpu/component"):
        path = tmp_path / part / "kustomization.yaml"
        path.write_text(path.read_text().replace("newName: ", "newName: registry.example.com/"))
    images = [
        container["image"]
        for (kind, _), item in sorted(render(tmp_path / "gpu").items())
        if kind == "Deployment"
        for container in item["spec"]["template"]["spec"]["containers"]
    ]
    names = ("server-gpu", "client")
    assert images == [f"registry.example.com/styleserve/{name}:{__version__}" for name in names]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_render_to_valid_manifests(overlay: str) -> None:
    items = render(DEPLOY / overlay)
    for (kind, _), item in items.items():
        if kind not in CUSTOM:
            kubernetes_validate.validate(item, "1.37", strict=True)
    (container,) = items["Deployment", "styleserve"]["spec"]["template"]["spec"]["containers"]
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == ("gpu" in overlay)
    scaler = items["HorizontalPodAutoscaler", "styleserve"]["spec"]["metrics"]
    assert len(scaler) == (2 if "monitoring" in overlay else 1)
    reference = container["envFrom"][0]["configMapRef"]["name"]
    assert ("ConfigMap", reference) in items


def test_settings_of_the_cluster_are_real() -> None:
    names = re.findall(
        rf"^{PREFIX}(\w+)=", (DEPLOY / "base/settings.env").read_text(), re.MULTILINE
    )
    assert names
    assert {name.lower() for name in names} <= set(FIELDS)


@pytest.mark.parametrize("name", ["styleserve", "styleserve-page"])
def test_selectors_find_their_pods(name: str) -> None:
    labels = pod(name)["metadata"]["labels"]
    assert base("Deployment", name)["spec"]["selector"]["matchLabels"] == labels
    assert base("Service", name)["spec"]["selector"] == labels
    assert base("NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"] == labels


def test_everything_about_the_server_means_its_deployment() -> None:
    labels = pod()["metadata"]["labels"]
    assert base("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    target = base("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "styleserve")
    monitor = documents(DEPLOY / "monitoring/component/podmonitor.yaml")[0]["spec"]
    assert monitor["selector"]["matchLabels"] == labels


@pytest.mark.parametrize("name", ["styleserve", "styleserve-page"])
def test_pods_keep_to_the_restricted_standard(name: str) -> None:
    spec = pod(name)["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert f"USER {spec['securityContext']['runAsUser']}:" in (ROOT / "Dockerfile").read_text()
    # Else the Service styleserve-page sets variables that look like settings.
    assert spec["enableServiceLinks"] is False
    for container in spec["containers"]:
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]


def test_probes_ask_different_questions_and_leave_time_to_heal_and_drain() -> None:
    spec = pod()["spec"]
    (server,) = spec["containers"]
    probes = [server[f"{name}Probe"] for name in ("startup", "readiness", "liveness")]
    assert len({probe["httpGet"]["path"] for probe in probes}) == len(probes)
    startup, _, liveness = probes
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    pause = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > pause + DRAIN_TIMEOUT_S


def test_shared_memory_takes_the_largest_picture_in_every_model() -> None:
    files = (ROOT / "params.yaml", ROOT / "models" / PIPELINES)
    params, pipelines = (yaml.safe_load(path.read_text()) for path in files)
    models = len(params["models"]) + len(pipelines) + 1  # the catalog
    picture = machine.SHM_COPIES * 3 * int(default("max_pixels"))
    assert machine.SHM_BASE_BYTES + models * picture < 4 << 30
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod()["spec"]["volumes"]}
    assert volumes["shm"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    server = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["server"]
    assert server["shm_size"] == "${SERVER_SHM:-4g}"


def test_the_operator_has_the_same_rules() -> None:
    (operator,) = documents(DEPLOY / "monitoring/component/rules-operator.yaml")
    (plain,) = documents(DEPLOY / "monitoring/rules.yml")
    assert operator["spec"] == plain


def test_the_queue_alarm_comes_before_the_queue_is_full() -> None:
    (plain,) = documents(DEPLOY / "monitoring/rules.yml")
    rules = {rule["alert"]: rule["expr"] for rule in plain["groups"][0]["rules"]}
    limit = int(rules["StyleserveQueueFull"].rpartition("> ")[2])
    assert int(default("queue_size")) // 2 < limit < int(default("queue_size"))


@pytest.mark.parametrize("command", ["check rules rules.yml", "test rules rules_test.yml"])
def test_alerts_fire_when_they_should(command: str) -> None:
    if not shutil.which("promtool"):
        pytest.skip("there is no promtool; Debian has it in the package prometheus")
    answer = subprocess.run(
        ["promtool", *command.split()],
        cwd=DEPLOY / "monitoring",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_dashboard_is_well_laid_out() -> None:
    dashboard = json.loads((DEPLOY / "monitoring/component/dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    known = {"$" + item["name"] for item in dashboard["templating"]["list"]}
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        for target in panel["targets"]:
            assert 'job="styleserve"' in target["expr"]
            assert set(re.findall(r"\$\w+", target["expr"])) <= known | {"$__rate_interval"}
