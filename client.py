"""Paint photos with the styles of a running server: on a web page, or file by file.

Without arguments this serves the page; with arguments it is a command line, see --help.
"""

from __future__ import annotations

import contextlib
import html
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from styleserve.crew import leave
from styleserve.errors import ConfigError, RemoteError, StyleServeError

if TYPE_CHECKING:
    import gradio as gr
    from fastapi import FastAPI

    from styleserve.page import Page
    from styleserve.settings import ClientSettings

LOGGER = logging.getLogger("styleserve.client")

OK, REFUSED = 0, 2
HERE = Path(__file__).parent
LOOK = HERE / "styleserve"  # with the page's CSS and JavaScript
EXAMPLES = sorted((HERE / "docs" / "examples").glob("*.jpg"))
SUFFIXES = (".png .jpg .jpeg .webp .gif .bmp .tif .tiff .avif .heic .heif").split()  # noqa: SIM905
MAX_UPLOAD = "200mb"
WORKING_SIZES = [("Automatic", 0), *((f"{side} pixels", side) for side in (256, 512, 768, 1024))]
LIVE_EVERY_S, LIVE_S = 0.1, 300
CAMERA = {"width": 640, "height": 480}  # more is only thrown away
RETRY_S = 3  # while there is no server
HEADER = "<h1>styleserve</h1><p>Give a photo the look of a painting.</p>"

COLOURS = {  # of the theme
    "primary_700": "button_primary_background_fill color_accent "
    "checkbox_background_color_selected checkbox_border_color_selected",
    "primary_800": "button_primary_background_fill_hover",
    "primary_600": "button_primary_background_fill_hover_dark slider_color",
    "neutral_600": "body_text_color_subdued block_info_text_color block_label_text_color",
    "neutral_400": "body_text_color_subdued_dark block_info_text_color_dark",
    "neutral_950": "body_background_fill_dark",
}

PRIVATE: dict[str, Any] = {"api_visibility": "private"}
# Files come as paths, and the styles may be others than those at the start.
RAW: dict[str, Any] = {"preprocess": False, "concurrency_id": "paint"}
LIVE: dict[str, Any] = {
    "type": "filepath",
    "sources": ["webcam"],
    "streaming": True,
    "height": 400,
    "min_width": 280,
    "buttons": [],
}
FILES: dict[str, Any] = {"file_count": "multiple", "file_types": SUFFIXES, "height": 240}
GALLERY: dict[str, Any] = {"object_fit": "contain", "buttons": ["download", "fullscreen"]}


def main(argv: Sequence[str]) -> int:
    """Run the command line, or serve the page until SIGTERM or SIGINT.

    Returns:
        The exit code. Of the page: 0 after an orderly stop, 2 when a setting or the port does not
        allow to start.
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
    global gr
    from styleserve import hosting
    from styleserve.page import Page
    from styleserve.remote import Remote
    from styleserve.studio import Studio

    port = settings.client_port
    with (
        hosting.listen(settings.client_host, port) as listener,
        hosting.temporary_folder() as folder,
    ):
        # Here: it makes a folder in what is the temporary folder when it is loaded. And not above:
        # the command line does without these seconds.
        import gradio as gr

        remote = Remote(settings.url, settings.client_timeout)
        studio = Studio(remote, folder / "gradio", settings.max_pixels, EXAMPLES)
        app = hosting.application(settings.url)
        mount(app, build(Page(studio, EXAMPLES)), settings)
        LOGGER.info("the page is on http://localhost:%d, its server on %s", port, settings.url)
        hosting.run(app, listener)


def mount(app: FastAPI, blocks: gr.Blocks, settings: ClientSettings) -> None:
    """Show `blocks` at the root of `app`, with nothing that needs the internet."""
    password = settings.client_password.get_secret_value()
    css = (LOOK / "page.css").read_text()  # as css_paths, what is not in the main column is lost
    blocks.queue(
        max_size=settings.client_queue_size, default_concurrency_limit=settings.client_concurrency
    )
    # launch() sets it; while it is false, Gradio takes any file of this machine for an upload.
    blocks.has_launched = True
    gr.mount_gradio_app(
        app,
        blocks,
        "/",
        auth=(settings.client_user, password) if settings.client_user else None,
        root_path=settings.client_root_path or None,
        max_file_size=MAX_UPLOAD,
        show_error=False,  # what is no sentence for visitors is for the log
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        footer_links=["api", "settings"],
        favicon_path=str(HERE / "docs" / "favicon.png"),
        theme=theme(),
        head=f"<style>{css}</style><script>{(LOOK / 'head.js').read_text()}</script>",
        js=(LOOK / "page.js").read_text(),
    )


def theme() -> gr.themes.Base:
    """Paper, ink and one colour; fonts of the visitor's own system."""
    fonts = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "sans-serif")
    look = gr.themes.Base(
        primary_hue="teal",
        secondary_hue="teal",
        neutral_hue="stone",
        radius_size="lg",
        font=fonts,
        font_mono=("ui-monospace", "Consolas", "monospace"),
    )
    setattr(look, "color_accent_dark", "*primary_400")  # noqa: B010  not known to set()
    return look.set(
        body_background_fill="#faf8f4",
        block_shadow="0 1px 3px rgb(0 0 0 / 0.06)",
        block_label_background_fill="*background_fill_primary",
        block_title_text_weight="600",
        button_primary_text_color="white",
        button_primary_background_fill_dark="*primary_700",
        **{name: f"*{colour}" for colour, names in COLOURS.items() for name in names.split()},
    )


@contextlib.contextmanager
def told(to_html: Callable[[str], str] = html.escape) -> Iterator[None]:
    """Show our errors on the page, each as a sentence, which Gradio takes for HTML there."""
    try:
        yield
    except StyleServeError as error:
        if isinstance(error, RemoteError):
            LOGGER.warning("%s", error)
        text = to_html(error.sentence)
        raise gr.Error(text, title="That did not work", print_exception=False) from error


def build(page: Page) -> gr.Blocks:
    """Lay out the page."""
    from styleserve.hosting import KEPT_S, SWEEP_S

    kept = (SWEEP_S, KEPT_S)  # hosting deletes the files too; this makes Gradio forget them
    blocks: gr.Blocks
    with gr.Blocks(title="styleserve", analytics_enabled=False, delete_cache=kept) as blocks:
        gr.HTML(HEADER, elem_id="header")
        notice, pictures = gr.HTML(elem_id="notice"), gr.HTML(elem_id="pictures")
        with gr.Row(elem_id="desk"):
            with gr.Column(scale=1, min_width=260, elem_id="side"):
                how = choices()
            with gr.Column(scale=3, min_width=320), gr.Tabs():
                for tab in (one_photo, all_styles, many_photos, webcam):
                    tab(page, how)
        keep_fresh(page, blocks, how[0], notice, pictures)
        api(page, how)
    return blocks


def choices() -> list[Any]:
    """Lay out what all tabs share: the style and how to paint it."""
    styles = gr.Radio(label="Style", choices=[], elem_id="styles")
    with gr.Accordion("Options", elem_id="options"):
        strength = gr.Slider(0, 1, 1, step=0.05, label="Strength", info="0 is the photo itself")
        keep_color = gr.Checkbox(label="Keep the photo's colours")
        side = gr.Dropdown(
            WORKING_SIZES,
            value=0,
            label="Working size",
            info="Smaller is faster, with coarser strokes; the result keeps the photo's size",
            filterable=False,
        )
    return [styles, strength, keep_color, side]


def keep_fresh(
    page: Page, blocks: gr.Blocks, styles: gr.Radio, notice: gr.HTML, pictures: gr.HTML
) -> None:
    """List the server's styles whenever the page is loaded; wait for a server that is away."""
    timer = gr.Timer(RETRY_S, active=False)

    def refresh(style: str | None) -> tuple[Any, str, Any]:
        try:
            names = page.styles()
        except StyleServeError:
            return gr.skip(), '<p role="status">Waiting for the server.</p>', gr.Timer(active=True)
        chosen = style if style in names else next(iter(names), None)
        return gr.Radio(names, value=chosen), "", gr.Timer(active=False)

    def style_sheet() -> str:
        with contextlib.suppress(StyleServeError):  # refresh tells it
            return page.style_sheet()
        return ""

    quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", **PRIVATE}
    for event in (blocks.load, timer.tick):
        seen = event(refresh, styles, [styles, notice, timer], preprocess=False, **quiet)
        seen.then(style_sheet, None, pictures, **quiet)


def photo_in() -> gr.Image:
    """Lay out a place for a photo, with examples below."""
    photo = gr.Image(
        label="Photo",
        type="filepath",
        sources=["upload", "clipboard", "webcam"],
        height=400,
        buttons=[],
        elem_classes="photo",
    )
    if EXAMPLES:
        gr.set_static_paths([EXAMPLES[0].parent])
        paths = [[str(path)] for path in EXAMPLES]
        gr.Examples(paths, photo, label="Or take one of these", **PRIVATE)
    return photo


def painting_out() -> tuple[gr.ImageSlider, gr.Markdown, gr.Button, gr.DownloadButton]:
    """Lay out a place for the painting, with what can be done with it below."""
    slider = gr.ImageSlider(
        label="Before and after", max_height=460, buttons=["fullscreen"], elem_id="result"
    )
    facts = gr.Markdown(elem_id="facts")
    with gr.Row():
        go = gr.Button("Paint", variant="primary", elem_id="paint")
        save = gr.DownloadButton("Download PNG", interactive=False, elem_id="save")
    return slider, facts, go, save


def one_photo(page: Page, how: list[Any]) -> None:
    """Lay out the tab for one photo: before and after, and the file."""
    with gr.Tab("One photo", id="one"), gr.Row():
        with gr.Column(min_width=280):
            photo = photo_in()
        with gr.Column(min_width=280):
            slider, facts, go, save = painting_out()

    def paint(photo: Any, *how: Any) -> tuple[Any, ...]:  # noqa: ANN401
        with told():
            done = page.paint(photo, *how)
        pair = (str(done.before), str(done.after))
        return pair, gr.DownloadButton(value=str(done.file), interactive=True), done.facts

    def nothing() -> tuple[Any, ...]:
        return None, gr.DownloadButton(value=None, interactive=False), ""

    def paint_again(photo: Any, *how: Any) -> tuple[Any, ...]:  # noqa: ANN401
        return paint(photo, *how) if photo else nothing()

    inputs, outputs = [photo, *how], [slider, save, facts]
    styles, strength, *others = how
    changes = [photo.change, styles.input, strength.release, *(one.input for one in others)]
    shown: dict[str, Any] = {"show_progress_on": slider, **RAW, **PRIVATE}
    asked = go.click(paint, inputs, outputs, **shown)
    changed = gr.on(changes, paint_again, inputs, outputs, trigger_mode="always_last", **shown)
    for painting in (asked, changed):
        painting.failure(nothing, None, outputs, queue=False, show_progress="hidden", **PRIVATE)


def all_styles(page: Page, how: list[Any]) -> None:
    """Lay out the tab for the contact sheet."""
    with gr.Tab("All styles", id="all"), gr.Row():
        with gr.Column(scale=2, min_width=260):
            photo = photo_in()
            go = gr.Button("Paint in every style", variant="primary", elem_id="paint-all")
            note = gr.Markdown(elem_id="sheet-note")
        with gr.Column(scale=3, min_width=280):
            sheet = gr.Gallery(label="Contact sheet", columns=2, elem_id="sheet", **GALLERY)

    def paint(photo: Any, *options: Any) -> Iterator[tuple[Any, str]]:  # noqa: ANN401
        with told():
            yield from page.sheet(photo, *options)

    inputs = [photo, *how[1:]]
    go.click(paint, inputs, [sheet, note], show_progress_on=sheet, **RAW, **PRIVATE)


def many_photos(page: Page, how: list[Any]) -> None:
    """Lay out the tab for many photos."""
    with gr.Tab("Many photos", id="many"), gr.Row():
        with gr.Column(scale=2, min_width=260):
            photos = gr.File(label="Photos", elem_id="photos", **FILES)
            go = gr.Button("Paint all", variant="primary", elem_id="paint-many")
            save = gr.DownloadButton("Download ZIP", interactive=False, elem_id="save-zip")
            note = gr.Markdown(elem_id="many-note")
        with gr.Column(scale=3, min_width=280):
            results = gr.Gallery(label="Results", columns=3, elem_id="results", **GALLERY)

    def paint(photos: Any, *how: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        progress = gr.Progress()
        with told():
            for tiles, report, share, archive in page.many(photos, *how):
                progress(share, desc="Painting")
                path = str(archive) if archive else None
                yield tiles, gr.DownloadButton(value=path, interactive=bool(path)), report

    outputs = [results, save, note]
    go.click(paint, [photos, *how], outputs, show_progress_on=results, **RAW, **PRIVATE)


def webcam(page: Page, how: list[Any]) -> None:
    """Lay out the tab that paints what a webcam sees; a slow server gets fewer pictures."""
    with gr.Tab("Webcam", id="webcam"), gr.Row():
        options = gr.WebcamOptions(constraints={"video": CAMERA})
        camera = gr.Image(label="Camera", webcam_options=options, **LIVE)
        live = gr.HTML(
            label="Painted", show_label=True, container=True, min_width=280, elem_id="live"
        )

    def paint(frame: Any, *how: Any) -> str:  # noqa: ANN401
        with told():
            return page.frame(frame, *how)

    camera.stream(
        paint,
        [camera, *how],
        live,
        show_progress="hidden",
        stream_every=LIVE_EVERY_S,
        time_limit=LIVE_S,
        **{**RAW, "concurrency_id": "live"},
        **PRIVATE,
    )


def api(page: Page, how: list[Any]) -> None:
    """Name the calls for gradio_client."""
    with gr.Column(visible=False):
        photo, style = gr.Image(type="filepath", label="photo"), gr.Textbox(label="style")
        file, names, button = gr.File(label="PNG file"), gr.JSON(label="names"), gr.Button()

    def stylise(
        photo: Any,  # noqa: ANN401
        style: str,
        strength: float,
        keep_color: bool,
        max_side: int,
    ) -> str:
        """Paint a photo in a style, as a PNG file. A max_side of 0 leaves it to the server."""
        with told(to_html=str):  # no part of the page shows this
            return str(page.paint(photo, style, strength, keep_color, max_side).file)

    def styles() -> list[str]:
        """List the names of the styles."""
        with told(to_html=str):
            return page.styles()

    button.click(stylise, [photo, style, *how[1:]], file, api_name="stylise", **RAW)
    button.click(styles, None, names, api_name="styles", queue=False)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
