"""The API contract on a running server."""

import base64
import gzip
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from tritonclient.utils import InferenceServerException

from styleserve import image as pictures
from styleserve.errors import RequestError
from styleserve.image import Image
from styleserve.remote import Options, Remote
from tests.e2e.conftest import Launch
from tests.e2e.running import ROOT, Running, json_body

INVERT = "/v2/models/invert/infer"


def test_every_model_is_ready_and_listed(server: Running) -> None:
    names = ["catalog", "fixed-size", "identity", "invert"]
    assert [server.get(f"/v2/models/{name}/ready")[0] for name in names] == [200] * 4
    listed = server.infer("catalog", "names").tolist()
    assert [name.decode() for name in listed] == names[1:]


def test_metadata_begins_with_the_image(server: Running) -> None:
    metadata = json.loads(server.get("/v2/models/invert")[1])
    image = {"name": "image", "datatype": "UINT8", "shape": [-1, -1, 3]}
    assert metadata["inputs"][0] == image
    assert metadata["outputs"][0] == image | {"name": "styled_image"}
    assert metadata["versions"] == ["1"]
    optional = {(item["name"], item["datatype"]) for item in metadata["inputs"][1:]}
    assert optional == {
        ("strength", "FP32"),
        ("keep_color", "BOOL"),
        ("max_side", "INT32"),
        ("encoded", "BYTES"),
    }


@pytest.mark.parametrize("model", ["catalog", "fixed-size", "identity", "invert"])
def test_nobody_is_told_where_the_server_has_its_files(server: Running, model: str) -> None:
    config = server.get(f"/v2/models/{model}/config")[1].decode()
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        same = str(client.get_model_config(model))
    metadata = server.get(f"/v2/models/{model}")[1].decode()
    for told in (config, same, metadata):
        assert f'"{model}"' in told
        assert str(server.cache) not in told
        assert "styleserve-" not in told


@pytest.mark.parametrize("path", [INVERT, "/v2/models/invert/versions/1/infer"])
def test_query_json_is_answered(server: Running, path: str) -> None:
    status, body = server.post(path, (ROOT / "query.json").read_text())
    assert status == 200
    (output,) = json.loads(body)["outputs"]
    assert (output["name"], output["shape"]) == ("styled_image", [5, 5, 3])
    assert output["data"] == [0] * 75


def test_catalog_needs_no_input_and_tells_details(server: Running) -> None:
    status, body = server.post("/v2/models/catalog/infer", '{"inputs":[]}')
    outputs = {item["name"]: item["data"] for item in json.loads(body)["outputs"]}
    details = dict(zip(outputs["names"], map(json.loads, outputs["details"]), strict=True))
    assert status == 200
    assert details["invert"]["size"] == "any"
    assert details["fixed-size"]["size"] == "224x224"
    assert details["invert"]["kind"] == "style"
    assert details["invert"]["provider"].endswith("ExecutionProvider")


@pytest.mark.parametrize("model", ["identity", "fixed-size"])
def test_rows_columns_and_channels_keep_their_places(
    server: Running, photo: Image, model: str
) -> None:
    styled = server.infer(model, image=photo).astype(int)
    middle = styled[8:-8, 8:-8] - photo[8:-8, 8:-8]
    assert styled.shape == photo.shape
    # The fixed model works on 224 pixels: edges get soft, planes stay where they are.
    assert np.abs(np.median(middle, axis=(0, 1))).max() <= (0 if model == "identity" else 2)
    assert np.abs(middle[..., :2]).max() <= (0 if model == "identity" else 8)


def test_http_grpc_and_json_agree(server: Running, photo: Image) -> None:
    status, body = server.post(INVERT, json_body(photo))
    from_json = np.array(json.loads(body)["outputs"][0]["data"], np.uint8).reshape(photo.shape)
    assert status == 200
    assert np.array_equal(from_json, 255 - photo)
    assert np.array_equal(server.infer("invert", image=photo), 255 - photo)
    assert np.array_equal(server.infer_grpc("invert", image=photo), 255 - photo)


def test_generic_client_takes_first_input_and_first_output(server: Running, photo: Image) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
        metadata = client.get_model_metadata("invert")
        first = metadata["inputs"][0]
        tensor = triton.InferInput(first["name"], photo.shape, first["datatype"])
        tensor.set_data_from_numpy(photo)
        answer = client.infer("invert", [tensor]).as_numpy(metadata["outputs"][0]["name"])
    assert np.array_equal(answer, 255 - photo)


def test_options(server: Running, photo: Image) -> None:
    inverted = np.invert(photo)
    half = server.infer("invert", image=photo, strength=0.5)
    colour = server.infer("invert", image=photo, keep_color=True)
    small = server.infer("invert", image=photo, max_side=40)
    assert np.array_equal(half, pictures.blend(photo, inverted, 0.5))
    assert np.array_equal(server.infer("invert", image=photo, strength=0.0), photo)
    assert np.array_equal(colour, pictures.keep_color(inverted, photo))
    assert small.shape == photo.shape
    assert not np.array_equal(small, inverted)
    assert abs(small.astype(int) - inverted).mean() < 40


sizes = st.integers(1, 90)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    height=sizes,
    width=sizes,
    model=st.sampled_from(["identity", "invert", "fixed-size"]),
    strength=st.floats(0, 1, width=32),
    keep_color=st.booleans(),
    max_side=st.integers(1, 1024),
)
def test_any_size_and_option_gives_the_same_size_twice(
    server: Running,
    height: int,
    width: int,
    model: str,
    strength: float,
    keep_color: bool,
    max_side: int,
) -> None:
    image = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)
    inputs: dict[str, object] = {
        "image": image,
        "strength": strength,
        "keep_color": keep_color,
        "max_side": max_side,
    }
    first = server.infer(model, "styled_image", **inputs)
    assert first.shape == image.shape
    assert first.dtype == np.uint8
    assert np.array_equal(first, server.infer(model, "styled_image", **inputs))


def test_mixed_sizes_at_once_equal_one_by_one(server: Running) -> None:
    random = np.random.default_rng(1)
    images = [random.integers(0, 256, (7 + 13 * n, 200 - 7 * n, 3), np.uint8) for n in range(24)]
    models = ["invert", "identity", "fixed-size"] * 8
    alone = [server.infer(model, image=image) for model, image in zip(models, images, strict=True)]
    with ThreadPoolExecutor(24) as pool:
        calls = [
            pool.submit(server.infer, model, image=image)
            for model, image in zip(models, images, strict=True)
        ]
    assert all(np.array_equal(one, call.result()) for one, call in zip(alone, calls, strict=True))


def _png(image: Image) -> bytes:
    file = io.BytesIO()
    Pillow.fromarray(image).save(file, "PNG")
    return file.getvalue()


def _pixels(file: bytes) -> Image:
    return np.asarray(Pillow.open(io.BytesIO(file)))


def test_file_in_file_out(server: Running, photo: Image) -> None:
    (answer,) = server.infer("invert", "styled_encoded", encoded=_png(photo))
    assert answer.startswith(b"\x89PNG")
    assert np.array_equal(_pixels(answer), 255 - photo)


def test_file_with_zero_bytes_at_its_end_arrives_whole(server: Running) -> None:
    bitmap = io.BytesIO()
    Pillow.fromarray(np.zeros((4, 4, 3), np.uint8)).save(bitmap, "BMP")
    assert bitmap.getvalue().endswith(b"\0" * 12)
    (answer,) = server.infer("invert", "styled_encoded", encoded=bitmap.getvalue())
    assert (_pixels(answer) == 255).all()


def test_base64_in_base64_out(server: Running, photo: Image) -> None:
    text = base64.b64encode(_png(photo)).decode()
    inputs = [{"name": "encoded", "shape": [1], "datatype": "BYTES", "data": [text]}]
    status, body = server.post(INVERT, json.dumps({"inputs": inputs}))
    (output,) = json.loads(body)["outputs"]
    assert status == 200
    assert output["name"] == "styled_encoded"
    assert np.array_equal(_pixels(base64.b64decode(output["data"][0])), 255 - photo)


def test_phone_photo_comes_back_upright(server: Running, photo: Image) -> None:
    file, exif = io.BytesIO(), Pillow.Exif()
    exif[0x0112] = 6
    Pillow.fromarray(photo).save(file, "JPEG", exif=exif, quality=95, subsampling=0)
    (answer,) = server.infer("identity", "styled_encoded", encoded=file.getvalue())
    upright = np.rot90(photo, -1)
    assert _pixels(answer).shape == upright.shape
    assert abs(_pixels(answer).astype(int) - upright).mean() < 3
    assert Pillow.open(io.BytesIO(answer)).getexif().get(0x0112, 1) == 1


def _inputs(*items: tuple[str, list[int], str, list[object]]) -> str:
    keys = ("name", "shape", "datatype", "data")
    return json.dumps({"inputs": [dict(zip(keys, item, strict=True)) for item in items]})


PIXEL: tuple[str, list[int], str, list[object]] = ("image", [1, 1, 3], "UINT8", [1, 2, 3])
FILE: tuple[str, list[int], str, list[object]] = ("encoded", [1], "BYTES", ["bm9uZQ=="])

CALLER_FAULTS = {
    "nothing": (_inputs(), "exactly one of the inputs image .* and encoded"),
    "both": (_inputs(PIXEL, FILE), "exactly one of the inputs"),
    "strength": (_inputs(PIXEL, ("strength", [1], "FP32", [1.5])), "strength .* 1.5"),
    "negative": (_inputs(PIXEL, ("strength", [1], "FP32", [-0.1])), "strength .* -0.1"),
    "max_side": (_inputs(PIXEL, ("max_side", [1], "INT32", [0])), "max_side .* got 0"),
    "too large": (_inputs(PIXEL, ("max_side", [1], "INT32", [5000])), "at most 1024 .* got 5000"),
    "no pixels": (_inputs(("image", [0, 5, 3], "UINT8", [])), "at least one pixel"),
    "no file": (_inputs(("encoded", [1], "BYTES", ["not a picture"])), "PNG"),
    "wrong file": (_inputs(FILE), "PNG"),
    "four channels": (_inputs(("image", [1, 1, 4], "UINT8", [1, 2, 3, 4])), "shape"),
    "batch": (_inputs(("image", [1, 1, 1, 3], "UINT8", [1, 2, 3])), "shape"),
    "dtype": (_inputs(("image", [1, 1, 3], "FP32", [1, 2, 3])), "UINT8"),
    "two strengths": (_inputs(PIXEL, ("strength", [2], "FP32", [1, 1])), "shape"),
    "unknown input": (_inputs(PIXEL, ("colour", [1], "FP32", [1])), "colour"),
}


@pytest.mark.parametrize(("body", "reason"), CALLER_FAULTS.values(), ids=CALLER_FAULTS)
def test_the_callers_fault_is_400_with_one_line(server: Running, body: str, reason: str) -> None:
    status, answer = server.post(INVERT, body)
    error = json.loads(answer)["error"]
    assert status == 400, error
    assert re.search(reason, error), error
    assert "Traceback" not in error
    assert "\n" not in error
    assert ".py" not in error


def test_wrong_output_for_an_input_is_refused(server: Running) -> None:
    body = json.loads(_inputs(PIXEL)) | {"outputs": [{"name": "styled_encoded"}]}
    status, answer = server.post(INVERT, json.dumps(body))
    assert status == 400
    assert b"styled_image" in answer


def test_unknown_model_is_404(server: Running) -> None:
    assert server.post("/v2/models/none/infer", _inputs(PIXEL))[0] == 404


def test_unknown_name_in_the_catalog_is_refused(server: Running) -> None:
    with pytest.raises(InferenceServerException, match="'none' is not served here, these are"):
        server.infer("catalog", "names", name=b"none")


def test_the_callers_fault_is_no_error_in_our_log_and_counted_in_metrics(server: Running) -> None:
    pattern = rb'styleserve_request_failure\{model="invert",reason="caller"\} (\d+)'

    def count() -> int:
        (number,) = re.findall(pattern, server.get("/metrics", server.metrics)[1])
        return int(number)

    before = count()
    server.post(INVERT, _inputs(("encoded", [1], "BYTES", ["x" * 50])))
    assert count() == before + 1
    assert server.messages("ERROR") == []
    assert server.messages("WARNING") == []


def test_picture_beyond_the_pixel_limit_is_refused(server: Running) -> None:
    with pytest.raises(InferenceServerException, match=r"8001x6250 = 50,006,250 pixels, at most"):
        server.infer("invert", image=np.zeros((6250, 8001, 3), np.uint8))


def test_gzip_both_ways(server: Running, photo: Image) -> None:
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    status, body = server.post(INVERT, gzip.compress(json_body(photo).encode()), headers)
    data = json.loads(gzip.decompress(body))["outputs"][0]["data"]
    assert status == 200
    assert np.array_equal(np.array(data, np.uint8).reshape(photo.shape), 255 - photo)


@pytest.mark.parametrize("mebibytes", [5, 60, 128])
def test_large_json_body(server: Running, mebibytes: int) -> None:
    width = 1000
    height = -(-(mebibytes << 20) // (4 * 3 * width))
    body = (
        f'{{"inputs":[{{"name":"image","shape":[{height},{width},3],"datatype":"UINT8","data":['
        + ",".join(["200"] * (height * width * 3))
        + ']},{"name":"max_side","shape":[1],"datatype":"INT32","data":[32]}]}'
    )
    assert len(body) >= mebibytes << 20
    headers = {"Accept-Encoding": "gzip"}
    status, answer = server.post("/v2/models/invert/infer", body, headers)
    assert status == 200
    assert gzip.decompress(answer).count(b"55") == height * width * 3


def test_answers_of_a_repeated_request_come_from_the_cache(
    launch: Launch, tiny_folder: Path, photo: Image
) -> None:
    running = launch(tiny_folder, cache_mb=16).wait_ready()
    arrays = [running.infer("invert", image=photo) for _ in range(3)]
    files = [running.infer("invert", "styled_encoded", encoded=_png(photo)) for _ in range(2)]
    metrics = running.get("/metrics", running.metrics)[1].decode()
    assert all(np.array_equal(answer, 255 - photo) for answer in arrays)
    assert files[0] == files[1]
    assert 'styleserve_cache_hit{model="invert"} 3\n' in metrics, metrics
    assert 'styleserve_cache_miss{model="invert"} 2\n' in metrics, metrics


def test_what_is_refused_once_is_refused_again_with_a_cache(
    launch: Launch, tiny_folder: Path
) -> None:
    running = launch(tiny_folder, cache_mb=16).wait_ready()
    wrong = _inputs(PIXEL, ("strength", [1], "FP32", [7]))
    answers = [running.post(INVERT, wrong) for _ in range(4)]
    assert answers == [answers[0]] * 4
    assert answers[0][0] == 400
    assert b"strength must be from 0" in answers[0][1]


def test_our_own_client(server: Running, photo: Image) -> None:
    remote = Remote(f"http://127.0.0.1:{server.http}")
    assert remote.is_ready()
    assert [style.name for style in remote.styles()] == ["fixed-size", "identity", "invert"]
    assert np.array_equal(remote.stylise(photo, "invert"), 255 - photo)
    assert np.array_equal(remote.stylise(photo, "invert", Options(strength=0)), photo)
    assert np.array_equal(_pixels(remote.stylise_file(_png(photo), "invert")), 255 - photo)
    with pytest.raises(RequestError, match="'none'"):
        remote.stylise(photo, "none")
    with pytest.raises(RequestError, match="strength"):
        remote.stylise(photo, "invert", Options(strength=2))
