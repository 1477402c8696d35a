"""What goes over the wire to each kind of server: pictures as requests, answers as pictures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from tritonclient.grpc import service_pb2

from styleserve.image import Image

BYTES, JSON = "application/octet-stream", "application/json"
V2_HEAD = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Request:
    """A request, ready to be sent."""

    body: bytes
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """An answer as it came."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Wire(Protocol):
    """A way to send pictures."""

    @property
    def is_grpc(self) -> bool:
        """Tell whether it is no HTTP."""

    def ask(self, style: str, image: Image) -> Request:
        """Make a request."""

    def read(self, answer: Answer, shape: tuple[int, ...]) -> Image:
        """Take the picture of this shape out of an answer."""


@dataclass(frozen=True)
class Raw:
    """Bytes of pixels, the size in headers."""

    path: str
    is_grpc: bool = False

    def ask(self, style: str, image: Image) -> Request:
        """Make a request."""
        height, width = map(str, image.shape[:2])
        headers = {"Content-Type": BYTES, "style": style, "height": height, "width": width}
        return Request(image.tobytes(), self.path.format(style=style), headers)

    def read(self, answer: Answer, shape: tuple[int, ...]) -> Image:
        """Take the picture out of an answer."""
        return np.frombuffer(answer.body, np.uint8).reshape(shape)


@dataclass(frozen=True)
class Numbers:
    """JSON: rows of pixels of three numbers."""

    path: str
    is_grpc: bool = False

    def ask(self, style: str, image: Image) -> Request:
        """Make a request."""
        text = json.dumps({"image": image.tolist(), "style": style}, separators=(",", ":"))
        headers = {"Content-Type": JSON, "style": style}
        return Request(text.encode(), self.path.format(style=style), headers)

    def read(self, answer: Answer, shape: tuple[int, ...]) -> Image:
        """Take the picture out of an answer."""
        told = json.loads(answer.body)
        return np.array(told["image"] if isinstance(told, dict) else told, np.uint8)


@dataclass(frozen=True)
class V2:
    """The V2 protocol over HTTP: a UINT8 tensor in binary, or as numbers in JSON."""

    output: str
    binary: bool
    batched: bool = False
    is_grpc: bool = False

    def ask(self, style: str, image: Image) -> Request:
        """Make a request."""
        path = f"/v2/models/{style}/infer"
        shape = [1, *image.shape] if self.batched else list(image.shape)
        tensor = {"name": "image", "shape": shape, "datatype": "UINT8"}
        answer = {"name": self.output, "parameters": {"binary_data": self.binary}}
        if not self.binary:
            inputs = [tensor | {"data": image.reshape(-1).tolist()}]
            asked = {"inputs": inputs, "outputs": [{"name": self.output}]}
            text = json.dumps(asked, separators=(",", ":")).encode()
            return Request(text, path, {"Content-Type": JSON})
        size = {"parameters": {"binary_data_size": image.nbytes}}
        head = json.dumps({"inputs": [tensor | size], "outputs": [answer]}).encode()
        return Request(head + image.tobytes(), path, {V2_HEAD: str(len(head))})

    def read(self, answer: Answer, shape: tuple[int, ...]) -> Image:
        """Take the picture out of an answer."""
        if self.binary:
            pixels = np.frombuffer(answer.body, np.uint8, offset=int(answer.headers[V2_HEAD]))
            return pixels.reshape(shape)
        return np.array(json.loads(answer.body)["outputs"][0]["data"], np.uint8).reshape(shape)


@dataclass(frozen=True)
class GrpcBytes:
    """The V2 protocol over gRPC: one BYTES value, the size in parameters."""

    is_grpc: bool = True

    def ask(self, style: str, image: Image) -> Request:
        """Make a request."""
        call = service_pb2.ModelInferRequest(model_name=style)
        for name, value in zip(("height", "width"), image.shape, strict=False):
            call.parameters[name].int64_param = value
        given = call.inputs.add(name="image", datatype="BYTES", shape=[1])
        given.contents.bytes_contents.append(image.tobytes())
        return Request(call.SerializeToString())

    def read(self, answer: Answer, shape: tuple[int, ...]) -> Image:
        """Take the picture out of an answer."""
        told = service_pb2.ModelInferResponse.FromString(answer.body)
        return np.frombuffer(told.outputs[0].contents.bytes_contents[0], np.uint8).reshape(shape)
