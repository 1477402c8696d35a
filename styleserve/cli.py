"""The command line: photos, folders and videos through a running server, without a browser.

inputs -> files (found) -> plan (jobs, refused here if at all) -> runner (server, results) -> report
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, TextIO

from styleserve.arguments import ALL, parse
from styleserve.crew import Crew, leave
from styleserve.errors import ConfigError, StyleServeError
from styleserve.files import STDIO, find, prepare
from styleserve.interrupt import INTERRUPTED
from styleserve.plan import plan, settle
from styleserve.report import Report

if TYPE_CHECKING:
    from styleserve.remote import Remote, Style

STDERR = 2
OK, FAILED, REFUSED = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Do what `argv` says and return the exit code: see the end of --help.

    Ctrl-C, and SIGTERM just so, ends the whole program from here.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _replace_closed()
    code = _main(argv)
    if code == INTERRUPTED:
        leave(code)
    return code


def _main(argv: Sequence[str]) -> int:
    try:
        return _run(parse(argv))
    except SystemExit as ended:  # argparse has told why
        return ended.code if isinstance(ended.code, int) else REFUSED
    except ConfigError as error:
        return _refuse(error, REFUSED)
    except StyleServeError as error:
        return _refuse(error, FAILED)
    except BrokenPipeError:
        return FAILED
    except OSError as error:
        return _refuse(*_told(error))
    except KeyboardInterrupt:
        _say(["client.py: interrupted"])
        return INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    # Imported late, so that --help and wrong usage answer at once.
    from styleserve.remote import Options
    from styleserve.runner import Runner

    _check_stdout(arguments)
    remote = _remote(arguments.url)
    if arguments.list:
        return _list(_served(remote), arguments.json)
    *inputs, out = arguments.paths
    found = find(inputs, out)
    styles = _choose(arguments.style, [style.name for style in _served(remote)], remote.url)
    jobs = plan(found, out, styles, arguments.style == ALL)
    jobs, skipped = settle(jobs, arguments.overwrite, arguments.skip)
    for job in jobs[:1]:
        prepare(job.target)
    options = Options(arguments.strength, arguments.keep_color, arguments.max_side)
    stdin = _stdin() if any(job.source is None for job in jobs) else b""
    report = Report(len(jobs), skipped=[job.describe() for job in skipped])
    Runner(remote, options, arguments.in_flight, stdin).run(jobs, report)
    return _tell(report, arguments)


def _tell(report: Report, arguments: argparse.Namespace) -> int:
    if arguments.json:
        _write_json(report.as_dict())
    elif arguments.paths[-1] != STDIO or report.failures:
        _say(report.lines())
    if report.interrupted:
        return INTERRUPTED
    return FAILED if report.failures else OK


def _remote(url: str | None) -> "Remote":
    from styleserve.remote import Remote
    from styleserve.settings import load_client

    settings = load_client()
    return Remote(url or settings.url, settings.client_timeout)


def _served(remote: "Remote") -> list["Style"]:
    # gevent, below tritonclient, prints a word of its own on Ctrl-C if it runs in the main thread.
    return Crew(1).start(lambda _: remote.styles(), None).result()


def _list(styles: Sequence["Style"], as_json: bool) -> int:
    if as_json:
        _write_json({"styles": [{"name": style.name, **style.details} for style in styles]})
    else:
        width = max((len(style.name) for style in styles), default=0)
        lines = [f"{style.name:{width}}  {style.description}".rstrip() for style in styles]
        _write(sys.stdout, lines)
    return OK


def _choose(style: str, served: list[str], url: str) -> list[str]:
    if style == ALL:
        return served
    if style in served:
        return [style]
    near = get_close_matches(style, served, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(
        f"no style {style!r} at {url}; {hint}served are {', '.join(served)}, or {ALL}"
    )


def _stdin() -> bytes:
    state = "closed" if not sys.stdin else "a terminal" if sys.stdin.isatty() else ""
    if state:
        raise ConfigError(f"- reads a photo from standard input, which is {state}; pipe one in")
    return sys.stdin.buffer.read()


def _check_stdout(arguments: argparse.Namespace) -> None:
    wanted = arguments.list or arguments.json or arguments.paths[-1:] == [STDIO]
    if wanted and not sys.stdout:
        raise ConfigError("the answer goes to standard output, which is closed; lead it to a file")


def _replace_closed() -> None:
    """Open what is closed of input, output and errors: else the next file takes its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(number)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w")


def _told(error: OSError) -> tuple[ConfigError, int]:
    if error.filename is None:
        what = (
            f"standard input or output failed: {error.strerror or error}; use a file in its place"
        )
        return ConfigError(what), FAILED
    what = f"{error.filename} cannot be used: {error.strerror}; name another file or folder"
    return ConfigError(what), REFUSED


def _write_json(document: dict[str, object]) -> None:
    _write(sys.stdout, [json.dumps(document, indent=2)])


def _write(stream: TextIO, lines: Sequence[str]) -> None:
    stream.write("".join(f"{line}\n" for line in lines))
    stream.flush()  # as long as a failure can be told


def _say(lines: Sequence[str]) -> None:
    with suppress(OSError):  # the exit code tells it too
        _write(sys.stderr, lines)


def _refuse(error: StyleServeError, code: int) -> int:
    _say([f"client.py: {problem}" for problem in error.problems])
    return code
