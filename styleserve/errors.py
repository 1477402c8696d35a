"""What can go wrong, sorted by who must act on it.

StyleServeError
├── ConfigError     the operator: a setting, machine, or pipeline   no start, exit code 2
├── ModelError      the operator: a model file                      no start, exit code 2
├── RequestError    the caller: a picture or an option              HTTP 400
├── InferenceError  us                                              HTTP 500, traceback in the log
└── RemoteError     the server called, or the way to it             what a client sees
"""

import os

# All that callers learn of a fault of ours; `styleserve.worker`, which imports nothing, repeats it.
HIDDEN = "the server failed inside; its log has the details"


class StyleServeError(Exception):
    """Base of all errors of this package: one or more problems, each told in one line."""

    def __init__(self, *problems: str) -> None:
        """Tell `problems`; line breaks in them become spaces."""
        self.problems = tuple(" ".join(problem.split()) for problem in problems)
        super().__init__("; ".join(self.problems))

    @property
    def sentence(self) -> str:
        """The problems as one sentence for people."""
        text = str(self)
        return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


class ConfigError(StyleServeError):
    """A setting, the machine or a declared pipeline does not allow to start."""


class ModelError(StyleServeError):
    """A model file cannot be converted or served."""


class RequestError(StyleServeError):
    """A request cannot be answered as it is; the message says what to send instead."""


class InferenceError(StyleServeError):
    """A valid request failed inside the server."""


class RemoteError(StyleServeError):
    """A server cannot be reached, is too slow, too busy or fails inside."""


def unreadable(error: OSError) -> str:
    """Tell what cannot be read, and what to do about it."""
    is_forbidden = isinstance(error, PermissionError)
    who = f"let user {os.getuid()} read it (chmod -R a+rX)"  # in a container, another one than you
    return f"{error.filename} cannot be read: {error.strerror}; " + (
        who if is_forbidden else "check the path"
    )
