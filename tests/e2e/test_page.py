"""The real page in a browser, with the real server behind it."""

import contextlib
import json
import os
import re
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image as Pillow
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright
from tritonclient.utils import InferenceServerException

from styleserve.image import Image
from tests import tiny_models as tiny
from tests.e2e.conftest import Launch
from tests.e2e.page import WAIT_S, Serving
from tests.e2e.running import START_S, Running, free_ports
from tests.pictures import noise

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
# No sandbox: containers run tests as root. The camera is a moving test picture.
FLAGS = [
    "--no-sandbox",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
MARKUP = '<img src=x onerror="window.hit = 1">'
TABS = ("One photo", "All styles", "Many photos", "Webcam")


@pytest.fixture(scope="module")
def page_at(server: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(server.http, tmp_path_factory.mktemp("page") / "cwd")
    try:
        yield serving.wait_ready()
    finally:
        serving.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}; install Debian's chromium or set CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    options = {"viewport": {"width": 1280, "height": 860}} | getattr(request, "param", {})
    context = browser.new_context(**options)
    context.set_default_timeout(WAIT_S * 1000)
    expect.set_options(timeout=WAIT_S * 1000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, page_at: Serving) -> Page:
    return opened(context, page_at)


def opened(context: BrowserContext, at: Serving) -> Page:
    page = context.new_page()
    page.goto(at.url)
    expect(page.get_by_label("fixed-size")).to_be_attached()
    return page


def png(picture: Image) -> bytes:
    file = BytesIO()
    Pillow.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def pixels(file: bytes | Path | str) -> Image:
    with Pillow.open(BytesIO(file) if isinstance(file, bytes) else file) as image:
        return np.asarray(image.convert("RGB"))


def upload(name: str, file: bytes) -> Any:  # noqa: ANN401  playwright's FilePayload
    return {"name": name, "mimeType": "image/png", "buffer": file}


def choose(page: Page, name: str, file: bytes) -> None:
    page.locator(".photo:visible input[type=file]").set_input_files(upload(name, file))


def downloaded(page: Page, button: str) -> tuple[str, bytes]:
    with page.expect_download() as info:
        page.get_by_role("button", name=button).click()
    return info.value.suggested_filename, info.value.path().read_bytes()


def test_a_photo_is_painted_as_the_api_does(
    context: BrowserContext, page_at: Serving, server: Running
) -> None:
    urls: list[str] = []
    context.on("request", lambda request: urls.append(request.url))
    page, picture = opened(context, page_at), noise(40, 60)

    expect(page.locator("#incomplete")).to_have_count(0)
    page.get_by_label("invert", exact=True).check(force=True)
    choose(page, "holiday.png", png(picture))
    expect(page.locator("#facts")).to_contain_text(
        re.compile("invert · 60 × 40 pixels · [0-9.]+ s")  # noqa: RUF001
    )
    name, file = downloaded(page, "Download PNG")

    assert name == "holiday-invert.png"
    assert np.array_equal(pixels(file), server.infer("invert", image=picture))
    shown = [image.get_attribute("src") for image in page.locator("#result img").all()]
    assert [pixels(context.request.get(url or "").body()).tolist() for url in shown] == [
        picture.tolist(),
        (255 - picture).tolist(),
    ]
    foreign = [url for url in urls if not url.startswith((page_at.url, "data:", "blob:"))]
    assert foreign == []


def slowly(route: Route) -> None:
    time.sleep(3)
    route.continue_()


@pytest.mark.parametrize("part", ["Blocks-*.js", "Blocks-*.css", "ImagePreview-*.js"])
def test_a_part_that_does_not_come_is_told(
    context: BrowserContext, page_at: Serving, part: str
) -> None:
    page = context.new_page()
    page.route(f"**/assets/{part}", lambda route: route.abort())
    page.route("**/theme.css*", slowly)  # after which head.js runs
    page.goto(page_at.url)
    told = page.get_by_role("alert")
    sentence = "A part of this page has not come: reload it if that stays so."
    expect(told).to_have_text(sentence, timeout=2 * WAIT_S * 1000)


def test_another_style_or_option_paints_again(page: Page) -> None:
    choose(page, "a.png", png(noise(40, 60)))
    expect(page.locator("#facts")).to_contain_text("fixed-size")
    page.get_by_label("identity").check(force=True)
    expect(page.locator("#facts")).to_contain_text("identity")


# What the slider knows of a picture whose load it was told of too early.
UNKNOWN_SIZE = """image => {
    Object.defineProperty(image, "naturalWidth", { value: 0, configurable: true });
    image.dispatchEvent(new Event("load"));
    delete image.naturalWidth;
}"""


def test_the_slider_moves_by_mouse_and_keyboard(page: Page) -> None:
    page.get_by_label("Take the example photo coffee").first.click()
    after, handle = page.locator("#result img").nth(1), page.get_by_role("slider", name="How much")
    expect(after).to_have_attribute("style", re.compile(r"clip-path: inset\(0px 0px 0px 50%"))
    after.evaluate(UNKNOWN_SIZE)
    handle.focus()
    page.keyboard.press("ArrowLeft")
    expect(after).to_have_attribute("style", re.compile(r"clip-path: inset\(0px 0px 0px 4[45]"))
    box, frame = handle.locator(".icon-wrap").bounding_box(), after.bounding_box()
    assert box
    assert frame
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(frame["x"] + frame["width"] * 0.9, box["y"], steps=5)
    page.mouse.up()
    expect(after).to_have_attribute("style", re.compile(r"clip-path: inset\(0px 0px 0px (8|9)\d"))


def test_the_contact_sheet_has_every_style(page: Page) -> None:
    page.get_by_role("tab", name="All styles").click()
    choose(page, "a.png", png(noise(40, 60)))
    page.get_by_role("button", name="Paint in every style").click()

    expect(page.locator("#sheet-note")).to_contain_text("3 of 3 done")
    for name in ("fixed-size", "identity", "invert"):
        expect(page.locator("#sheet").get_by_text(name)).to_be_visible()


def test_many_photos_come_as_a_zip_without_the_bad_one(page: Page) -> None:
    pictures = [noise(20, 30, seed) for seed in range(2)]
    files = [upload("a.png", png(pictures[0])), upload("a.png", png(pictures[1]))]
    page.get_by_label("invert", exact=True).check(force=True)
    page.get_by_role("tab", name="Many photos").click()
    page.locator("#photos input[type=file]").set_input_files([*files, upload("bad.jpg", b"no")])
    expect(page.locator("#photos tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Paint all").click()

    note = page.locator("#many-note")
    expect(note).to_contain_text("2 of 3 done, 1 failed")
    expect(note).to_contain_text("3. bad.jpg: This file is no picture that can be read")
    expect(page.locator("#results").get_by_text("a.png")).to_have_count(2)
    name, file = downloaded(page, "Download ZIP")
    assert name == "invert.zip"
    with zipfile.ZipFile(BytesIO(file)) as archive:
        assert archive.namelist() == ["a-invert.png", "a-invert (2).png"]
        for member, picture in zip(archive.namelist(), pictures, strict=True):
            assert np.array_equal(pixels(archive.read(member)), 255 - picture)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (None, "There is no photo yet: add one first."),
        (b"no picture", "This file is no picture that can be read: choose a PNG, JPEG"),
        (png(noise(1100, 1000)), "The picture has 1000x1100 pixels, allowed are 1 to 1000000"),
    ],
    ids=["none", "unreadable", "too big"],
)
def test_what_is_wrong_is_told_in_a_sentence(page: Page, file: bytes | None, told: str) -> None:
    if file is None:
        page.get_by_role("button", name="Paint", exact=True).click()
    else:
        choose(page, "x.png", file)
    expect(page.get_by_text(told)).to_be_visible()


@pytest.mark.timeout(240)
def test_a_server_that_comes_goes_and_changes(
    context: BrowserContext, launch: Launch, tiny_folder: Path, tmp_path: Path
) -> None:
    port = free_ports(1)[0]
    serving = Serving(port, tmp_path / "cwd").wait_ready()
    try:
        assert json.loads(serving.get("/health")[1]) == {"page": "ok", "server": False}
        page = context.new_page()
        page.goto(serving.url)
        expect(page.locator("#notice")).to_contain_text("Waiting for the server.")
        choose(page, "a.png", png(noise(20, 30)))
        away = page.get_by_text("The server cannot be reached just now").last
        expect(away).to_be_visible()
        assert f"http://127.0.0.1:{port} cannot be reached" in serving.log_file.read_text()

        first = started(launch, tiny_folder, port)
        assert json.loads(serving.get("/health")[1]) == {"page": "ok", "server": True}
        page.get_by_label("invert", exact=True).check(force=True)
        expect(page.locator("#facts")).to_contain_text("invert")
        expect(page.locator("#notice")).to_be_empty()

        assert first.stop() == 0
        page.get_by_label("identity").check(force=True)
        expect(page.get_by_text("cannot be reached").last).to_be_visible()
        expect(page.locator("#facts")).not_to_contain_text("invert")
        expect(page.locator("#result img")).to_have_count(0)
        expect(page.locator("#save")).to_be_disabled()

        tiny.save(tiny.invert(), tmp_path / "other" / "fresh-9.onnx")
        started(launch, tmp_path / "other", port)
        page.reload()
        page.get_by_label("fresh").check(force=True)
        choose(page, "a.png", png(noise(20, 30)))
        expect(page.locator("#facts")).to_contain_text("fresh")
        assert page.get_by_label("identity").count() == 0
    finally:
        serving.end()


def started(launch: Launch, models: Path, port: int) -> Running:
    running = launch(models, http_port=port)
    running.http = port
    return running.wait_ready(START_S)


NARROW = {"viewport": {"width": 390, "height": 844}}


@pytest.mark.parametrize("context", [NARROW], indirect=True)
def test_nothing_is_wider_than_a_phone(page: Page) -> None:
    choose(page, "a.png", png(noise(300, 400)))
    expect(page.locator("#facts")).to_contain_text("pixels")
    for tab in TABS:
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, tab


@pytest.mark.parametrize(
    "context", [{"color_scheme": scheme} for scheme in ("light", "dark")], indirect=True
)
def test_no_serious_barrier(page: Page) -> None:
    choose(page, "a.png", png(noise(30, 40)))
    expect(page.locator("#facts")).to_contain_text("pixels")
    for tab in TABS:
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        found = Axe().run(page).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == [], tab


def test_the_webcam_is_painted_live(page: Page) -> None:
    page.get_by_label("invert", exact=True).check(force=True)
    page.get_by_role("tab", name="Webcam").click()
    page.get_by_text("Click to Access Webcam").click()
    page.get_by_label("capture photo").click()
    live = page.locator("#live img")
    expect(live).to_have_attribute("src", re.compile("^data:image/jpeg"))
    first = live.get_attribute("src") or ""
    expect(live).not_to_have_attribute("src", first)


def caller(at: Serving, **options: Any) -> Client:  # noqa: ANN401
    return Client(at.url, verbose=False, analytics_enabled=False, **options)


@pytest.fixture
def photo_file(tmp_path: Path) -> Callable[[Image], Path]:
    def write(picture: Image) -> Path:
        path = tmp_path / f"{picture.sum()}.png"
        path.write_bytes(png(picture))
        return path

    return write


def test_a_script_calls_the_page(
    page_at: Serving, server: Running, photo_file: Callable[[Image], Path]
) -> None:
    picture, script = noise(30, 40), caller(page_at)
    photo = handle_file(photo_file(picture))

    assert script.predict(api_name="/styles") == ["fixed-size", "identity", "invert"]
    file = script.predict(photo=photo, style="invert", api_name="/stylise")
    assert np.array_equal(pixels(file), 255 - picture)
    options: dict[str, Any] = {"strength": 0.5, "keep_color": True, "max_side": 256}
    file = script.predict(photo=photo, style="invert", **options, api_name="/stylise")
    assert np.array_equal(pixels(file), server.infer("invert", image=picture, **options))
    with pytest.raises(AppError, match="unknown"):
        script.predict(photo=photo, style="missing", api_name="/stylise")
    with pytest.raises(AppError) as caught:
        script.predict(photo=photo, style="invert", strength=MARKUP, api_name="/stylise")
    assert MARKUP in str(caught.value)
    assert set(script.view_api(return_format="dict")["named_endpoints"]) == {"/stylise", "/styles"}


@pytest.mark.parametrize("tab", ["One photo", "Webcam"])
def test_markup_in_an_error_is_text_on_the_page(page: Page, tab: str) -> None:
    def join(route: Route) -> None:
        asked = json.loads(route.request.post_data or "{}")
        asked["data"] = [MARKUP if one == 1 else one for one in asked["data"]]  # the strength
        route.continue_(post_data=json.dumps(asked))

    page.route("**/queue/join*", join)
    if tab == "Webcam":
        page.get_by_role("tab", name=tab).click()
        page.get_by_text("Click to Access Webcam").click()
        page.get_by_label("capture photo").click()
    else:
        choose(page, "a.png", png(noise(20, 30)))
    told = page.get_by_test_id("toast-text").first
    expect(told).to_contain_text(MARKUP)
    assert told.locator("img").count() == 0
    assert page.evaluate("window.hit") is None


def test_ten_visitors_at_once(page_at: Serving, photo_file: Callable[[Image], Path]) -> None:
    pictures = [noise(30, 40, seed) for seed in range(10)]

    def visit(picture: Image) -> Image:
        photo = handle_file(photo_file(picture))
        return pixels(caller(page_at).predict(photo, "invert", api_name="/stylise"))

    with ThreadPoolExecutor(10) as pool:
        painted = list(pool.map(visit, pictures))

    assert all(np.array_equal(255 - p, q) for p, q in zip(pictures, painted, strict=True))


def test_files_of_the_machine_are_no_photos(page_at: Serving, tmp_path: Path) -> None:
    private = tmp_path / "private.png"
    private.write_bytes(png(noise(20, 30)))
    uploads = next(page_at.folder.with_suffix(".tmp").glob("styleserve-page-*")) / "gradio"
    around = f"{uploads}/{os.path.relpath(private, uploads)}"
    for path in (str(private), around, "/dev/zero", "a\0b", 7):
        for body in ({"path": path, "meta": {"_type": "gradio.FileData"}}, {"path": path}):
            data = [body, "identity", 1, False, 0]
            status, answer = page_at.request("POST", "/gradio_api/call/stylise", {"data": data})
            assert status == 200
            event = json.loads(answer)["event_id"]
            told = page_at.get(f"/gradio_api/call/stylise/{event}")[1]
            assert b"event: error" in told, (path, told)
            assert b"png" not in told
    assert private.exists()


def test_health_and_nothing_written_where_it_runs(page_at: Serving) -> None:
    assert json.loads(page_at.get("/health")[1]) == {"page": "ok", "server": True}
    assert list(page_at.folder.iterdir()) == []


def test_all_its_temporary_files_are_in_one_folder_that_goes_with_it(
    tmp_path: Path, photo_file: Callable[[Image], Path]
) -> None:
    serving, temporary = Serving(free_ports(1)[0], tmp_path / "cwd"), tmp_path / "cwd.tmp"
    try:
        serving.wait_ready()
        assert serving.get("/")[0] == 200
        with pytest.raises(AppError, match="cannot be reached"):
            caller(serving).predict(
                handle_file(photo_file(noise(20, 30))), "invert", api_name="/stylise"
            )
        (folder,) = temporary.iterdir()
        assert folder.name.startswith("styleserve-page-")
        assert list(folder.rglob("*.png"))
        assert serving.stop() == 0
        assert list(temporary.iterdir()) == []
    finally:
        serving.end()


def test_a_slow_server_is_told(
    server: Running, tmp_path: Path, photo_file: Callable[[Image], Path]
) -> None:
    serving = Serving(server.http, tmp_path / "cwd", client_timeout=0.001).wait_ready()
    try:
        photo = handle_file(photo_file(noise(900, 900)))
        with pytest.raises(AppError, match=r"No answer from .* within 0 s"):
            caller(serving).predict(photo=photo, style="invert", api_name="/stylise")
    finally:
        serving.end()


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Stop the server but not Triton, so that its queue fills and stays full."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def test_a_busy_server_is_told(
    context: BrowserContext, launch: Launch, slow_folder: Path, tmp_path: Path
) -> None:
    running = launch(slow_folder, queue_size=1).wait_ready()
    serving = Serving(running.http, tmp_path / "cwd").wait_ready()
    page = context.new_page()
    page.goto(serving.url)
    page.get_by_label("slow").check(force=True)

    def visit() -> None:
        with contextlib.suppress(InferenceServerException):  # 503
            running.infer("slow", image=noise(64, 64))

    try:
        with ThreadPoolExecutor(8) as pool, stopped(running.process):
            visitors = [pool.submit(visit) for _ in range(8)]
            wait(visitors, WAIT_S, FIRST_COMPLETED)
            choose(page, "a.png", png(noise(64, 64)))
            expect(page.get_by_text("The server is busy with other pictures")).to_be_visible()
        page.get_by_role("button", name="Paint", exact=True).click()
        expect(page.locator("#facts")).to_contain_text("slow")
    finally:
        serving.end()


def proxied(port: int, prefix: str) -> FastAPI:
    """A reverse proxy that shows the page below `prefix`, as nginx would."""
    app, client = FastAPI(), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S)

    @app.api_route(prefix + "/{path:path}", methods=["GET", "POST"])
    async def forward(path: str, request: Request) -> StreamingResponse:
        headers = {**request.headers, "x-forwarded-host": request.headers["host"]}
        sent = client.build_request(
            request.method,
            f"/{path}",
            params=request.query_params,
            headers=headers,
            content=await request.body(),
        )
        answer = await client.send(sent, stream=True)
        return StreamingResponse(
            answer.aiter_raw(), answer.status_code, answer.headers, background=None
        )

    return app


@pytest.fixture
def proxy_port(server: Running, tmp_path: Path) -> Iterator[tuple[int, Serving]]:
    settings = {"client_user": "ann", "client_password": "secret", "client_root_path": "/styles"}
    serving = Serving(server.http, tmp_path / "cwd", **settings).wait_ready()
    port = free_ports(1)[0]
    config = uvicorn.Config(proxied(serving.port, "/styles"), port=port, log_level="error")
    proxy = uvicorn.Server(config)
    thread = threading.Thread(target=proxy.run, daemon=True)
    thread.start()
    try:
        yield port, serving
    finally:
        proxy.should_exit = proxy.force_exit = True
        thread.join(WAIT_S)
        serving.end()


def test_below_a_path_of_a_proxy_and_with_a_password(
    context: BrowserContext, proxy_port: tuple[int, Serving]
) -> None:
    port, serving = proxy_port
    assert serving.get("/config")[0] == 401
    assert serving.get("/health")[0] == 200

    page = context.new_page()
    page.goto(f"http://127.0.0.1:{port}/styles/")
    page.get_by_label("username").fill("ann")
    page.get_by_label("password").fill("secret")
    page.get_by_role("button", name="Login").click()
    page.get_by_label("invert", exact=True).check(force=True)
    choose(page, "a.png", png(noise(20, 30)))
    expect(page.locator("#facts")).to_contain_text("invert")
    name, file = downloaded(page, "Download PNG")
    assert (name, pixels(file).shape) == ("a-invert.png", (20, 30, 3))

    assert b"secret" not in serving.log_file.read_bytes()
    page.close()
    assert serving.stop() == 0
