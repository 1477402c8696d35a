"""What an operation takes and gives, image or mask, as its signature says."""

import inspect
from collections.abc import Sequence
from inspect import Parameter
from typing import Any, Literal

from styleserve.image import Either, Image, Mask
from styleserve.operations import OPERATIONS

Kind = Literal["image", "mask"]
_KINDS: dict[Any, Kind] = {Image: "image", Mask: "mask"}


def options_of(operation: str) -> list[Parameter]:
    """Return the options of an operation: what stands after the star."""
    parameters = inspect.signature(OPERATIONS[operation]).parameters.values()
    return [one for one in parameters if one.kind is Parameter.KEYWORD_ONLY]


def inputs_of(operation: str) -> str:
    """Say which inputs an operation takes."""
    return ", ".join(map(_input_name, _inputs(operation)))


def takes(operation: str, count: int) -> bool:
    """Tell whether an operation can have `count` inputs."""
    inputs = _inputs(operation)
    needed = [one for one in inputs if one.default is Parameter.empty]
    endless = any(one.kind is Parameter.VAR_POSITIONAL for one in inputs)
    return len(needed) <= count and (endless or count <= len(inputs))


def result(operation: str, given: Sequence[Kind | None]) -> tuple[Kind | None, dict[int, Kind]]:
    """Return what an operation gives, and {position: what it should be} of inputs that are wrong.

    `given` are as many inputs as it `takes`; None is a kind that is not known.
    """
    inputs = _inputs(operation)
    either: Kind | None = None  # all inputs that are Either are of one kind
    wrong: dict[int, Kind] = {}
    for position, kind in enumerate(given):
        annotation = inputs[min(position, len(inputs) - 1)].annotation
        if annotation is Either:
            either = either or kind
        wanted = either if annotation is Either else _KINDS.get(annotation)
        if kind and wanted and kind != wanted:
            wrong[position] = wanted
    annotation = inspect.signature(OPERATIONS[operation]).return_annotation
    return (either if annotation is Either else _KINDS[annotation]), wrong


def _inputs(operation: str) -> list[Parameter]:
    parameters = inspect.signature(OPERATIONS[operation]).parameters.values()
    return [one for one in parameters if one.kind is not Parameter.KEYWORD_ONLY]


def _input_name(one: Parameter) -> str:
    if one.kind is Parameter.VAR_POSITIONAL:
        return f"{one.name}..."
    return one.name if one.default is Parameter.empty else f"[{one.name}]"
