"""The contact sheet of the README: every embedded style on every example photo.

It is painted from the ONNX files, not from checkpoints, and so shows what is in the repository.
"""

import io
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from PIL import Image, ImageDraw, ImageFont, ImageOps

from training.errors import TrainingError
from training.pictures import load_picture

_TILE_PX = 288
_GAP_PX = 6
_CAPTION_PX = 30
_QUALITY = 74


def make_sheet(models: Path, photos: Path, target: Path) -> None:
    """Write the photos of a folder, plain and in each style of folder `models`, to `target`."""
    paths = sorted(models.glob("*.onnx"))
    originals = [_tile(path) for path in sorted(photos.glob("*.jpg"))]
    if not paths or not originals:
        raise TrainingError(
            f"A contact sheet needs *.onnx in {models} (found {len(paths)}) and *.jpg in {photos} "
            f"(found {len(originals)}): run it in the root of the repository."
        )
    columns = [("photo", originals)]
    for path in paths:
        session = any_size_session(path)
        painted = [run_session(session, photo) for photo in originals]
        columns.append((path.stem.split("-")[0], painted))
    sheet = _arranged(columns)
    target.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(target, quality=_QUALITY, optimize=True)


def any_size_session(path: Path) -> onnxruntime.InferenceSession:
    """Load an exported style with the fixed 224x224 of its input and output lifted."""
    model = onnx.load(path)
    for value in (model.graph.input[0], model.graph.output[0]):
        for axis, name in ((2, "height"), (3, "width")):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    del model.graph.value_info[:]
    buffer = io.BytesIO()
    onnx.save(model, buffer)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of every weight listed among the inputs
    return onnxruntime.InferenceSession(
        buffer.getvalue(), options, providers=["CPUExecutionProvider"]
    )


def run_session(session: onnxruntime.InferenceSession, photo: Image.Image) -> Image.Image:
    """Stylize a photo whose sides are divisible by 4."""
    batch = np.asarray(photo, np.float32).transpose(2, 0, 1)[None]
    (result,) = session.run(None, {session.get_inputs()[0].name: batch})
    return Image.fromarray(result[0].transpose(1, 2, 0).clip(0, 255).round().astype(np.uint8))


def _tile(path: Path) -> Image.Image:
    return ImageOps.fit(load_picture(path), (_TILE_PX, _TILE_PX), Image.Resampling.LANCZOS)


def _arranged(columns: list[tuple[str, list[Image.Image]]]) -> Image.Image:
    step = _TILE_PX + _GAP_PX
    rows = len(columns[0][1])
    size = (len(columns) * step - _GAP_PX, _CAPTION_PX + rows * step - _GAP_PX)
    sheet = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(20)
    for column, (caption, tiles) in enumerate(columns):
        middle = (column * step + _TILE_PX // 2, _CAPTION_PX // 2)
        draw.text(middle, caption, fill="black", font=font, anchor="mm")
        for row, tile in enumerate(tiles):
            sheet.paste(tile, (column * step, _CAPTION_PX + row * step))
    return sheet
