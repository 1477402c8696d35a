"""The arguments of the command line: what --help tells, and the ranges of numbers."""

import argparse
import re
from collections.abc import Callable, Sequence

from styleserve.files import STDIO

ALL = "all"
_EXAMPLES = """\
examples:
  client.py --list                              the styles
  client.py photo.jpg styled.jpg --style dots   one photo
  client.py holidays/ 'cats/*.png' out/ --style dots --strength 0.7
  client.py clip.mp4 out/ --style swirl --max-side 480
  client.py - - --style dots < photo.jpg > styled.jpg

Without arguments client.py serves the web page. Exit code: 0 all done, 1 something failed,
2 wrong usage, 130 interrupted (run it again with --skip)."""
_PATHS = "files, folders, patterns or - (standard input), then a folder, a file or - for results"


_SHORT = re.compile(r"-[^-.\d]")  # what begins so is no number; of such options, -h is the only one


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the arguments; ends the program with exit code 2, and one sentence, if they are wrong.

    Without `list`, `style` is set and `paths` holds one input at least, then OUT.
    """
    parser = _parser()
    words = _without_separator(argv)
    _refuse(parser, [word for word in words if _SHORT.match(word) and word != "-h"])
    arguments, unknown = parser.parse_known_intermixed_args(words)
    _refuse(parser, unknown)
    if not arguments.list and (len(arguments.paths) < 2 or arguments.style is None):
        parser.error("IN ..., OUT and --style NAME are needed; --list shows the styles")
    if "" in arguments.paths:
        parser.error("a path is empty, which would mean the current folder; name it as .")
    if arguments.json and arguments.paths[-1:] == [STDIO]:
        parser.error("--json and a picture cannot both go to standard output; name a file as OUT")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "client.py",
        usage="client.py IN ... OUT --style NAME [options], or client.py --list",
        description="Style photos, folders and videos through a running server.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="IN ... OUT", help=_PATHS)
    add("--style", metavar="NAME", help=f"the style; {ALL} makes <photo>-<style> of each")
    add("--list", action="store_true", help="show the styles and end")
    add("--strength", type=_strength, default=1.0, metavar="0..1", help="how much style; default 1")
    add("--keep-color", action="store_true", help="keep the colours of the original")
    add("--max-side", type=_up_to(65_536), metavar="N", help="work at this size: faster, coarser")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="replace results that exist")
    existing.add_argument("--skip", action="store_true", help="leave results that exist")
    add("--in-flight", type=_up_to(64), default=4, metavar="N", help="requests at once; default 4")
    add("--json", action="store_true", help="tell results and failures as one JSON document")
    add("--url", help="address of the server; default STYLESERVE_URL or http://localhost:8000")
    return parser


def _without_separator(argv: Sequence[str]) -> list[str]:
    """Take `--` away, which argparse fails at between options; what follows are paths."""
    at = [*argv, "--"].index("--")
    paths = argv[at + 1 :]
    return [*argv[:at], *(f"./{path}" if path[:1] == "-" != path else path for path in paths)]


def _refuse(parser: argparse.ArgumentParser, options: Sequence[str]) -> None:
    for option in options:
        parser.error(f"there is no option {option}, see --help; a file of this name is ./{option}")


def _strength(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 (original) to 1 (style), got {text!r}")
    return value


def _up_to(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isdecimal() and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"must be from 1 to {most}, got {text!r}")
        return int(text)

    return number
