"""Ctrl-C and SIGTERM in a program that makes files: one line, and what it began is removed."""

import functools
import signal
import sys
from collections.abc import Callable
from typing import ParamSpec

INTERRUPTED = 128 + signal.SIGINT
Given = ParamSpec("Given")


def interruptible(main: Callable[Given, int]) -> Callable[Given, int]:
    """Let a program end with code 130 and one line on stderr, by SIGTERM just as by Ctrl-C."""

    @functools.wraps(main)
    def run(*args: Given.args, **options: Given.kwargs) -> int:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            return main(*args, **options)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            return INTERRUPTED

    return run
