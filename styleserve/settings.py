"""Every setting, once: a flag wins over the environment (`STYLESERVE_*`), that over the default.

Only this module reads the environment for settings of styleserve.
"""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from styleserve.errors import ConfigError

PREFIX = "STYLESERVE_"
LOWER = BeforeValidator(str.lower)
Folder = Annotated[Path, AfterValidator(Path.expanduser)]  # a .env file knows no ~
TOKEN = re.compile(r"[A-Za-z0-9._~-]*")  # what passes through Triton's command line


def _no_ipv6(host: str) -> str:
    if ":" in host:
        raise PydanticCustomError("host", "an IPv4 address or a name is needed, no IPv6")
    return host


class ServerSettings(BaseSettings):
    """Serve every ONNX image-to-image model of a folder over HTTP, gRPC and metrics."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        cli_prog_name="server.py",
        cli_kebab_case=True,
        cli_show_env_vars=True,
        cli_exit_on_error=False,
        frozen=True,
        use_attribute_docstrings=True,
        cli_parse_none_str="\0",  # else the word null would be no value
    )

    models_dir: Folder = Path("models/converted")
    """Folder with the served models; every *.onnx at any depth below it."""
    pipelines: str = ""
    """File with pipelines; if empty, pipelines.yaml in the models folder or beside it."""
    # Containers need this default; the README tells what is open.
    host: Annotated[str, AfterValidator(_no_ipv6)] = "0.0.0.0"
    """IPv4 address, or name, to listen on."""
    http_port: int = Field(8000, ge=1, le=65535)
    """Port of the HTTP endpoint."""
    grpc_port: int = Field(8001, ge=1, le=65535)
    """Port of the gRPC endpoint."""
    metrics_port: int = Field(8002, ge=1, le=65535)
    """Port of the Prometheus metrics."""
    access_token: SecretStr = SecretStr("")
    """Token for Triton's protected endpoints (model repository, trace, ...); random if empty."""
    providers: str = "auto"
    """Comma-separated execution providers in order (cuda, tensorrt, openvino, cpu), or auto."""
    precision: Annotated[Literal["auto", "fp32", "bf16", "int8", "tf32", "fp16"], LOWER] = "auto"
    """Arithmetic: fp32, bf16 or int8 (CPU), tf32 or fp16 (GPU), or auto: the fastest as good."""
    threads: int = Field(0, ge=0, le=1024)
    """Threads of one model run; 0 takes the CPU quota of the container or machine."""
    concurrency: int = Field(0, ge=0, le=1024)
    """Models that run at once; 0 means 1 on a CPU and 2 on a GPU."""
    queue_size: int = Field(32, ge=1, le=10_000)
    """Requests that may wait for one model; further ones are answered with 503."""
    max_side: int = Field(1024, ge=0, le=65_536)
    """Longer side, in pixels, at which a picture is worked on; 0 sets no limit."""
    max_pixels: int = Field(50_000_000, ge=1, le=1_000_000_000)
    """Largest picture accepted, in pixels."""
    cache_mb: int = Field(0, ge=0, le=65_536)
    """Memory for answers to repeated requests, in MiB; 0 keeps none."""
    trace_url: str = Field("", pattern=r"^(https?://[!-~]+)?$")
    """OpenTelemetry collector to send a trace of each request to, by OTLP over HTTP; or empty."""
    cache_dir: Folder = Field(Path("~/.cache/styleserve"), validate_default=True)
    """Folder for Triton's files while the server runs; must allow execution."""
    log_format: Annotated[Literal["auto", "text", "json"], LOWER] = "auto"
    """Log lines for people (text) or machines (json); auto means text on a terminal."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], LOWER] = "info"
    """Least severe log lines to show; debug has one line for each request."""


class ClientSettings(BaseSettings):
    """Style pictures through a running server: on a web page, or file by file."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, use_attribute_docstrings=True
    )

    url: str = "http://localhost:8000"
    """HTTP address of the server that the page and the command line call."""
    client_host: str = "0.0.0.0"  # containers need it
    """Address that the page listens on."""
    client_port: int = Field(7860, ge=1, le=65535)
    """Port of the page."""
    client_timeout: float = Field(300, gt=0)
    """Seconds to wait for an answer of the server."""
    client_concurrency: int = Field(8, ge=1, le=1024)
    """Visitors of the page who are served at once; others see their place in the queue."""
    client_queue_size: int = Field(64, ge=1, le=10_000)
    """Visitors of the page who may wait; further ones are told to come later."""
    client_root_path: str = ""
    """Path under which a reverse proxy shows the page, such as /styles."""
    client_user: str = ""
    """Name to log in on the page with; empty lets everybody in."""
    client_password: SecretStr = SecretStr("")
    """Password to log in on the page with."""
    max_pixels: int = Field(50_000_000, ge=1, le=1_000_000_000)
    """Largest picture accepted, in pixels."""


def load(argv: Sequence[str]) -> ServerSettings:
    """Read the settings from the flags `argv`, the environment and the defaults.

    Raises:
        ConfigError: with one line for each setting that is unknown or out of range.
    """
    known = ServerSettings.model_fields | ClientSettings.model_fields
    problems = [_unknown(name) for name in sorted(_environment() - set(known))]
    try:
        settings = ServerSettings(_cli_parse_args=list(argv))  # type: ignore[call-arg]
    except SettingsError as error:
        raise ConfigError(*problems, f"{error}; server.py --help lists the flags") from error
    except ValidationError as error:
        raise ConfigError(*problems, *(_problem(item) for item in error.errors())) from error
    ports = (settings.http_port, settings.grpc_port, settings.metrics_port)
    if len(set(ports)) < len(ports):
        problems.append(
            f"the HTTP, gRPC and metrics ports must differ, got {ports}; change one of "
            f"{PREFIX}HTTP_PORT, {PREFIX}GRPC_PORT, {PREFIX}METRICS_PORT"
        )
    if not TOKEN.fullmatch(settings.access_token.get_secret_value()):
        problems.append(
            f"access_token: letters, digits, '.', '_', '~' and '-' are allowed; set another "
            f"{PREFIX}ACCESS_TOKEN"
        )
    if problems:
        raise ConfigError(*problems)
    return settings


def load_client() -> ClientSettings:
    """Read the settings of the page and the command line from the environment.

    Raises:
        ConfigError: with one line for each setting that is out of range.
    """
    try:
        settings = ClientSettings()  # type: ignore[call-arg]  # pydantic fills in the defaults
    except ValidationError as error:
        raise ConfigError(*(_problem(item, flag=False) for item in error.errors())) from error
    if bool(settings.client_user) != bool(settings.client_password.get_secret_value()):
        raise ConfigError(
            f"{PREFIX}CLIENT_USER and {PREFIX}CLIENT_PASSWORD belong together: set both or none"
        )
    return settings


# Kubernetes sets these in every pod when a Service is called styleserve.
SERVICE_LINKS = re.compile(r"service_(host|port)|port(_\d+_(tcp|udp).*)?$")


def _environment() -> set[str]:
    names = {name.lower() for name, value in os.environ.items() if value}
    own = {name.removeprefix(PREFIX.lower()) for name in names if name.startswith(PREFIX.lower())}
    return {name for name in own if not SERVICE_LINKS.match(name)}


def _unknown(name: str) -> str:
    fields = list(ServerSettings.model_fields)
    near = difflib.get_close_matches(name, fields)
    names = ", ".join(PREFIX + field.upper() for field in near or fields)
    hint = f"did you mean {names}?" if near else f"the settings are {names}"
    return f"{PREFIX}{name.upper()} is no setting of this server; {hint}"


def _problem(item: Any, flag: bool = True) -> str:  # noqa: ANN401  pydantic's ErrorDetails
    field = str(item["loc"][0])
    reason = item["msg"][:1].lower() + item["msg"][1:]
    name = f"{PREFIX}{field.upper()}" + (f" or --{field.replace('_', '-')}" if flag else "")
    return f"{field}: {reason}, got {item['input']!r}; set {name}"
