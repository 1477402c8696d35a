"""Pictures and models for all tests, and an environment without settings."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from styleserve.image import Image
from styleserve.settings import PREFIX

REAL_MODELS = Path(os.environ.get("TEST_MODELS", Path(__file__).parents[2] / "shared" / "models"))


def pytest_configure() -> None:
    """Let a terminated run end the servers it has started."""
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=143))


@pytest.fixture(scope="session", autouse=True)
def no_settings_around() -> Iterator[None]:
    """Whoever runs the tests may have set up a server of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.upper().startswith(PREFIX)]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def photo() -> Image:
    """A picture whose rows, columns and channels are all different, with light and shade."""
    height, width = 240, 320
    y, x = np.mgrid[0:height, 0:width]
    planes = [x * 255 // width, y * 255 // height, (x // 16 + y // 16) % 2 * 200 + 20]
    return np.asarray(np.stack(planes, axis=2), dtype=np.uint8)


@pytest.fixture(scope="session")
def real_models() -> Path:
    """Folder with published style models, which are not part of this project."""
    if not any(REAL_MODELS.glob("*.onnx")):
        pytest.skip(f"no published style models in {REAL_MODELS}; name them in TEST_MODELS")
    return REAL_MODELS
