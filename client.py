"""Paint photos with the styles of a running server: on a web page, or file by file.

Without arguments this serves the page; with arguments it is a command line, see --help.
"""

from __future__ import annotations

import contextlib
import html
import logging
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from styleserve.errors import ConfigError, RequestError, StyleServeError
from styleserve.remote import Options, Remote
from styleserve.studio import Painting, Studio, at_once, report, sentence

if TYPE_CHECKING:
    import gradio as gr
    from fastapi import FastAPI

    from styleserve.settings import ClientSettings

LOGGER = logging.getLogger("styleserve.page")

OK, REFUSED = 0, 2
HERE = Path(__file__).parent
EXAMPLES = sorted((HERE / "docs" / "examples").glob("*.jpg"))
FORMATS = [f".{name}" for name in "png jpg jpeg webp gif bmp tif tiff avif heic heif".split()]
MAX_UPLOAD = "200mb"
WORKING_SIZES = [("Automatic", 0), *((f"{side} pixels", side) for side in (256, 512, 768, 1024))]
LIVE_EVERY_S, LIVE_S = 0.1, 300
RETRY_S = 3  # while there is no server
QUEUE = {"concurrency_id": "pictures", "preprocess": False}  # the studio reads the files itself
HIDDEN = {"api_visibility": "private"}
GALLERY = {"object_fit": "contain", "format": "png", "buttons": ["download", "fullscreen"]}
TITLE = "styleserve"
HEADER = "<h1>styleserve</h1><p>Give a photo the look of a painting.</p>"
NO_PHOTO = "there is no photo yet: add one first"
NO_PHOTOS = "there are no photos yet: add some first"


def main(argv: Sequence[str]) -> int:
    """Run the command line, or serve the page until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after an orderly stop, 2 when a setting or the port does not allow to start.
    """
    if argv:
        from styleserve import cli

        return int(cli.main(argv))
    from styleserve import logs, settings

    logs.set_up("auto", "info")
    try:
        serve(settings.load_client())
    except ConfigError as error:
        for problem in error.problems:
            LOGGER.critical("cannot start: %s", problem)
        return REFUSED
    return OK


def serve(settings: ClientSettings) -> None:
    """Show the page until a signal comes."""
    global gr  # the command line does without these seconds of loading
    import gradio as gr

    from styleserve import hosting

    port = settings.client_port
    with (
        hosting.listen(settings.client_host, port) as listener,
        hosting.temporary_folder() as folder,
    ):
        remote = Remote(settings.url, settings.client_timeout)
        studio = Studio(remote, folder / "gradio", settings.max_pixels)
        app = hosting.application(settings.url)
        mount(app, build(Page(studio)), settings)
        LOGGER.info("the page is on http://localhost:%d, its server on %s", port, settings.url)
        hosting.run(app, listener)


def mount(app: FastAPI, blocks: gr.Blocks, settings: ClientSettings) -> None:
    """Show `blocks` at the root of `app`, with nothing that needs the internet."""
    password = settings.client_password.get_secret_value()
    blocks.queue(
        max_size=settings.client_queue_size, default_concurrency_limit=settings.client_concurrency
    )
    gr.mount_gradio_app(
        app,
        blocks,
        "/",
        auth=(settings.client_user, password) if settings.client_user else None,
        root_path=settings.client_root_path or None,
        max_file_size=MAX_UPLOAD,
        show_error=False,  # what no sentence tells is for the log
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        footer_links=["api", "settings"],
        theme=theme(),
        css_paths=HERE / "styleserve" / "page.css",
    )


def theme() -> gr.themes.Base:
    """Paper, ink and one colour; fonts of the visitor's own system."""
    fonts = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "sans-serif")
    look = gr.themes.Base(
        primary_hue="teal", secondary_hue="teal", neutral_hue="stone", radius_size="lg",
        font=fonts, font_mono=("ui-monospace", "Consolas", "monospace"),
    )
    look.color_accent_dark = "*primary_400"
    return look.set(
        body_background_fill="#faf8f4",
        body_background_fill_dark="*neutral_950",
        block_shadow="0 1px 3px rgb(0 0 0 / 0.06)",
        block_label_background_fill="*background_fill_primary",
        block_title_text_weight="600",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
        button_primary_text_color="white",
        color_accent="*primary_700",
        checkbox_background_color_selected="*primary_700",
        checkbox_border_color_selected="*primary_700",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        block_label_text_color="*neutral_600",
        slider_color="*primary_600",
    )


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Show our errors on the page, each as a sentence."""
    try:
        yield
    except StyleServeError as error:
        text = html.escape(sentence(error))
        raise gr.Error(text, title="That did not work", print_exception=False) from error


class Page:
    """What the widgets call. Values come as the browser sends them: a file is a dictionary."""

    def __init__(self, studio: Studio) -> None:
        """Paint in `studio`."""
        self._studio = studio

    def refresh(self, style: str | None) -> tuple[Any, str, Any]:
        """List the server's styles; go on trying while there is no server."""
        try:
            names = [one.name for one in self._studio.styles()]
        except StyleServeError as error:
            text = f"Waiting for the server. {html.escape(sentence(error))}"
            return gr.skip(), f'<p role="status">{text}</p>', gr.Timer(active=True)
        chosen = style if style in names else next(iter(names), None)
        return gr.Radio(names, value=chosen), "", gr.Timer(active=False)

    def thumbnails(self) -> str:
        """Return a style sheet that puts a picture beside each style's name."""
        try:
            urls = self._studio.thumbnails(EXAMPLES[0]) if EXAMPLES else []
        except StyleServeError:  # refresh tells it
            urls = []
        rules = (
            f'#styles label:nth-of-type({number})::before{{background-image:url("{url}")}}'
            for number, url in enumerate(urls, 1)
        )
        return f"<style>{''.join(rules)}</style>"

    def names(self) -> list[str]:
        """List the names of the styles."""
        with told():
            return [style.name for style in self._studio.styles()]

    def call(self, photo: Any, style: str, strength: float, keep_color: bool, max_side: int) -> str:  # noqa: ANN401
        """Paint a photo in a style; returns a PNG file. A max_side of 0 leaves it to the server."""
        with told():
            how = self._how(style, strength, keep_color, max_side)
            return str(self._studio.paint(*file_of(photo), *how).file)

    def paint(self, photo: Any, *how: Any) -> tuple[Any, ...]:  # noqa: ANN401
        """Paint one photo: what the slider, the download button and the line below show."""
        with told():
            painting = self._studio.paint(*file_of(photo), *self._how(*how))
        pair = (str(painting.before), str(painting.after))
        return pair, gr.DownloadButton(value=str(painting.file), interactive=True), painting.facts

    def paint_if_there(self, photo: Any, *how: Any) -> tuple[Any, ...]:  # noqa: ANN401
        """Paint again when something changes, but do not ask for a photo."""
        if photo:
            return self.paint(photo, *how)
        return None, gr.DownloadButton(value=None, interactive=False), ""

    def paint_all(self, photo: Any, *how: Any) -> Iterator[tuple[Any, str]]:  # noqa: ANN401
        """Paint a photo in every style; tiles appear as they finish."""
        with told():
            file = file_of(photo)
            names = [style.name for style in self._studio.styles()]
            tasks = [partial(self._studio.paint_tile, *file, *self._how(n, *how)) for n in names]
            for done, failed in at_once(tasks):
                tiles = [(str(done[n].after), names[n]) for n in done]
                told_of = {names[n]: why for n, why in failed.items()}
                yield tiles, report(len(names), len(done), told_of)

    def paint_many(self, photos: Any, *how: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        """Paint many photos into a ZIP file; a bad one does not stop the others."""
        progress = gr.Progress()
        with told():
            if not photos:
                raise RequestError(NO_PHOTOS)
            files, options = [file_of(photo) for photo in photos], self._how(*how)
            tasks = [partial(self._studio.paint, *file, *options) for file in files]
            done: dict[int, Painting] = {}
            for done, failed in at_once(tasks):
                progress((len(done) + len(failed), len(files)), unit="photos")
                told_of = {f"{n + 1}. {files[n][1]}": why for n, why in failed.items()}
                tiles = [(str(done[n].after), files[n][1]) for n in done]
                yield tiles, gr.skip(), report(len(files), len(done), told_of)
            if done:
                archive = self._studio.pack([*done.values()], options[0])
                yield gr.skip(), gr.DownloadButton(value=str(archive), interactive=True), gr.skip()

    def paint_frame(self, frame: Any, *how: Any) -> str:  # noqa: ANN401
        """Paint one picture of a webcam."""
        with told():
            url = str((frame or {}).get("url") or "")
            data = url.encode() if url.startswith("data:") else self._studio.take(file_of(frame)[0])
            return f'<img alt="The camera\'s picture, painted" src="{self._studio.paint_frame(data, *self._how(*how))}">'

    def _how(self, style: str | None, *options: Any) -> tuple[str, Options]:  # noqa: ANN401
        strength, keep_color, max_side = options
        chosen = style or self._studio.styles()[0].name  # fails with the reason why there is none
        return chosen, Options(float(strength), bool(keep_color), int(max_side or 0) or None)


def build(page: Page) -> gr.Blocks:
    """Lay out the widgets."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(60, 3600)) as blocks:
        gr.HTML(HEADER, elem_id="header")
        notice, pictures, timer = gr.HTML(elem_id="notice"), gr.HTML(elem_id="pictures"), gr.Timer(RETRY_S, active=False)
        with gr.Row(elem_id="desk"):
            with gr.Column(scale=1, min_width=260, elem_id="side"):
                styles, options = choices()
            with gr.Column(scale=3, min_width=320), gr.Tabs():
                one_photo(page, [styles, *options])
                all_styles(page, options)
                many_photos(page, [styles, *options])
                webcam(page, [styles, *options])
        api(page, options)
        for event in (blocks.load, timer.tick):
            event(page.refresh, styles, [styles, notice, timer], queue=False, **HIDDEN).success(
                page.thumbnails, None, pictures, queue=False, show_progress="hidden", **HIDDEN
            )
    return blocks


def choices() -> tuple[gr.Radio, list[Any]]:
    """Lay out what all tabs share: the style and how to paint it."""
    styles = gr.Radio(label="Style", choices=[], elem_id="styles")
    with gr.Accordion("Options", elem_id="options"):
        strength = gr.Slider(0, 1, 1, step=0.05, label="Strength", info="0 is the photo itself")
        keep_color = gr.Checkbox(label="Keep the photo's colours")
        side = gr.Dropdown(
            WORKING_SIZES, value=0, label="Working size", filterable=False,
            info="Smaller is faster, with coarser strokes; the result keeps the photo's size",
        )
    return styles, [strength, keep_color, side]


def one_photo(page: Page, how: list[Any]) -> None:
    """Lay out the tab for one photo: before and after, and the file."""
    with gr.Tab("One photo", id="one"):
        with gr.Row():
            with gr.Column(min_width=280):
                photo = photo_in()
            with gr.Column(min_width=280):
                slider = gr.ImageSlider(
                    label="Before and after", elem_id="result", max_height=460, buttons=["fullscreen"]
                )
                facts = gr.Markdown(elem_id="facts")
                with gr.Row():
                    go = gr.Button("Paint", variant="primary", elem_id="paint")
                    save = gr.DownloadButton("Download PNG", interactive=False, elem_id="save")
        inputs, outputs = [photo, *how], [slider, save, facts]
        go.click(page.paint, inputs, outputs, show_progress_on=slider, **QUEUE, **HIDDEN)
        styles, strength, *others = how
        changes = [photo.change, styles.input, strength.release, *(one.input for one in others)]
        gr.on(
            changes, page.paint_if_there, inputs, outputs, trigger_mode="always_last",
            show_progress_on=slider, **QUEUE, **HIDDEN,
        )


def all_styles(page: Page, options: list[Any]) -> None:
    """Lay out the tab for the contact sheet."""
    with gr.Tab("All styles", id="all"):
        with gr.Row():
            with gr.Column(scale=2, min_width=260):
                photo = photo_in()
                go = gr.Button("Paint in every style", variant="primary", elem_id="paint-all")
                note = gr.Markdown(elem_id="sheet-note")
            with gr.Column(scale=3, min_width=280):
                sheet = gr.Gallery(label="Contact sheet", columns=2, elem_id="sheet", **GALLERY)
        go.click(
            page.paint_all, [photo, *options], [sheet, note], show_progress_on=sheet,
            **QUEUE, **HIDDEN,
        )


def many_photos(page: Page, how: list[Any]) -> None:
    """Lay out the tab for many photos."""
    with gr.Tab("Many photos", id="many"):
        with gr.Row():
            with gr.Column(scale=2, min_width=260):
                photos = gr.File(
                    label="Photos", file_count="multiple", file_types=FORMATS, height=240,
                    elem_id="photos",
                )
                go = gr.Button("Paint all", variant="primary", elem_id="paint-many")
                save = gr.DownloadButton("Download ZIP", interactive=False, elem_id="save-zip")
                note = gr.Markdown(elem_id="many-note")
            with gr.Column(scale=3, min_width=280):
                results = gr.Gallery(label="Results", columns=3, elem_id="results", **GALLERY)
        go.click(
            page.paint_many, [photos, *how], [results, save, note], show_progress_on=results,
            **QUEUE, **HIDDEN,
        )


def webcam(page: Page, how: list[Any]) -> None:
    """Lay out the tab that paints what a webcam sees; a slow server gets fewer pictures."""
    with gr.Tab("Webcam", id="webcam"):
        with gr.Row():
            camera = gr.Image(
                label="Camera", sources=["webcam"], streaming=True, type="filepath", height=400,
                buttons=[],
            )
            live = gr.HTML(label="Live", show_label=True, container=True, elem_id="live")
        camera.stream(
            page.paint_frame, [camera, *how], live, show_progress="hidden", time_limit=LIVE_S,
            stream_every=LIVE_EVERY_S, concurrency_id="webcam", preprocess=False, **HIDDEN,
        )


def photo_in() -> gr.Image:
    """Lay out a place for a photo, with examples below."""
    photo = gr.Image(
        label="Photo", type="filepath", image_mode=None, elem_classes="photo",
        sources=["upload", "clipboard", "webcam"], height=400, buttons=[],
    )
    if EXAMPLES:
        gr.set_static_paths([EXAMPLES[0].parent])
        gr.Examples(
            [[str(path)] for path in EXAMPLES], photo, label="Or take one of these",
            api_visibility="private",
        )
    return photo


def api(page: Page, options: list[Any]) -> None:
    """Name the calls for gradio_client."""
    with gr.Column(visible=False):
        photo = gr.Image(type="filepath", image_mode=None)
        style, file, names = gr.Textbox(), gr.File(), gr.JSON()
        button = gr.Button()
    button.click(page.call, [photo, style, *options], file, api_name="stylise", **QUEUE)
    button.click(page.names, None, names, api_name="styles", queue=False)


def file_of(value: Any) -> tuple[Path, str]:  # noqa: ANN401
    """Return where an uploaded file lies and what the visitor calls it.

    Raises:
        RequestError: if there is none.
    """
    if not value:
        raise RequestError(NO_PHOTO)
    path = Path(value["path"])
    return path, value.get("orig_name") or path.name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
