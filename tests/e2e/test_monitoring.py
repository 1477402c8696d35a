"""Every query of the dashboard and the alert rules finds something in real metrics."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.e2e.conftest import Launch
from tests.e2e.running import ROOT, Running, free_ports

MONITORING = ROOT / "deploy" / "monitoring"
NAME = re.compile(r"\b(?:nv|styleserve)_\w+")
PICTURE = np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
SCRAPES, SEEN_S = 5, 60.0


def queries() -> list[str]:
    """List all queries that a machine without a GPU and without Kubernetes can answer."""
    dashboard = json.loads((MONITORING / "component/dashboard.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    texts = [target["expr"] for target in targets if "nv_gpu_" not in target["expr"]]
    texts = [re.sub(r'=~"\$\w+"', '=~".*"', text) for text in texts]
    return [text.replace("$__rate_interval", "10s") for text in texts]


def alerts() -> list[str]:
    groups = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


@pytest.fixture
def busy(launch: Launch, tiny_folder: Path, tmp_path: Path) -> Running:
    """A server with answers, answers from the cache, a pipeline, and failures."""
    declared = tmp_path / "pipelines.yaml"
    declared.write_text("piped: {nodes: {out: {model: identity}}, output: out}")
    running = launch(tiny_folder, cache_mb=8, pipelines=declared).wait_ready()
    call(running)
    return running


def call(running: Running) -> None:
    for strength in (1.0, 0.5):
        for _ in range(2):
            running.infer("identity", image=PICTURE, strength=strength)
    fresh = np.random.default_rng().integers(0, 256, PICTURE.shape, np.uint8)
    running.infer("piped", image=fresh)  # what comes from the cache runs no node
    wrong = {"name": "strength", "shape": [1], "datatype": "FP32", "data": [7]}
    status, _ = running.post("/v2/models/identity/infer", json.dumps({"inputs": [wrong]}))
    assert status == 400


def test_every_metric_exists(busy: Running) -> None:
    _, metrics = busy.get("/metrics", busy.metrics)
    there = set(NAME.findall(metrics.decode()))
    wanted = {name for text in (*queries(), *alerts()) for name in NAME.findall(text)}
    assert wanted - there == set()


@pytest.fixture
def prometheus(busy: Running, tmp_path: Path) -> Iterator[str]:
    """A real Prometheus that scrapes the server; its address."""
    if not shutil.which("prometheus"):
        pytest.skip("there is no prometheus; Debian has it in a package of that name")
    (port,) = free_ports(1)
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{busy.metrics}"]}]
    config["global"]["scrape_interval"] = "1s"
    config["rule_files"] = [str(MONITORING / "rules.yml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)


def ask(prometheus: str, query: str) -> list[float]:
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
    except OSError:  # it is starting
        return []
    return [float(item["value"][1]) for item in found]


def watch(running: Running, prometheus: str) -> None:
    """Call the server until Prometheus has seen it several times; it begins after some seconds."""
    deadline = time.monotonic() + SEEN_S
    while ask(prometheus, "count_over_time(nv_cpu_utilization[1m])") < [SCRAPES]:
        assert time.monotonic() < deadline, f"not seen {SCRAPES} times within {SEEN_S} s"
        call(running)
        time.sleep(0.3)


def test_every_query_of_the_dashboard_has_an_answer(busy: Running, prometheus: str) -> None:
    watch(busy, prometheus)
    values = {query: ask(prometheus, query) for query in queries()}
    assert [query for query, found in values.items() if not np.isfinite(found).any()] == []
    assert ask(prometheus, 'sum(rate(styleserve_request_failure{reason="caller"}[10s]))') > [0]


def test_no_alarm_is_raised_on_a_healthy_server(busy: Running, prometheus: str) -> None:
    watch(busy, prometheus)
    # How much memory is free is up to the machine.
    found = {query: ask(prometheus, query) for query in alerts() if "memory" not in query}
    assert [query for query, values in found.items() if values] == []


def test_a_request_leaves_a_trace(launch: Launch, tiny_folder: Path) -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector,
        ThreadPoolExecutor() as pool,
    ):
        pool.submit(collector.serve_forever)
        url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        running = launch(tiny_folder, trace_url=url).wait_ready()
        running.infer("identity", image=PICTURE)
        deadline = time.monotonic() + 20
        while not received and time.monotonic() < deadline:
            time.sleep(0.2)
        collector.shutdown()
    spans = json.loads(received[0])["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert {"compute", "identity"} <= {span["name"] for span in spans}
