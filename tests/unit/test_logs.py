"""Log lines: JSON that parses, text for people, Triton's lines at their own level."""

import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest

from styleserve import logs

NASTY = 'says "no"\nand \\ more, größe, \x07'


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what `set_up` does to the root logger and to the loggers that it quietens."""
    quiet = [logging.getLogger(name) for name in ("pytriton", "sh", "asyncio", "urllib3")]
    root = logging.getLogger()
    handlers, levels = root.handlers[:], [each.level for each in (root, *quiet)]
    root.handlers = []  # which `set_up` would close
    yield
    root.handlers = handlers
    for each, level in zip((root, *quiet), levels, strict=True):
        each.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_json_lines_can_be_parsed(capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    logs.set_up(log_format, "info")

    logging.getLogger("styleserve.test").warning("it %s", NASTY)

    (line,) = lines(capsys)
    entry = json.loads(line)
    assert entry["message"] == f"it {NASTY}"
    assert (entry["level"], entry["logger"]) == ("WARNING", "styleserve.test")
    assert datetime.strptime(entry["time"], "%Y-%m-%d %H:%M:%S,%f")
    assert len(entry) == 4


def test_a_traceback_stays_in_its_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", "info")

    try:
        raise ValueError(NASTY)
    except ValueError:
        logging.getLogger("styleserve.test").exception("it failed")

    (line,) = lines(capsys)
    assert "Traceback" in json.loads(line)["exc_info"]


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("text", "info")

    logging.getLogger("styleserve.test").warning("it %s", "works")

    (line,) = lines(capsys)
    assert line.endswith(" WARNING it works")


def test_auto_is_text_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    logs.set_up("auto", "info")

    logging.getLogger("styleserve.test").warning("it works")

    assert lines(capsys)[0].endswith(" WARNING it works")


@pytest.mark.parametrize(
    ("level", "seen"), [("debug", "diwe"), ("info", "iwe"), ("warning", "we"), ("error", "e")]
)
def test_the_level_is_the_least_severe_shown(
    capsys: pytest.CaptureFixture[str], level: str, seen: str
) -> None:
    logs.set_up("text", level)

    log = logging.getLogger("styleserve.test")
    for write, letter in ((log.debug, "d"), (log.info, "i"), (log.warning, "w"), (log.error, "e")):
        write(letter)

    assert "".join(line[-1] for line in lines(capsys)) == seen


def test_other_packages_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("text", "debug")

    logging.getLogger("pytriton.proxy.inference").warning("traceback of a caller's mistake")
    logging.getLogger("sh.command").info("started")

    assert lines(capsys) == []


# --- Triton's own lines


def triton(text: str, has_gpu: bool, caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    output = logs.TritonOutput(has_gpu)
    with caplog.at_level(logging.DEBUG, "triton"):
        output(text)
    return [(record.levelno, record.getMessage()) for record in caplog.records]


HEAD = "1130 09:47:39.677598 5567 server.cc:305]"


@pytest.mark.parametrize(
    ("letter", "level"),
    [
        ("I", logging.DEBUG),
        ("W", logging.WARNING),
        ("E", logging.ERROR),
        ("F", logging.CRITICAL),
    ],
)
def test_triton_lines_keep_their_level(
    caplog: pytest.LogCaptureFixture, letter: str, level: int
) -> None:
    assert triton(f'{letter}{HEAD} "some text"\n', True, caplog) == [(level, "some text")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"E{HEAD} no quotes", "no quotes"),
        (f'E{HEAD} "with "quotes" inside"', 'with "quotes" inside'),
        ('E1130 09:47:39.677598 7 src/python_be.cc:2] "x"', "x"),
    ],
)
def test_triton_lines_lose_their_head(
    caplog: pytest.LogCaptureFixture, line: str, message: str
) -> None:
    assert triton(f"{line}\n", True, caplog) == [(logging.ERROR, message)]


def test_other_lines_of_triton_are_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    text = "+----+\n\n| a%s |\n   \n"

    assert triton(text, True, caplog) == [(logging.DEBUG, "+----+"), (logging.DEBUG, "| a%s |")]


@pytest.mark.parametrize(("has_gpu", "level"), [(True, logging.ERROR), (False, logging.DEBUG)])
def test_gpu_complaints_are_noise_without_a_gpu_only(
    caplog: pytest.LogCaptureFixture, has_gpu: bool, level: int
) -> None:
    about = ("CUDA", "Cuda", "NVML", "DCGM")
    lines = [f'E{HEAD} "{name} is not there"\n' for name in about] + [f'E{HEAD} "real"\n']

    levels = [each[0] for each in triton("".join(lines), has_gpu, caplog)]

    assert levels == [level] * len(about) + [logging.ERROR]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_in_pieces_are_put_together(caplog: pytest.LogCaptureFixture, size: int) -> None:
    text = f'E{HEAD} "one"\nW{HEAD} "two"\nI{HEAD} "cut'
    output = logs.TritonOutput(has_gpu=True)

    with caplog.at_level(logging.DEBUG, "triton"):
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            output(piece if start % 2 else piece.encode())

    assert caplog.messages == ["one", "two"]


def test_a_letter_may_be_cut_in_two(caplog: pytest.LogCaptureFixture) -> None:
    output = logs.TritonOutput(has_gpu=True)

    for byte in f'E{HEAD} "größe"\n'.encode():
        output(bytes([byte]))

    assert caplog.messages == ["größe"]
