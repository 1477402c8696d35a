"""Requests and answers of the API as named arrays; knows no server."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from styleserve import codec
from styleserve import image as pictures
from styleserve.catalog import Catalog, Stylizer
from styleserve.errors import RequestError
from styleserve.image import Image

Tensors = Mapping[str, NDArray[Any]]
Answer = dict[str, NDArray[Any]]
Endpoint = Callable[[Tensors, list[str]], Answer]


@dataclass(frozen=True)
class Limits:
    """What a picture may be: see the settings of the same names."""

    max_side: int
    max_pixels: int


class StyleEndpoint:
    """Answers requests for one style: an array or a file in, the same kind out."""

    def __init__(self, stylizer: Stylizer, limits: Limits) -> None:
        """Serve `stylizer` within `limits`."""
        self._stylizer = stylizer
        self._limits = limits

    def __call__(self, tensors: Tensors, outputs: list[str]) -> Answer:
        """Return `styled_image` for an `image`, or `styled_encoded` for an `encoded` one.

        Args:
            tensors: the request's inputs by name, as in the API contract.
            outputs: the outputs asked for; all of them when the caller named none.

        Raises:
            RequestError: if the caller has to change something.
            InferenceError: if the model fails.
        """
        options = Options.read(tensors, self._limits)
        given = [name for name in ("image", "encoded") if name in tensors]
        if len(given) != 1:
            raise RequestError(
                "send exactly one of the inputs image (UINT8 [height, width, 3]) and encoded "
                f"(BYTES [1], a picture file), got {' and '.join(given) or 'neither'}"
            )
        answer = f"styled_{given[0]}"
        if outputs and answer not in outputs:
            raise RequestError(f"the input {given[0]} is answered by {answer}, not by {outputs[0]}")
        if answer == "styled_image":
            image = pictures.check(tensors["image"], self._limits.max_pixels)
            return {answer: self._stylise(image, options)}
        picture = codec.decode(_one(tensors, "encoded"), self._limits.max_pixels)
        styled = codec.encode(picture, self._stylise(picture.pixels, options))
        return {answer: np.array([styled], dtype=np.object_)}

    def _stylise(self, image: Image, options: "Options") -> Image:
        if options.strength == 0:
            return image
        styled = self._stylizer(image, options.max_side)
        if options.keep_color:
            styled = pictures.keep_color(styled, image)
        return styled if options.strength == 1 else pictures.blend(image, styled, options.strength)


@dataclass(frozen=True)
class Options:
    """The optional inputs of a style."""

    strength: float = 1.0
    keep_color: bool = False
    max_side: int = 0

    @classmethod
    def read(cls, tensors: Tensors, limits: Limits) -> "Options":
        """Read the options of a request.

        Raises:
            RequestError: naming the option, its value and its range.
        """
        strength = float(_one(tensors, "strength", 1.0))
        if not 0 <= strength <= 1:
            raise RequestError(f"strength must be from 0 (original) to 1 (style), got {strength}")
        asked = int(_one(tensors, "max_side", limits.max_side))
        if "max_side" in tensors and asked < 1:
            raise RequestError(f"max_side must be at least 1 pixel, got {asked}")
        if limits.max_side and asked > limits.max_side:
            raise RequestError(
                f"max_side must be at most {limits.max_side} pixels on this server, got {asked}; "
                "the answer has the size of the original in any case"
            )
        return cls(strength, bool(_one(tensors, "keep_color", False)), asked)


class CatalogEndpoint:
    """Lists what is served, with the details a page or a script needs."""

    def __init__(self, catalog: Catalog) -> None:
        """List `catalog`."""
        self._details = {name: json.dumps(entry.describe()) for name, entry in catalog.items()}

    def __call__(self, tensors: Tensors, outputs: list[str]) -> Answer:
        """Return `names` and `details` (JSON texts), of all or of the one in the input `name`.

        Raises:
            RequestError: if `name` is not served.
        """
        names = sorted(self._details)
        if "name" in tensors:
            name = _one(tensors, "name").decode(errors="replace")
            if name not in self._details:
                raise RequestError(
                    f"{name[:100]!r} is not served here, these are: {', '.join(names)}"
                )
            names = [name]
        details = [self._details[name].encode() for name in names]
        return {
            "names": np.array([name.encode() for name in names], dtype=np.object_),
            "details": np.array(details, dtype=np.object_),
        }


def _one(tensors: Tensors, name: str, default: Any = None) -> Any:  # noqa: ANN401  any scalar type
    if name not in tensors:
        return default
    values = tensors[name].reshape(-1)
    if values.size != 1:
        raise RequestError(
            f"{name} must hold one value, shape [1], got the shape {tensors[name].shape}"
        )
    return values[0]
