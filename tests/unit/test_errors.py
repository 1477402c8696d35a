"""The error tree: problems in one line each."""

import pytest

from styleserve import errors


def test_each_problem_is_one_line() -> None:
    error = errors.ConfigError("one\n  two\tthree ", "four")

    assert error.problems == ("one two three", "four")
    assert str(error) == "one two three; four"


@pytest.mark.parametrize("name", ["ConfigError", "ModelError", "RequestError", "InferenceError"])
def test_every_error_can_be_caught_by_its_base_and_alone(name: str) -> None:
    kind = getattr(errors, name)
    others = {errors.ConfigError, errors.ModelError, errors.RequestError, errors.InferenceError}

    assert issubclass(kind, errors.StyleServeError)
    assert not any(issubclass(kind, other) for other in others - {kind})
    assert name in str(errors.__doc__)
