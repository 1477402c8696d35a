"""LitServe: `python -m benchmarks.peers.litserve_peer MODELS PORT`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import litserve
import numpy as np
import orjson
from fastapi import Depends, Request, Response

from benchmarks.peers.stylise import load
from styleserve.image import Image


@dataclass(frozen=True)
class Call:
    """What goes to the worker: the body as it came, for pickling numbers costs more than bytes."""

    style: str
    shape: tuple[int, int, int] | None  # None for JSON
    body: bytes


async def read(request: Request) -> Call:
    """Read a request; LitServe would take any body for JSON."""
    about, style = request.headers, request.headers["style"]
    if about["content-type"] == "application/json":
        return Call(style, None, await request.body())
    return Call(style, (int(about["height"]), int(about["width"]), 3), await request.body())


class Styles(litserve.LitAPI):  # type: ignore[misc]
    """All styles in one worker, as LitServe has it for several models."""

    def __init__(self, models: Path) -> None:
        super().__init__()
        self._models = models

    def setup(self, device: str) -> None:
        """Load and warm up the models in the worker."""
        self._styles = load(self._models)

    def decode_request(self, request: Annotated[Call, Depends(read)]) -> tuple[str, Image, bool]:
        """Make an array of the body."""
        if request.shape is None:
            return request.style, np.array(orjson.loads(request.body)["image"], np.uint8), True
        image = np.frombuffer(request.body, np.uint8).reshape(request.shape)
        return request.style, image, False

    def predict(self, call: tuple[str, Image, bool]) -> tuple[Image, bool]:
        """Run the model."""
        style, image, is_json = call
        return self._styles[style](image), is_json

    def encode_response(self, output: tuple[Image, bool]) -> Response:
        """Answer in the form of the request."""
        styled, is_json = output
        if is_json:
            text = orjson.dumps({"image": styled}, option=orjson.OPT_SERIALIZE_NUMPY)
            return Response(text, media_type="application/json")
        return Response(styled.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    # The queue over ZeroMQ is LitServe's faster one. One worker, as ONNX Runtime uses all cores.
    server = litserve.LitServer(
        Styles(Path(sys.argv[1])), accelerator="cpu", fast_queue=True, timeout=300
    )
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)
