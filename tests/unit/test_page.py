"""What the page does, with a server in memory."""

import zipfile
from pathlib import Path
from typing import cast

import pytest
from PIL import Image as Pillow

from styleserve.errors import RemoteError, RequestError
from styleserve.page import Page, Upload
from styleserve.remote import Options, Remote
from styleserve.studio import Studio
from tests.pictures import noise
from tests.unit.test_studio import Inverting

HOW = ("invert", 1.0, False, 0)


@pytest.fixture
def photo(tmp_path: Path) -> Upload:
    Pillow.fromarray(noise(30, 40)).save(tmp_path / "upload.png")
    return {"path": str(tmp_path / "upload.png"), "orig_name": "cat.png"}


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(Studio(cast(Remote, Inverting()), tmp_path, 10_000), [])


def test_the_result_has_the_visitors_name(page: Page, photo: Upload) -> None:
    assert page.paint(photo, *HOW).file.name == "cat-invert.png"


@pytest.mark.parametrize("nothing", [None, {}])
def test_without_a_photo_one_is_asked_for(page: Page, nothing: Upload) -> None:
    with pytest.raises(RequestError, match="there is no photo yet"):
        page.paint(nothing, *HOW)


def test_without_photos_some_are_asked_for(page: Page) -> None:
    with pytest.raises(RequestError, match="there are no photos yet"):
        next(page.many([], *HOW))


def test_a_contact_sheet_fills_tile_by_tile(page: Page, photo: Upload) -> None:
    states = list(page.sheet(photo, *HOW[1:]))

    assert [len(tiles) for tiles, _ in states] == [1, 2]
    assert [caption for _, caption in states[-1][0]] == ["invert", "other"]
    assert states[-1][1] == "**2 of 2** done"


def test_a_bad_photo_does_not_stop_the_others(page: Page, photo: Upload, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    states = list(page.many([photo, {"path": str(bad)}, photo], *HOW))
    tiles, report, share, archive = states[-1]

    assert [state[3] for state in states[:-1]] == [None, None]
    assert [caption for _, caption in tiles] == ["cat.png", "cat.png"]
    assert report.startswith("**2 of 3** done, 1 failed:\n\n- **2. bad.jpg**: This file is no")
    assert share == 1
    assert archive is not None
    assert archive.name == "invert.zip"
    assert zipfile.ZipFile(archive).namelist() == ["cat-invert.png", "cat-invert (2).png"]


def test_nothing_is_packed_when_all_fail(page: Page, tmp_path: Path) -> None:
    *_, last = page.many([{"path": str(tmp_path / "gone.png")}], *HOW)

    assert last[3] is None


class Recording(Inverting):
    def stylise(self, image, style, options=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        self.seen = (style, options)
        return image


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        (("dots", 0.5, True, 256), ("dots", Options(0.5, True, 256))),
        (("dots", 0, False, 0), ("dots", Options(0.0, False, None))),
        ((None, 1, None, None), ("invert", Options(1.0, False, None))),
    ],
)
def test_options_reach_the_server(
    how: tuple[str, float, bool, int], seen: object, photo: Upload, tmp_path: Path
) -> None:
    server = Recording()
    Page(Studio(cast(Remote, server), tmp_path, 10_000), []).paint(photo, *how)

    assert server.seen == seen


def test_a_webcam_picture_comes_as_a_file_or_a_data_url(page: Page, photo: Upload) -> None:
    url = page.frame(photo, *HOW).partition('src="')[2].rstrip('">')

    assert page.frame({"url": url}, *HOW).startswith("<img alt=")


def test_thumbnails_belong_to_the_styles_by_place(tmp_path: Path, photo: Upload) -> None:
    assert photo
    page = Page(Studio(cast(Remote, Inverting()), tmp_path, 10_000), [Path(photo["path"])])

    assert page.style_sheet().count("label:nth-of-type(") == 2


def test_without_examples_there_are_no_thumbnails(page: Page) -> None:
    assert page.style_sheet() == "<style></style>"


def test_a_missing_server_is_told(tmp_path: Path, photo: Upload) -> None:
    page = Page(Studio(Remote("http://127.0.0.1:9"), tmp_path, 10_000), [])

    with pytest.raises(RemoteError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        page.paint(photo, None, 1, False, 0)
