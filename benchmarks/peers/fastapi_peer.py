"""FastAPI and uvicorn: `python -m benchmarks.peers.fastapi_peer MODELS PORT`."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import uvicorn
from anyio import to_thread
from fastapi import Body, FastAPI, Header, Request, Response
from fastapi.concurrency import run_in_threadpool

from benchmarks.peers.stylise import load
from styleserve.image import Image


@asynccontextmanager
async def limited(_: FastAPI) -> AsyncIterator[None]:
    """Run as many models at once as there are cores: more would take memory, not less time."""
    to_thread.current_default_thread_limiter().total_tokens = os.cpu_count() or 1
    yield


def make(models: Path) -> FastAPI:
    """Serve the styles of a folder."""
    styles = load(models)
    app = FastAPI(lifespan=limited)

    # A plain def: FastAPI reads the body in the event loop, and runs this in its thread pool.
    @app.post("/{style}")
    def stylise(
        style: str,
        body: Annotated[bytes, Body(media_type="application/octet-stream")],
        height: Annotated[int, Header()],
        width: Annotated[int, Header()],
    ) -> Response:
        styled = styles[style](np.frombuffer(body, np.uint8).reshape(height, width, 3))
        return Response(styled.tobytes(), media_type="application/octet-stream")

    # Not a Pydantic model of lists, which takes three times as long for a picture.
    @app.post("/{style}/json")
    async def stylise_json(style: str, request: Request) -> Response:
        body = await request.body()
        text = await run_in_threadpool(by_numbers, styles[style], body)
        return Response(text, media_type="application/json")

    return app


def by_numbers(style: Callable[[Image], Image], body: bytes) -> bytes:
    """Answer JSON with JSON."""
    image = np.array(orjson.loads(body)["image"], np.uint8)
    return orjson.dumps({"image": style(image)}, option=orjson.OPT_SERIALIZE_NUMPY)


if __name__ == "__main__":
    # One process, as ONNX Runtime uses all cores; uvloop and httptools are found by themselves.
    uvicorn.run(make(Path(sys.argv[1])), port=int(sys.argv[2]), access_log=False)
