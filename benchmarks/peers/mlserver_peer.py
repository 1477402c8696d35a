"""MLServer: `python -m benchmarks.peers.mlserver_peer MODELS HTTP_PORT GRPC_PORT METRICS_PORT`."""

import asyncio
import sys
import tempfile
from pathlib import Path

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

from benchmarks.peers.stylise import Stylise


class Style(MLModel):  # type: ignore[misc]
    """One style: UINT8 as numbers in JSON, or BYTES with the size in the request's parameters."""

    async def load(self) -> bool:
        """Load and warm up the model in the worker."""
        self._style = Stylise(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer in the form of the request."""
        (given,) = payload.inputs
        if given.datatype == "BYTES":
            # Of UINT8 MLServer makes a list of Python's numbers, by gRPC too: 50 ms at 640x480.
            size = payload.parameters.height, payload.parameters.width, 3
            image = np.frombuffer(given.data.root[0], np.uint8).reshape(size)
            styled = self._style(image).tobytes()
            output = ResponseOutput(name="styled", shape=[1], datatype="BYTES", data=[styled])
        else:
            output = NumpyCodec.encode_output("styled", self._style(NumpyCodec.decode_input(given)))
        return InferenceResponse(model_name=self.name, outputs=[output])


def settings_of(path: Path) -> ModelSettings:
    """Name one file as a model."""
    parameters = ModelParameters(uri=str(path))
    return ModelSettings(name=path.stem, implementation=Style, parameters=parameters)


async def serve(models: Path, ports: list[int], folder: str) -> None:
    """Serve the styles of a folder, in one worker (the default), as ONNX Runtime uses all cores."""
    http, grpc, metrics = ports
    settings = Settings(
        host="127.0.0.1",
        http_port=http,
        grpc_port=grpc,
        metrics_port=metrics,
        metrics_dir=folder,
        grpc_max_message_length=1 << 30,
        gzip_enabled=False,  # it would compress each answer for clients that accept it
    )
    await MLServer(settings).start([settings_of(path) for path in sorted(models.glob("*.onnx"))])


if __name__ == "__main__":
    # Workers import this file by its name; as __main__ they would not find the class.
    from benchmarks.peers import mlserver_peer

    with tempfile.TemporaryDirectory() as made:
        asyncio.run(mlserver_peer.serve(Path(sys.argv[1]), list(map(int, sys.argv[2:])), made))
