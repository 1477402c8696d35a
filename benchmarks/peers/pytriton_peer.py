"""PyTriton as its quick start has it: `python -m benchmarks.peers.pytriton_peer MODELS PORTS...`.

The ports are those for HTTP, gRPC and metrics.
"""

import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.peers.stylise import Stylise, load
from styleserve.image import Image

PICTURE = (-1, -1, 3)


def infer(style: Stylise) -> Callable[..., list[Image]]:
    """Make the function that PyTriton calls."""

    @batch  # type: ignore[untyped-decorator]
    def infer_func(image: Image) -> list[Image]:
        return [np.stack([style(each) for each in image])]

    return infer_func  # type: ignore[no-any-return]


if __name__ == "__main__":
    http, grpc, metrics = map(int, sys.argv[2:])
    # As PyTriton's manual has it: its workers would find the system's Python of another version.
    os.environ["LD_LIBRARY_PATH"] = str(sysconfig.get_config_var("LIBDIR"))
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=http,
        grpc_address="127.0.0.1",
        grpc_port=grpc,
        metrics_port=metrics,
    )
    with Triton(config=config) as triton:
        for name, style in load(Path(sys.argv[1])).items():
            triton.bind(
                model_name=name,
                infer_func=infer(style),
                inputs=[Tensor(name="image", dtype=np.uint8, shape=PICTURE)],
                outputs=[Tensor(name="styled", dtype=np.uint8, shape=PICTURE)],
                config=ModelConfig(max_batch_size=8),
            )
        triton.serve()
