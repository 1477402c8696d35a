"""A model in half precision (fp16) for CUDA, which computes in what a file says."""

from pathlib import Path

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16


def halved(model: Path) -> bytes:
    """Return the file with its layers in fp16; what goes in and comes out stays float32.

    Layers that ONNX Runtime does not have in fp16 stay as they are, between casts.
    """
    made = convert_float_to_float16(onnx.load(model), keep_io_types=True)
    return bytes(made.SerializeToString())
