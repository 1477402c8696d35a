"""Layers in 8 bits, for CPUs with VNNI: `python -m styleserve.quantize MODEL` writes MODEL's .int8.

    file -> channels of similar range -> its last layers in 8 bits, as many as no eye can tell

Errors of early layers grow on their way to the picture, so it is the last ones. The server takes
the .int8 beside a model only where it, too, finds no difference: see `styleserve.fidelity`.
"""

import argparse
import bisect
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from onnx import ModelProto

from styleserve import graph, metadata
from styleserve.candidates import Candidates
from styleserve.convert import write
from styleserve.errors import ModelError
from styleserve.interrupt import interruptible
from styleserve.recognise import read_model_bytes

WANTED_DB = 48.5  # the server asks for 45; bf16 in the other layers, and other photos, take some
_FEWEST = 4  # one layer in so many, else nothing is gained
_DO_WITHOUT = "do without an .int8 (in params.yaml, leave the model out of int8)"
_OLDEST_OPSET = 13  # the first with a scale for each channel
# Else the tool advises to prepare the model, which our conversion has done.
_PREPARED = "onnx.quant.pre_process", "onnxruntime.quant"


@dataclass(frozen=True)
class Report:
    """How much of a model is in 8 bits, and how far its pictures are from fp32."""

    layers: int
    of: int
    decibels: float

    def __str__(self) -> str:
        """Tell it in one line."""
        return f"{self.layers} of {self.of} convolutions in 8 bits, {self.decibels:.1f} dB"


def quantize(source: Path) -> tuple[Path, Report]:
    """Write `source` with as many of its last convolutions in 8 bits as no eye can tell.

    Returns:
        The file, beside `source`, and what was done.

    Raises:
        ModelError: if the file cannot be read or written, or too few layers bear it.
    """
    name = str(source)
    data = read_model_bytes(source)
    model = graph.parse(data, name)
    if (opset := graph.opset_of(model)) < _OLDEST_OPSET:
        command = f"python -m styleserve.convert {name} CONVERTED.onnx --opset {_OLDEST_OPSET}"
        raise ModelError(f"{name} has opset {opset}, 8 bits need {_OLDEST_OPSET}: first {command}")
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    model.metadata_props.add(key=_PREPARED[0], value=_PREPARED[1])
    candidates = Candidates(model, name)
    nodes = candidates.nodes

    @functools.cache
    def tried(first: int) -> tuple[ModelProto, float]:
        made = candidates.in_8_bits(nodes[first:])
        return made, candidates.decibels(made)

    if not nodes:
        raise ModelError(f"{name} has no convolution that could be in 8 bits: {_DO_WITHOUT}")
    first = bisect.bisect(range(len(nodes)), False, key=lambda n: tried(n)[1] >= WANTED_DB)
    count = len(nodes) - first
    if count * _FEWEST < len(nodes):
        raise ModelError(
            f"{name} has {count} of {len(nodes)} convolutions for which 8 bits are enough, one in "
            f"{_FEWEST} is wanted: {_DO_WITHOUT}"
        )
    target = source.with_suffix(metadata.INT8_SUFFIX)
    made, decibels = tried(first)
    labels = {_PREPARED[0]: "", metadata.INT8_OF: sha256(data).hexdigest()}
    write(target, graph.label(made, labels, name))
    return target, Report(count, len(nodes), decibels)


@interruptible
def main(argv: Sequence[str] | None = None) -> int:
    """Write models with layers in 8 bits; exit code 2 and one line where one cannot be."""
    parser = argparse.ArgumentParser(prog="python -m styleserve.quantize", description=main.__doc__)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="a served model")
    arguments = parser.parse_args(argv)
    code = 0
    for source in arguments.models:
        try:
            target, report = quantize(source)
            sys.stdout.write(f"{source} -> {target}: {report}\n")
        except ModelError as error:
            sys.stderr.write(f"error: {error}\n")
            code = 2
    return code


if __name__ == "__main__":
    sys.exit(main())
