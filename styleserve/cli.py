"""The command line: photos, folders and videos through a running server, without a browser.

inputs -> files (found) -> plan (jobs, refused here if at all) -> batch (server, results) -> report
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TextIO

from styleserve.crew import Crew
from styleserve.errors import ConfigError, StyleServeError
from styleserve.files import STDIO, find, prepare
from styleserve.plan import plan, settle

if TYPE_CHECKING:
    from styleserve.remote import Remote, Style

OK, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT
ALL = "all"
_MOST = 65_535
_EXAMPLES = """\
examples:
  client.py --list                              the styles
  client.py photo.jpg styled.jpg --style dots   one photo
  client.py holidays/ 'cats/*.png' out/ --style dots --strength 0.7
  client.py clip.mp4 out/ --style swirl --max-side 480
  client.py - - --style dots < photo.jpg > styled.jpg

Without arguments client.py serves the web page. Exit code: 0 all done, 1 something failed,
2 wrong usage, 130 interrupted (run it again with --skip)."""


def main(argv: Sequence[str]) -> int:
    """Do what `argv` says and return the exit code: see the end of --help."""
    try:
        return _run(_parse(argv))
    except SystemExit as ended:  # argparse has told why
        return ended.code if isinstance(ended.code, int) else REFUSED
    except ConfigError as error:
        return _tell(error, REFUSED)
    except StyleServeError as error:
        return _tell(error, FAILED)
    except BrokenPipeError:
        return FAILED
    except KeyboardInterrupt:
        _write(sys.stderr, ["client.py: interrupted, nothing was done"])
        return INTERRUPTED


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "client.py",
        usage="client.py IN ... OUT --style NAME [options], or client.py --list",
        description="Style photos, folders and videos through a running server.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    paths = "files, folders, patterns or - (standard input), then a folder, a file or - for results"
    add("paths", nargs="*", metavar="IN ... OUT", help=paths)
    add("--style", metavar="NAME", help=f"the style; {ALL} makes <photo>-<style> of each")
    add("--list", action="store_true", help="show the styles and end")
    add("--strength", type=_strength, default=1.0, metavar="0..1", help="how much style; default 1")
    add("--keep-color", action="store_true", help="keep the colours of the original")
    add("--max-side", type=_count, metavar="N", help="work at this longer side: faster, coarser")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="replace results that exist")
    existing.add_argument("--skip", action="store_true", help="leave results that exist")
    add("--in-flight", type=_count, default=4, metavar="N", help="requests at once; default 4")
    add("--json", action="store_true", help="tell results and failures as one JSON document")
    add("--url", help="address of the server; default STYLESERVE_URL or http://localhost:8000")
    arguments = parser.parse_intermixed_args(list(argv))
    if not arguments.list and (len(arguments.paths) < 2 or arguments.style is None):
        parser.error("IN ..., OUT and --style NAME are needed; --list shows the styles")
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    # Imported late, so that --help and wrong usage answer at once.
    from styleserve.batch import Batch
    from styleserve.remote import Options
    from styleserve.report import Report

    remote = _remote(arguments.url)
    if arguments.list:
        return _list(_served(remote), arguments.json)
    *inputs, out = arguments.paths
    if arguments.json and out == STDIO:
        raise ConfigError("--json and a picture cannot both go to standard output; name a file")
    found = find(inputs, out)
    styles = _choose(arguments.style, [style.name for style in _served(remote)], remote.url)
    jobs = plan(found, out, styles, arguments.style == ALL)
    jobs, skipped = settle(jobs, arguments.overwrite, arguments.skip)
    for job in jobs[:1]:
        prepare(job.target)
    options = Options(arguments.strength, arguments.keep_color, arguments.max_side)
    stdin = _stdin() if any(job.source is None for job in jobs) else b""
    report = Report(len(jobs), skipped=[job.describe() for job in skipped])
    Batch(remote, options, arguments.in_flight, stdin).run(jobs, report)
    if arguments.json:
        _write_json(report.as_dict())
    elif out != STDIO or report.failures:
        _write(sys.stderr, report.lines())
    if report.interrupted:
        return INTERRUPTED
    return FAILED if report.failures else OK


def _remote(url: str | None) -> "Remote":
    from pydantic import ValidationError

    from styleserve.remote import Remote
    from styleserve.settings import PREFIX, ClientSettings

    given: dict[str, Any] = {"url": url} if url else {}
    try:
        settings = ClientSettings(**given)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = f"{PREFIX}{wrong['loc'][0]}".upper()
        raise ConfigError(f"{name} is {wrong['input']!r}: {wrong['msg']}; set it anew") from error
    return Remote(settings.url, settings.client_timeout)


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
    if sys.stdin.isatty():
        raise ConfigError("- reads a photo from standard input, which is a terminal; pipe one in")
    return sys.stdin.buffer.read()


def _write_json(document: dict[str, object]) -> None:
    _write(sys.stdout, [json.dumps(document, indent=2)])


def _write(stream: TextIO, lines: Sequence[str]) -> None:
    stream.write("".join(f"{line}\n" for line in lines))


def _tell(error: StyleServeError, code: int) -> int:
    _write(sys.stderr, [f"client.py: {problem}" for problem in error.problems])
    return code


def _strength(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 (original) to 1 (style), got {text!r}")
    return value


def _count(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= _MOST):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {_MOST}, got {text!r}")
    return int(text)
