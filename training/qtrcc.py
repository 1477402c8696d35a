"""Read Qt binary resource files (`.rcc`), the form in which GCompris ships its pictures.

Layout, all big-endian: magic `qres`, version, the offsets of three sections: tree, data, names. A
tree node is 14 bytes, 22 from version 2 on: name offset, flags, then for a folder the count and
index of its children and for a file (territory, language and) the offset of its data. A name is
its length in UTF-16 units, a hash and the text; data is its length and the bytes, zlib-packed or
plain.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from training.errors import TrainingError

_COMPRESSED, _DIRECTORY, _ZSTANDARD = 1, 2, 4


def read_resources(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield `(name inside the file, content)` of every file in the resource file at `path`."""
    raw = path.read_bytes()
    if raw[:4] != b"qres":
        raise TrainingError(
            f"{path} is no Qt resource file: it starts with {raw[:4]!r}, not b'qres'."
        )
    version, tree, data, names = struct.unpack_from(">4I", raw, 4)
    node_size = 14 if version < 2 else 22
    pending = [(0, "")]
    while pending:
        index, parent = pending.pop()
        node = tree + node_size * index
        name_offset, flags = struct.unpack_from(">IH", raw, node)
        name = f"{parent}/{_name(raw, names + name_offset)}" if index else ""
        if flags & _DIRECTORY:
            count, first = struct.unpack_from(">II", raw, node + 6)
            pending += [(first + child, name) for child in range(count)]
        elif not flags & _ZSTANDARD:
            (data_offset,) = struct.unpack_from(">I", raw, node + 10)
            yield name.lstrip("/"), _content(raw, data + data_offset, bool(flags & _COMPRESSED))


def _name(raw: bytes, offset: int) -> str:
    (units,) = struct.unpack_from(">H", raw, offset)
    return raw[offset + 6 : offset + 6 + 2 * units].decode("utf-16-be")


def _content(raw: bytes, offset: int, compressed: bool) -> bytes:
    (size,) = struct.unpack_from(">I", raw, offset)
    content = raw[offset + 4 : offset + 4 + size]
    return zlib.decompress(content[4:]) if compressed else content
