"""Style pictures through a running server: file by file with arguments."""

import sys
from collections.abc import Sequence

from styleserve import cli


def main(argv: Sequence[str]) -> int:
    """Run the command line; return its exit code."""
    return cli.main(argv or ["--help"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
