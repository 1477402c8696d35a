"""BentoML: `python -m benchmarks.peers.bentoml_peer MODELS PORT`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import anyio
import bentoml
import numpy as np
from bentoml.validators import DType
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.peers.stylise import load

MODELS = "STYLES_FOLDER"
AT_ONCE = os.cpu_count() or 1  # more would take memory, not less time
LIMITER = anyio.CapacityLimiter(AT_ONCE)
Picture = Annotated[NDArray[np.uint8], DType("uint8")]


async def stylise_bytes(request: Request) -> Response:
    """Answer raw bytes with raw bytes."""
    shape = int(request.headers["height"]), int(request.headers["width"]), 3
    image = np.frombuffer(await request.body(), np.uint8).reshape(shape)
    service: Styles = bentoml.get_current_service()
    style = service.styles[request.path_params["style"]]
    styled = await anyio.to_thread.run_sync(style, image, limiter=LIMITER)
    return Response(styled.tobytes(), media_type="application/octet-stream")


# BentoML's own ways for binary are a temporary file in a form, and pickles among its servers only;
# what it has for all else is mounting an ASGI application.
binary = Starlette(routes=[Route("/{style}", stylise_bytes, methods=["POST"])])


@bentoml.service(traffic={"timeout": 300}, threads=AT_ONCE)
@bentoml.asgi_app(binary, path="/bytes")
class Styles:
    """All styles of a folder; one process, as ONNX Runtime uses all cores."""

    def __init__(self) -> None:
        self.styles = load(Path(os.environ[MODELS]))

    @bentoml.api  # type: ignore[untyped-decorator]
    def stylise(self, image: Picture, style: str) -> Picture:
        """Answer JSON with JSON."""
        return self.styles[style](image)


if __name__ == "__main__":
    os.environ[MODELS] = sys.argv[1]
    serve = ["serve", "benchmarks.peers.bentoml_peer:Styles", "--host", "127.0.0.1"]
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", *serve, "--port", sys.argv[2]])
