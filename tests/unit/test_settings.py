"""Where a setting comes from, and what is refused in which words."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from styleserve.errors import ConfigError
from styleserve.settings import PREFIX, ServerSettings, load

FIELDS = sorted(ServerSettings.model_fields)


def test_defaults_are_the_documented_ones() -> None:
    settings = load([])

    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (8000, 8001, 8002)
    assert settings.models_dir == Path("models/converted")
    assert (settings.max_side, settings.max_pixels) == (1024, 50_000_000)
    assert settings.access_token.get_secret_value() == ""


def test_a_flag_wins_over_the_environment_and_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STYLESERVE_HTTP_PORT", "9000")
    monkeypatch.setenv("STYLESERVE_QUEUE_SIZE", "5")

    settings = load(["--http-port", "9100"])

    assert (settings.http_port, settings.queue_size, settings.threads) == (9100, 5, 0)


SAMPLES = {
    "models_dir": "some/folder, with [odd] name",
    "host": "127.0.0.1",
    "access_token": "aZ0._~-",
    "providers": "cuda,cpu",
    "precision": "bf16",
    "cache_dir": "/var/cache",
    "log_format": "json",
    "log_level": "debug",
    "trace_url": "http://collector:4318/v1/traces",
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_setting_can_be_set(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    text = SAMPLES.get(field, "77")
    by_flag = load([f"--{field.replace('_', '-')}", text])
    monkeypatch.setenv(PREFIX + field.upper(), text)
    by_variable = load([])

    for settings in (by_flag, by_variable):
        value = getattr(settings, field)
        assert str(value.get_secret_value() if field == "access_token" else value) == text


def test_empty_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STYLESERVE_HTTP_PORT", "")
    monkeypatch.setenv("STYLESERVE_NO_SUCH_THING", "")

    assert load([]).http_port == 8000


def test_unknown_variables_are_refused_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STYLESERVE_HTTPPORT", "9000")
    monkeypatch.setenv("STYLESERVE_DEBUG", "1")

    with pytest.raises(ConfigError, match=r"the settings are .*STYLESERVE_HTTP_PORT") as caught:
        load([])

    first, second = caught.value.problems
    assert first.startswith("STYLESERVE_DEBUG is no setting")
    assert second.startswith("STYLESERVE_HTTPPORT is no setting")


CLIENT = {"STYLESERVE_URL": "http://localhost:8000", "STYLESERVE_CLIENT_PORT": "7860"}
OTHERS = {"STYLESERVER_PORT": "1", "MY_STYLESERVE_PORT": "1"}
# A Service named styleserve sets these in every pod of its namespace.
KUBERNETES = {
    "STYLESERVE_SERVICE_HOST": "10.0.0.1",
    "STYLESERVE_SERVICE_PORT": "8000",
    "STYLESERVE_SERVICE_PORT_HTTP": "8000",
    "STYLESERVE_PORT": "tcp://10.0.0.1:8000",
    "STYLESERVE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "STYLESERVE_PORT_8000_TCP_PROTO": "tcp",
    "STYLESERVE_PORT_8000_TCP_PORT": "8000",
    "STYLESERVE_PORT_8000_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("variables", [CLIENT, OTHERS, KUBERNETES], ids=["client", "others", "k8s"])
def test_variables_for_others_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert load([]) == ServerSettings()  # type: ignore[call-arg]


def test_an_unknown_variable_in_lower_case_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("styleserve_http_port", "9000")
    assert load([]).http_port == 9000
    monkeypatch.setenv("styleserve_httpport", "9000")

    with pytest.raises(ConfigError, match="is no setting"):
        load([])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--http-port", "0"], "http_port: .*greater than or equal to 1, got '0'"),
        (["--http-port", "65536"], "http_port: .*65535, got '65536'"),
        (["--http-port", "http"], "http_port: .*integer.*got 'http'"),
        (["--threads", "-1"], "threads: .*got '-1'"),
        (["--threads", "1.5"], "threads: .*integer.*got '1.5'"),
        (["--queue-size", "0"], "queue_size: .*got '0'"),
        (["--max-side", "-1"], "max_side: .*got '-1'"),
        (["--max-pixels", "0"], "max_pixels: .*got '0'"),
        (["--max-pixels", "9" * 30], "max_pixels: "),
        (["--cache-mb", "true"], "cache_mb: .*integer.*got 'true'"),
        (["--host", "::"], "host: .*got '::'"),
        (["--log-level", "loud"], "log_level: .*'debug', 'info'.*got 'loud'"),
        (["--log-format", "xml"], "log_format: .*'text' or 'json'.*got 'xml'"),
    ],
)
def test_a_bad_value_is_told_in_one_line_with_both_names(flags: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        load(flags)

    (problem,) = caught.value.problems
    name = flags[0].removeprefix("--").replace("-", "_").upper()
    assert problem.endswith(f"set {PREFIX}{name} or {flags[0]}")
    assert "\n" not in problem
    assert "pydantic" not in problem


def test_a_bad_variable_is_told_like_a_bad_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STYLESERVE_HTTP_PORT", "http")

    with pytest.raises(ConfigError, match=r"^http_port: .*got 'http'; set STYLESERVE_HTTP_PORT"):
        load([])


def test_all_bad_values_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STYLESERVE_LOG_LEVEL", "loud")

    with pytest.raises(ConfigError) as caught:
        load(["--http-port", "x", "--threads", "-1"])

    told = sorted(problem.partition(":")[0] for problem in caught.value.problems)
    assert told == ["http_port", "log_level", "threads"]


@pytest.mark.parametrize(
    "flags", [["--nope"], ["--http-port"], ["word"], ["--http", "1"], ["--http_port", "1"]]
)
def test_a_wrong_flag_is_refused_in_one_line(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--help lists the flags") as caught:
        load(flags)

    assert flags[0] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "flags",
    [
        ["--http-port", "8001"],
        ["--grpc-port", "8002"],
        ["--metrics-port", "8000"],
        ["--http-port", "9", "--grpc-port", "9", "--metrics-port", "9"],
    ],
)
def test_equal_ports_are_refused(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"must differ, got \(.*STYLESERVE_METRICS_PORT"):
        load(flags)


def test_the_token_is_never_shown() -> None:
    settings = load(["--access-token", "s3cret"])

    assert "s3cret" not in repr(settings)
    assert "s3cret" not in str(settings.model_dump())
    assert settings.access_token.get_secret_value() == "s3cret"


@pytest.mark.parametrize("token", ["two words", "a,b", "a{b", "größe", "a:b", "a\n"])
def test_a_token_that_triton_would_cut_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match=r"^access_token: .*STYLESERVE_ACCESS_TOKEN$") as caught:
        load(["--access-token", token])

    assert token not in str(caught.value)


@pytest.mark.parametrize("word", ["JSON", "Json"])
def test_the_log_is_told_in_any_case(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("STYLESERVE_LOG_LEVEL", "WARNING")

    settings = load(["--log-format", word])

    assert (settings.log_format, settings.log_level) == ("json", "warning")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--threads", "-1"], "threads: "),
        (["--nope"], "error parsing CLI: "),
        (["--http-port", "8001"], "the HTTP, gRPC and metrics ports must differ"),
        (["--access-token", "a b"], "access_token: "),
    ],
)
def test_unknown_variables_are_told_together_with_whatever_else_is_wrong(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], told: str
) -> None:
    monkeypatch.setenv("STYLESERVE_MAX_SIZE", "9")

    with pytest.raises(ConfigError) as caught:
        load(flags)

    unknown, other = caught.value.problems
    assert unknown.startswith("STYLESERVE_MAX_SIZE is no setting")
    assert "did you mean STYLESERVE_MAX_SIDE" in unknown
    assert other.startswith(told)


def test_any_word_can_be_a_token() -> None:
    assert load(["--access-token", "null"]).access_token.get_secret_value() == "null"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load([]).http_port = 1


@pytest.fixture
def help_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as caught:
        load(["--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_tells_every_setting(help_text: str) -> None:
    words = " ".join(help_text.split())

    for field in FIELDS:
        description = ServerSettings.model_fields[field].description

        assert f"--{field.replace('_', '-')}" in words
        assert PREFIX + field.upper() in words
        assert description
        assert description.split(";")[0].rstrip(".") in words


@pytest.mark.parametrize("field", ["models_dir", "cache_dir"])
def test_a_folder_may_lie_in_the_home(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv(PREFIX + field.upper(), "~/folder")
    assert getattr(load([]), field) == Path("/home/somebody/folder")
