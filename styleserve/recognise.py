"""Say what a file that is no ONNX model is, and what to do about it. Looks at bytes only."""

from pathlib import Path

from styleserve.errors import ModelError, unreadable

_AGAIN = "download the file itself again"
_EXPORT = "put the model's ONNX export here"

# (where, what stands there, what the file then is, what to do)
_SIGNATURES = (
    (0, b"version https://git-lfs", "a Git-LFS pointer", "run `git lfs pull` or " + _AGAIN),
    (0, b"\xff\xd8\xff", "a JPEG picture", _EXPORT),
    (0, b"\x89PNG", "a PNG picture", _EXPORT),
    (4, b"TFL3", "a TensorFlow Lite model", _EXPORT),
    (0, b"\x89HDF", "an HDF5 file (Keras weights?)", _EXPORT),
    (0, b"PK\x03\x04", "a zip archive (PyTorch checkpoints are zips too)", _EXPORT),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it and put the .onnx file here"),
    (0, b"\x80\x02", "a Python pickle (an old PyTorch checkpoint?)", _EXPORT),
)


def read_model_bytes(path: Path) -> bytes:
    """Read a file that may be an ONNX model.

    Raises ModelError where it cannot be read or plainly is something else; what passes can
    still be cut short or broken.
    """
    data = read_bytes(path)
    for offset, mark, what, remedy in (*_text_signatures(data), *_SIGNATURES):
        if data[offset:].startswith(mark):
            raise ModelError(f"{path} is {what}, not an ONNX model: {remedy}")
    return data


def read_bytes(path: Path) -> bytes:
    """Read a file whole. Raises ModelError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as err:
        raise ModelError(unreadable(err)) from err


def _text_signatures(data: bytes) -> list[tuple[int, bytes, str, str]]:
    """What empty files and texts are: they have no fixed first bytes."""
    head = data[:512].lstrip().lower()
    if not head:
        return [(0, b"", "an empty file", _AGAIN)]
    if head.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return [(0, b"", "a web page (a login or an error page?)", _AGAIN)]
    if head.startswith(b"version https://git-lfs") or not head.isascii() or b"\0" in head:
        return []
    if all(byte >= 32 or byte in b"\t\r\n" for byte in head):
        return [(0, b"", "a text file", _EXPORT)]
    return []
