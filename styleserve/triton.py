"""Triton as a process of ours: start it, tell whether it is whole, drain it, end it.

With `styleserve.serving` and `styleserve.binding` the only importer of pytriton, whose private
parts it overrides: its own waits go on for minutes after tritonserver has ended.
"""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from pytriton.triton import Triton, TritonConfig, TritonLifecyclePolicy, TritonSecurityConfig
from pytriton.utils.workspace import Workspace

from styleserve import health, logs, machine, processes
from styleserve.leftovers import Claim
from styleserve.settings import ServerSettings

START_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 30
POLL_S = 0.1
LINGER_S = 2.0
FLUSH_S = 2.0  # for the last answers to reach slow callers


class StartError(Exception):
    """Triton did not become ready."""


class TritonProcess(Triton):  # type: ignore[misc]  # pytriton has no types
    """A Triton to which models are bound before it starts.

    With this policy no port opens before every model is loaded, so ready means ready.
    """

    def __init__(self, settings: ServerSettings, stop: threading.Event) -> None:
        """Prepare a Triton; a set `stop` ends a start that is under way."""
        token = machine.new_token()
        both = machine.SHM.resolve(), settings.cache_dir.resolve()
        self._claims = [Claim(folder, token) for folder in dict.fromkeys(both)]
        self._home = both[1] / self._claims[0].name
        self._settings = settings
        self._local = "127.0.0.1" if settings.host == "0.0.0.0" else settings.host
        self._stop_asked = stop
        self._members: list[psutil.Process] = []
        super().__init__(
            config=_config(settings),
            workspace=self._home,
            triton_lifecycle_policy=TritonLifecyclePolicy(
                launch_triton_on_startup=False, local_model_store=True
            ),
            # None makes a random one.
            security_config=TritonSecurityConfig(settings.access_token.get_secret_value() or None),
        )

    def store(self, model: str) -> Path:
        """Return the folder with the files of a bound model."""
        return self._home / "model-store" / model

    def start(self) -> None:
        """Start Triton and return once it is ready.

        Raises:
            StartError: if it cannot become ready, or was asked to stop.
        """
        try:
            self.run()
        except (StartError, OSError, ValueError) as error:
            # Nothing is served yet, and a tritonserver that waits for a dead worker never ends.
            self.kill()
            raise StartError(f"Triton did not start: {error}") from error

    def kill(self) -> None:
        """End tritonserver and all below it at once."""
        for model in self._model_manager.models:
            model.clean()
        # Workers whose tritonserver has ended belong to nobody, and would stay.
        processes.kill([*self._members, *processes.started_from(self._home)])

    def release(self) -> None:
        """Remove all files of this server; call it last."""
        for claim in self._claims:
            claim.release()

    def is_whole(self) -> bool:
        """Tell whether tritonserver, every worker and every thread of ours is still running."""
        return bool(self.is_alive()) and all(map(processes.is_running, self._members))

    def _prepare_triton_config(self, workspace: Workspace) -> None:
        super()._prepare_triton_config(workspace)
        # Else Triton starts every worker twice, to ask the first for a configuration it has.
        self._triton_server_config["strict-model-config"] = True
        if self._settings.trace_url:
            # As TritonConfig.trace_config it would need OpenTelemetry's Python packages, too.
            self._triton_server_config["trace-config"] = _traces(self._settings.trace_url)

    def _shm_prefix(self) -> str:
        return self._claims[0].name

    def _initialize_server(self) -> None:
        super()._initialize_server()
        self._triton_server._record_logs = logs.TritonOutput(machine.has_gpu())

    def _wait_for_server(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        ended: dict[psutil.Process, float] = {}
        root = self._triton_server._tritonserver_running_cmd.pid
        while not self._is_ready():
            self._members = processes.workers(root) or self._members
            now = time.monotonic()
            if self._stop_asked.wait(POLL_S) and not self._is_ready():
                raise StartError("it was asked to stop")
            if not self._members or not processes.is_running(self._members[0]):
                raise StartError("tritonserver has ended")
            # What ends and is soon gone has done its work.
            found = [worker for worker in self._members if not processes.is_running(worker)]
            ended = {worker: ended.get(worker, now) for worker in found}
            if any(now - since > LINGER_S for since in ended.values()):
                raise StartError("a worker process has died")
            if now > deadline:
                raise StartError(f"it was not ready after {START_TIMEOUT_S:.0f} s")
        self._members = processes.workers(root)

    def _wait_for_models(self) -> None:
        """Skip PyTriton's wait: once the server is ready, every model is."""

    def _pre_stop_impl(self) -> None:
        self._drain()
        super()._pre_stop_impl()

    def _on_tritonserver_exit(self, *_: object) -> None:
        """Leave the clean-up to `styleserve.lifecycle`, which watches this process."""

    def _is_ready(self) -> bool:
        return health.is_ready(self._local, self._settings.http_port)

    def _is_busy(self) -> bool:
        waiting = health.pending(self._local, self._settings.metrics_port)
        return bool(waiting) or any(call.is_busy for call in self._calls())

    def _calls(self) -> list[Any]:
        models = self._model_manager.models
        return [call for model in models for call in model.infer_functions]

    def _drain(self) -> None:
        """Let requests finish, then end tritonserver, which would wait for idle connections."""
        for root in self._members[:1]:
            if processes.is_running(root):
                root.send_signal(signal.SIGINT)  # from now on it takes no new connection
            start = busy = time.monotonic()
            while processes.is_running(root) and time.monotonic() < start + DRAIN_TIMEOUT_S:
                busy = time.monotonic() if self._is_busy() else busy
                if time.monotonic() > busy + FLUSH_S:
                    break
                time.sleep(POLL_S)
        self.kill()


def _config(settings: ServerSettings) -> TritonConfig:
    return TritonConfig(
        http_address=settings.host,
        http_port=settings.http_port,
        grpc_address=settings.host,
        grpc_port=settings.grpc_port,
        metrics_address=settings.host,
        metrics_port=settings.metrics_port,
        strict_readiness=True,
        exit_on_error=True,
        exit_timeout_secs=DRAIN_TIMEOUT_S,
        # On a machine without an NVIDIA GPU the metrics' search for one fills the log with errors.
        allow_gpu_metrics=machine.has_gpu(),
        metrics_config=["summary_latencies=true"],
    )


def _traces(url: str) -> list[str]:
    target = [f"opentelemetry,url={url}", "opentelemetry,resource=service.name=styleserve"]
    return ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1", *target]
