"""What the page does for its visitors; the widgets are in client.py.

A file comes as the browser sends it: a dictionary with its path and its name, or None.
`how` is the style, if one is chosen, the strength, whether to keep the colours, and the working
size, where 0 leaves it to the server. Every method raises our errors (see errors.py).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from styleserve.batch import at_once, report
from styleserve.errors import RequestError
from styleserve.remote import Options
from styleserve.studio import Painting, Studio

Upload = dict[str, Any] | None
How = str | float | bool | int | None
Tiles = list[tuple[str, str]]  # path and caption


class Page:
    """The page's own methods, for any number of visitors at once."""

    def __init__(self, studio: Studio, examples: Sequence[Path]) -> None:
        """Paint in `studio`; the first of `examples` is what thumbnails show."""
        self._studio = studio
        self._examples = examples

    def styles(self) -> list[str]:
        """List the names of the styles."""
        return [style.name for style in self._studio.styles()]

    def style_sheet(self) -> str:
        """Return HTML that puts a picture beside each style's name."""
        urls = self._studio.thumbnails(self._examples[0]) if self._examples else []
        rules = (
            f'#styles label:nth-of-type({number})::before{{background-image:url("{url}")}}'
            for number, url in enumerate(urls, 1)
        )
        return f"<style>{''.join(rules)}</style>"

    def paint(self, photo: Upload, *how: How) -> Painting:
        """Paint one photo."""
        return self._studio.paint(*_file(photo), *self._how(*how))

    def sheet(self, photo: Upload, *how: How) -> Iterator[tuple[Tiles, str]]:
        """Paint a photo in every style; yield the tiles and a report as each finishes."""
        file, names = _file(photo), self.styles()
        tasks = [partial(self._studio.paint_tile, *file, *self._how(name, *how)) for name in names]
        for done, failed in at_once(tasks):
            tiles = [(str(painting.after), names[n]) for n, painting in done.items()]
            yield tiles, report(len(names), len(done), {names[n]: why for n, why in failed.items()})

    def many(
        self, photos: list[Upload] | None, *how: How
    ) -> Iterator[tuple[Tiles, str, float, Path | None]]:
        """Paint many photos, of which a bad one does not stop the others.

        Yield as each finishes: the tiles, a report, the share of the work that is done, and at the
        end a ZIP file with the paintings, if there are any.
        """
        if not photos:
            raise RequestError("there are no photos yet: add some first")
        files, (style, options) = [_file(photo) for photo in photos], self._how(*how)
        tasks = [partial(self._studio.paint, *file, style, options) for file in files]
        for done, failed in at_once(tasks):
            tiles = [(str(painting.after), files[n][1]) for n, painting in done.items()]
            why = {f"{n + 1}. {files[n][1]}": reason for n, reason in failed.items()}
            over = len(done) + len(failed)
            last = over == len(files) and bool(done)
            archive = self._studio.pack([*done.values()], style) if last else None
            yield tiles, report(len(files), len(done), why), over / len(files), archive

    def frame(self, frame: Upload, *how: How) -> str:
        """Paint one picture of a webcam; returns HTML."""
        url = str((frame or {}).get("url") or "")
        data = url.encode() if url.startswith("data:") else self._studio.take(_file(frame)[0])
        painted = self._studio.paint_frame(data, *self._how(*how))
        return f'<img alt="The picture of the camera, painted" src="{painted}">'

    def _how(self, *how: How) -> tuple[str, Options]:
        style, strength, keep_color, max_side = how
        chosen = style or self.styles()[0]  # without a server, this tells so
        try:
            options = Options(float(strength or 0), bool(keep_color), int(max_side or 0) or None)
        except (TypeError, ValueError, OverflowError) as error:
            raise RequestError(
                f"strength and max_side must be numbers, got {strength!r} and {max_side!r}"
            ) from error
        return str(chosen), options


def _file(upload: Upload) -> tuple[Path, str]:
    if not upload:
        raise RequestError("there is no photo yet: add one first")
    if not isinstance(upload, dict) or not isinstance(upload.get("path"), str):
        raise RequestError("a photo is a file that was uploaded here: upload it first")
    path = Path(upload["path"])
    return path, str(upload.get("orig_name") or path.name)
