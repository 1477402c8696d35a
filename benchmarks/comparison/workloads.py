"""What is asked of all sides, and the models made for it of one raw file."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import yaml

from styleserve import graph
from styleserve.convert import convert
from styleserve.errors import ModelError
from styleserve.image import Image
from styleserve.probe import picture
from styleserve.quantize import quantize

ROOT = Path(__file__).parents[2]
FIXED_SIDE = 224
PICTURES = 8


@dataclass(frozen=True)
class Workload:
    """Pictures of one size, to one or more styles, in one form."""

    name: str
    title: str
    height: int = 480
    width: int = 640
    fixed: bool = False
    styles: int = 1
    numbers: bool = False
    repeated: bool = False
    alone: bool = False  # each side is started for its turn: together they would need too much
    environment: Mapping[str, str] = field(default_factory=dict)  # for our server

    def pictures(self) -> list[tuple[str, Image]]:
        """Return what is asked in turn: styles and pictures, which differ in a few pixels."""
        first = picture(self.height, self.width)
        asked = []
        for number in range(1 if self.repeated else PICTURES):
            image = first.copy()
            image[:4, :4] = 16 * number
            asked.append((f"style{number % self.styles}", image))
        return asked


WORKLOADS = (
    Workload("fixed", "640x480, model fixed at 224x224", fixed=True),
    Workload("native", "640x480"),
    Workload(
        "1080p",
        "1920x1080",
        height=1080,
        width=1920,
        alone=True,
        environment={"STYLESERVE_MAX_SIDE": "0"},
    ),
    Workload("mixed", "640x480, five styles in turn", styles=5),
    Workload("json", "640x480, numbers in JSON", numbers=True),
    Workload(
        "repeated",
        "640x480, the same picture again",
        repeated=True,
        environment={"STYLESERVE_CACHE_MB": "256"},
    ),
)


def prepare(raw: Path, workload: Workload, folder: Path) -> tuple[Path, Path]:
    """Write the models of a workload; return the folder for the peers and that for our server.

    Peers get the file of the author, opened to any size unless the workload is fixed; our server
    gets what our conversion makes of it, closed again where the workload is fixed, and beside it
    the same with layers in 8 bits, where it bears them.
    """
    peers, ours = folder / "peers", folder / "ours"
    peers.mkdir(parents=True)
    opset = int(yaml.safe_load((ROOT / "params.yaml").read_text())["opset"])
    convert(raw, folder / "converted.onnx", opset)
    # Parsing drops weights from the inputs, of which ONNX Runtime warns that they cost time.
    models = {
        peers: graph.parse(raw.read_bytes(), str(raw)),
        ours: onnx.load(folder / "converted.onnx"),
    }
    shape = (1, 3, FIXED_SIDE, FIXED_SIDE)
    for home, model in models.items():
        home.mkdir(exist_ok=True)
        if home == peers or workload.fixed:
            model = graph.with_shape(model, shape, () if workload.fixed else (2, 3))
        del model.graph.value_info[:]  # they hold the old size
        for number in range(workload.styles):
            onnx.save(model, home / f"style{number}.onnx")
    with suppress(ModelError):
        made, _ = quantize(ours / "style0.onnx")
        for number in range(1, workload.styles):
            shutil.copy(made, made.with_stem(f"style{number}"))
    return peers, ours
