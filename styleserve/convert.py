"""Turn a raw ONNX model into a served one: `python -m styleserve.convert SRC DST --opset N`.

    file -> recognised -> one picture in, one out -> opset N -> any size, where proved
         -> compared with its source -> slow layers rewritten, where proved -> written whole

A step that does not hold raises ModelError, and then nothing is written.
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import ModelProto

from styleserve import graph, metadata
from styleserve.errors import ModelError
from styleserve.interrupt import interruptible
from styleserve.recognise import read_model_bytes
from styleserve.trial import Reference, faster, load, proof_sizes, proved_multiple

_OLDEST_OPSET = 7  # the oldest that ONNX Runtime promises to run
_TOLERANCE = 1.0  # levels of 255 between source and result


@dataclass(frozen=True)
class Report:
    """What a conversion did; `multiple` is None where the size had to stay as it was."""

    opsets: tuple[int, int]
    size: tuple[int, int]
    multiple: int | None
    difference: float  # the largest, in levels of 255
    rewritten: str = ""  # kinds of layers, as `styleserve.rewrite` calls them

    def __str__(self) -> str:
        """Tell it in one line."""
        before, after = self.opsets
        size = f"fixed {self.size[0]}x{self.size[1]}"
        if self.multiple:
            size = f"dynamic (multiple of {self.multiple})"
        rewritten = f", rewritten: {self.rewritten}" if self.rewritten else ""
        difference = f"max difference {self.difference:.4f} of 255"
        return f"opset {before} -> {after}, {size}, {difference}{rewritten}"


def newest_opset() -> int:
    """Return the newest opset that the installed onnx writes and ONNX Runtime loads."""
    opset = int(onnx.defs.onnx_opset_version())
    while opset > _OLDEST_OPSET:
        try:
            load(graph.identity(opset), f"opset {opset}")
        except ModelError:
            opset -= 1
        else:
            break
    return opset


def convert(source: Path, target: Path, opset: int, description: str = "", md5: str = "") -> Report:
    """Write the model `source` as `target`, at `opset` and open to any size if it can be.

    Both map float32 1 x 3 x H x W, 0..255, to 1 x 3 x H x W, or to 1 x 1 x H x W for a mask.
    `target` is replaced in one step, also where it is a link. With `md5` only a source of that
    checksum is taken. Raises ModelError.
    """
    name = str(source)
    _check_opset(opset)
    if target.absolute() == source.absolute():
        raise ModelError(f"{name} would be overwritten: give the converted model another path")
    data = read_model_bytes(source)
    _check_md5(data, md5, name)
    raw = graph.parse(data, name)
    height, width = graph.picture_size(raw, name)
    reference = Reference(data, (height, width) if height and width else None, name)
    served, report = _serve(raw, opset, reference, name)
    labels = _labels(data, source.name, report, description)
    write(target, graph.label(served, labels, name))
    return report


def _check_opset(opset: int) -> None:
    newest = newest_opset()
    if not _OLDEST_OPSET <= opset <= newest:
        raise ModelError(
            f"opset {opset} is outside {_OLDEST_OPSET}..{newest}, which ONNX Runtime "
            f"{ort.__version__} loads: choose one of them in params.yaml or upgrade onnxruntime"
        )


def _check_md5(data: bytes, pinned: str, name: str) -> None:
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if pinned and found != pinned:
        raise ModelError(
            f"{name} has the md5 {found}, not the pinned {pinned}, so another file was downloaded: "
            "restore its .dvc file, delete the model and fetch it from where the pinned one is"
        )


def _serve(
    raw: ModelProto, opset: int, reference: Reference, name: str
) -> tuple[ModelProto, Report]:
    """Convert, and keep as many axes open as is proved: batch, height and width; or no batch."""
    converted = graph.to_opset(raw, opset, name)
    shape = (1, reference.channels, *reference.sizes[0])
    refusal = f"{name} gives no picture back in its size, at any multiple up to 64: export it again"
    for axes in ((0, 2, 3), (2, 3), ()) if reference.fixed else ((0, 2, 3), (2, 3)):
        served = graph.with_shape(converted, shape, axes)
        run = load(served.SerializeToString(), f"{name} at opset {opset}")
        multiple = proved_multiple(run, batch=0 in axes) if axes else None
        if axes and not multiple:
            continue
        largest, mean = reference.difference(run)
        if largest <= _TOLERANCE:
            sizes = proof_sizes(multiple) if multiple else reference.sizes
            served, rewritten = faster(served, run, sizes, name)
            opsets = (graph.opset_of(raw), opset)
            return served, Report(opsets, reference.sizes[0], multiple, largest, rewritten)
        refusal = (
            f"{name} gives another picture at opset {opset}: up to {largest:.2f} and on average "
            f"{mean:.2f} of 255 apart, {_TOLERANCE:g} is allowed{graph.suspect(raw)}"
        )
    raise ModelError(refusal)


def _labels(data: bytes, name: str, report: Report, description: str) -> dict[str, str]:
    """Say where the model comes from and what it is; nothing that changes from run to run."""
    return {
        metadata.SOURCE_SHA256: hashlib.sha256(data).hexdigest(),
        metadata.SOURCE_NAME: name,
        metadata.SIZE_MULTIPLE: str(report.multiple or ""),
        metadata.TOOLS: f"onnx {onnx.__version__}, onnxruntime {ort.__version__}",
        metadata.DESCRIPTION: description,
        metadata.OPSET: str(report.opsets[1]),
        metadata.REWRITTEN: report.rewritten,
    }


def write(target: Path, data: bytes) -> None:
    """Write a file whole, or raise ModelError."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as err:
        raise ModelError(f"{target} cannot be written ({err.strerror}): check the folder") from err


@interruptible
def main(argv: Sequence[str] | None = None) -> int:
    """Convert one model; exit code 2 and one line on stderr where it cannot be."""
    parser = argparse.ArgumentParser(prog="python -m styleserve.convert", description=main.__doc__)
    parser.add_argument("source", type=Path, metavar="SRC", help="the raw model")
    parser.add_argument("target", type=Path, metavar="DST", help="the served model to write")
    parser.add_argument("--opset", type=int, required=True, help="opset of the served model")
    parser.add_argument("--description", default="", help="one line that is shown to users")
    parser.add_argument("--md5", default="", help="refuse a raw model of another checksum")
    args = parser.parse_args(argv)
    try:
        report = convert(args.source, args.target, args.opset, args.description, args.md5)
    except ModelError as err:
        sys.stderr.write(f"error: {err}\n")
        return 2
    sys.stdout.write(f"{args.source} -> {args.target}: {report}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
