"""StyleModel on tiny models with known answers: sizes, values, refusals, threads."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from styleserve import convert, metadata
from styleserve.backend import REFERENCE, Backend
from styleserve.errors import InferenceError, ModelError
from styleserve.model import MaskModel, StyleModel, load_model
from styleserve.network import Network
from styleserve.probe import Tensor
from styleserve.runtime import Runtime
from tests import tiny_models as tiny
from tests.pictures import bright_box, corners, disc, gap, marked, noise, plain

RUNTIME = Runtime.create("cpu", threads=1)
SIDES = st.integers(1, 300)
SIZES = [(1, 1), (1, 300), (300, 1), (2, 3), (31, 33), (32, 32), (227, 301), (480, 640)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StyleModel]:
    folder = tmp_path_factory.mktemp("models")
    made = {
        "identity": tiny.identity(),
        "invert": tiny.invert(),
        "stride": tiny.stride_two(),
        "fixed": tiny.identity((48, 32)),
    }
    return {name: load(model, folder, name) for name, model in made.items()}


def load(made: ModelProto, folder: Path, name: str = "made") -> StyleModel:
    return StyleModel(Network(tiny.save(made, folder / f"{name}-9.onnx"), RUNTIME))


def constant(value: float) -> ModelProto:
    """Make a model that gives this value for every pixel."""
    nodes = [tiny.node("Mul", ["image", "nil"], "zero"), tiny.node("Add", ["zero", "value"])]
    return tiny.model(nodes, size=None, nil=np.array([0.0]), value=np.array([float(value)]))


def with_label(made: ModelProto, key: str, value: str) -> ModelProto:
    helper.set_model_props(made, {key: value})
    return made


# --- sizes


@pytest.mark.parametrize("name", ["identity", "stride", "fixed"])
@pytest.mark.parametrize("max_side", [0, 1, 20, 1024])
def test_the_answer_has_the_size_of_the_picture(
    models: dict[str, StyleModel], name: str, max_side: int
) -> None:
    for size in SIZES:
        styled = models[name](noise(*size), max_side)

        assert styled.shape == (*size, 3)
        assert styled.dtype == np.uint8


@given(height=SIDES, width=SIDES)
def test_a_picture_that_is_not_scaled_comes_back_exactly(
    models: dict[str, StyleModel], height: int, width: int
) -> None:
    picture = noise(height, width)

    assert (models["identity"](picture, 0) == picture).all()
    assert (models["invert"](picture, 300) == 255 - picture).all()


@pytest.mark.parametrize("size", [(48, 32), (48, 20), (30, 32), (48, 1)])
def test_a_fixed_size_that_fits_is_not_scaled(
    models: dict[str, StyleModel], size: tuple[int, int]
) -> None:
    assert (models["fixed"](noise(*size), 0) == noise(*size)).all()


def test_a_fixed_size_keeps_circles_and_corners(tmp_path: Path) -> None:
    model = load(tiny.identity((224, 224)), tmp_path)

    height, width = bright_box(model(disc(200, 640), 0))
    styled = model(marked(200, 640), 0)

    assert abs(height - width) <= 8
    assert gap(corners(styled), corners(marked(200, 640))) <= 8


def test_a_multiple_is_found_by_probing(models: dict[str, StyleModel]) -> None:
    assert models["stride"].describe()["multiple"] == 4
    assert models["identity"].describe()["multiple"] == 1


def test_a_multiple_is_taken_from_the_file(tmp_path: Path) -> None:
    labelled = with_label(tiny.identity(), metadata.SIZE_MULTIPLE, "8")

    assert load(labelled, tmp_path).describe()["multiple"] == 8


@pytest.mark.parametrize("told", ["abc", "0", "-4", "1.5", "9999"])
def test_a_senseless_multiple_in_the_file_is_refused(tmp_path: Path, told: str) -> None:
    with pytest.raises(ModelError, match="multiple"):
        load(with_label(tiny.identity(), metadata.SIZE_MULTIPLE, told), tmp_path)


def test_the_network_sees_the_picture_up_to_max_side(tmp_path: Path) -> None:
    runtime = spying()
    model = StyleModel(Network(tiny.save(tiny.stride_two(), tmp_path / "a.onnx"), runtime))

    seen = []
    for max_side in (0, 200, 100):
        model(noise(90, 201), max_side)
        seen.append(runtime.shapes[-1])

    assert seen == [(1, 3, 92, 204), (1, 3, 92, 200), (1, 3, 48, 100)]


# --- values


def test_red_and_blue_rows_and_columns_are_in_order(tmp_path: Path) -> None:
    picture = marked(60, 90)

    assert (load(tiny.swap_red_blue(), tmp_path)(picture, 0) == picture[..., ::-1]).all()


@pytest.mark.parametrize(
    ("value", "pixels"),
    [
        *((-1e30, {0}), (-1e10, {0}), (-300, {0}), (-0.6, {0}), (0.4, {0}), (0.6, {1})),
        *((127.2, {127}), (254.4, {254}), (254.6, {255}), (255.4, {255}), (256, {255})),
        *((65_537, {255}), (1e9, {255}), (3e9, {255}), (1e30, {255})),
        *((0.5, {0, 1}), (1.5, {1, 2}), (253.5, {253, 254}), (254.5, {254, 255})),
    ],
)
def test_values_are_rounded_and_clipped(tmp_path: Path, value: float, pixels: set[int]) -> None:
    styled = load(constant(value), tmp_path)(plain(5, 40), 0)

    assert set(np.unique(styled)) <= pixels


@pytest.mark.parametrize(
    ("operator", "shift"), [("Reciprocal", 9), ("Log", 9), ("Log", 10)], ids=["inf", "-inf", "nan"]
)
def test_one_value_that_is_no_number_fails_alone(tmp_path: Path, operator: str, shift: int) -> None:
    """Compute f(x + brightest - shift): no number at 0 in a picture whose brightest value is 9."""
    nodes = [
        tiny.node("ReduceMax", ["image"], "brightest", axes=[0, 1, 2, 3], keepdims=1),
        tiny.node("Add", ["image", "brightest"], "sum"),
        tiny.node("Sub", ["sum", "shift"], "shifted"),
        tiny.node(operator, ["shifted"]),
    ]
    model = load(tiny.model(nodes, size=None, shift=np.array([float(shift)])), tmp_path)
    bad = plain(40, 40, 9)
    bad[17, 23, 1] = 0

    with pytest.raises(InferenceError, match="no numbers at 40x40"):
        model(bad, 0)
    assert model(plain(40, 40, 9), 0).shape == (40, 40, 3)


def test_a_network_that_fails_is_our_fault_in_one_line(tmp_path: Path) -> None:
    runtime = spying()
    model = StyleModel(Network(tiny.save(tiny.identity(), tmp_path / "a.onnx"), runtime))
    runtime.before_run.append(fail)

    with pytest.raises(InferenceError, match=r"^it failed at 50x40: .*out of memory$"):
        model(noise(40, 50), 0)


def fail() -> None:
    raise RuntimeError("[ONNXRuntimeError] : 6 : FAIL : out of memory\nmore")


# --- what a model file may be


def two_outputs() -> ModelProto:
    made = tiny.identity((32, 32))
    made.graph.node.append(tiny.node("Identity", ["image"], "second"))
    made.graph.output.append(
        helper.make_tensor_value_info("second", TensorProto.FLOAT, [1, 3, 32, 32])
    )
    return made


def two_pictures() -> ModelProto:
    made = tiny.model([tiny.node("Add", ["image", "second"])], size=(32, 32))
    made.graph.input.append(
        helper.make_tensor_value_info("second", TensorProto.FLOAT, [1, 3, 32, 32])
    )
    return made


def shaped(*shape: int | str) -> ModelProto:
    made = tiny.identity()
    for value in (made.graph.input[0], made.graph.output[0]):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))
    return made


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (tiny.two_inputs(), r"image tensor\(float\) \[1, 3, 32, 32\], other tensor\(float\) \[1\]"),
        (two_pictures(), r"second tensor\(float\)"),
        (two_outputs(), r"second tensor\(float\)"),
        (tiny.uint8_input(), r"image tensor\(uint8\)"),
        (tiny.channels_last(), r"\[1, 32, 32, 3\]"),
        (shaped(1, 2, "h", "w"), r"styled tensor\(float\) \[1, 2, 'h', 'w'\]"),
        (shaped(4, 3, 32, 32), r"\[4, 3, 32, 32\]"),
        (shaped(1, 4, "h", "w"), r"\[1, 4, 'h', 'w'\]"),
        (shaped(3, 32, 32), r"\[3, 32, 32\]"),
    ],
)
def test_another_signature_is_refused_naming_it(
    tmp_path: Path, made: ModelProto, found: str
) -> None:
    with pytest.raises(ModelError, match=rf"made-9\.onnx: a style model has .*{found}"):
        load(made, tmp_path)


@pytest.mark.parametrize("batch", [1, "n"])
@pytest.mark.parametrize("channels", [3, "c"])
def test_open_batch_and_channels_are_taken(
    tmp_path: Path, batch: int | str, channels: int | str
) -> None:
    model = load(shaped(batch, channels, "h", "w"), tmp_path)

    assert (model(noise(40, 50), 0) == noise(40, 50)).all()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (tiny.half_size(), "differ in size"),
        (tiny.odd_only(), "differ in size"),
        (tiny.half_size((32, 32)), r"a 32x32 picture|cannot load"),
        (tiny.mask(), "it answered \\(1, 1, 256, 256\\)"),
        (shaped(1, 3, 32, "w"), ""),
    ],
)
def test_a_model_that_does_not_work_is_refused(tmp_path: Path, made: ModelProto, told: str) -> None:
    with pytest.raises(ModelError, match=rf"made-9\.onnx: .*({told})"):
        load(made, tmp_path)


@pytest.mark.parametrize("size", [None, (32, 32)])
def test_a_model_that_gives_no_numbers_is_refused(
    tmp_path: Path, size: tuple[int, int] | None
) -> None:
    with pytest.raises(ModelError, match=r"made-9\.onnx: .*no numbers"):
        load(tiny.not_a_number(size), tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git-LFS pointer"),
        (tiny.invert().SerializeToString()[:-40], "damaged or cut short"),
    ],
    ids=["empty", "pointer", "truncated"],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(
    tmp_path: Path, content: bytes, told: str
) -> None:
    """`test_convert` has all kinds of files."""
    path = tmp_path / "bad-9.onnx"
    path.write_bytes(content)

    with pytest.raises(ModelError, match=rf"bad-9\.onnx.* {told}") as caught:
        StyleModel(Network(path, RUNTIME))

    assert_readable(caught.value)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (tiny.unknown_operator(), "Swirl"),
        (tiny.identity(opset=99), "IR version"),
    ],
)
def test_a_model_for_another_runtime_is_refused_naming_what_it_needs(
    tmp_path: Path, made: ModelProto, told: str
) -> None:
    with pytest.raises(ModelError, match=rf"made-9\.onnx: .*{told}") as caught:
        load(made, tmp_path)

    assert_readable(caught.value)


@pytest.mark.parametrize("folder", [True, False])
def test_a_path_without_a_file_is_refused(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "bad-9.onnx"
    if folder:
        path.mkdir()

    with pytest.raises(ModelError, match=r"bad-9\.onnx cannot be read") as caught:
        StyleModel(Network(path, RUNTIME))

    assert_readable(caught.value)


def assert_readable(error: ModelError) -> None:
    (problem,) = error.problems
    assert "\n" not in problem
    assert len(problem) < 500
    assert ".cc" not in problem


# --- describe


def test_describe_tells_sizes_and_provider(models: dict[str, StyleModel]) -> None:
    assert models["stride"].describe() == {
        "kind": "style",
        "description": "",
        "size": "any",
        "multiple": 4,
        "provider": "CPUExecutionProvider",
        "precision": "fp32",
        "psnr_db": {},
        "opset": "unknown",
        "source_sha256": "unknown",
    }
    assert models["fixed"].describe()["size"] == "32x48"  # width first, as people say it


def test_describe_tells_where_a_converted_model_comes_from(tmp_path: Path) -> None:
    source, target = tmp_path / "raw.onnx", tmp_path / "served.onnx"
    convert.convert(tiny.save(tiny.invert((32, 32)), source), target, 18, "like a negative")

    details = StyleModel(Network(target, RUNTIME)).describe()

    assert details["description"] == "like a negative"
    assert details["opset"] == "18"
    assert details["source_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()


# --- masks


def mask_of(picture: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Tell what `tiny.mask` gives."""
    return np.asarray(picture.mean(axis=2) / 255)


@pytest.mark.parametrize("size", SIZES)
def test_a_network_with_one_channel_gives_a_mask_of_the_pictures_size(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    mask = load_model(tiny.save(tiny.mask(), tmp_path / "a.onnx"), RUNTIME)

    found = mask(noise(*size), 0)

    assert isinstance(mask, MaskModel)
    assert found.dtype == np.float32
    assert found.shape == size
    assert np.abs(found - mask_of(noise(*size))).max() < 1e-5


@pytest.mark.parametrize("size", [None, (48, 32)])
def test_a_mask_works_at_its_own_size_and_stays_within_0_and_1(
    tmp_path: Path, size: tuple[int, int] | None
) -> None:
    mask = load_model(tiny.save(tiny.mask(size), tmp_path / "a.onnx"), RUNTIME)
    picture = np.repeat(np.repeat(noise(10, 12), 20, axis=0) // 128 * 255, 20, axis=1)

    found = mask(picture, 40)

    assert found.shape == (200, 240)
    assert found.min() >= 0
    assert found.max() <= 1
    assert np.abs(found - mask_of(picture)).mean() < 0.15
    assert mask.describe()["kind"] == "mask"


def test_a_mask_beyond_0_to_1_is_refused(tmp_path: Path) -> None:
    nodes = [tiny.node("ReduceMean", ["image"], axes=[1], keepdims=1)]
    wide = tiny.save(tiny.model(nodes, size=None, channels=1), tmp_path / "wide.onnx")

    with pytest.raises(ModelError, match=r"wide.onnx: it answered values from .*; a mask has"):
        load_model(wide, RUNTIME)


def test_a_network_with_three_channels_is_a_style(tmp_path: Path) -> None:
    model = load_model(tiny.save(tiny.identity(), tmp_path / "a.onnx"), RUNTIME)

    assert isinstance(model, StyleModel)


# --- threads


def test_many_sizes_at_once_equal_one_by_one(models: dict[str, StyleModel]) -> None:
    sizes = [(17 + 9 * number, 200 - 7 * number) for number in range(24)]
    one_by_one = [models["stride"](noise(*size), 150) for size in sizes]

    with ThreadPoolExecutor(8) as pool:
        at_once = list(pool.map(lambda size: models["stride"](noise(*size), 150), sizes))

    assert all((one == other).all() for one, other in zip(one_by_one, at_once, strict=True))


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_no_more_runs_at_once_than_allowed(tmp_path: Path, cap: int) -> None:
    """Two models share the cap, as all models of a server do."""
    runtime = spying(cap)
    paths = [tiny.save(tiny.identity(), tmp_path / f"{name}.onnx") for name in "ab"]
    both = [StyleModel(Network(path, runtime)) for path in paths]
    full, go_on, lock = threading.Event(), threading.Event(), threading.Lock()
    running: list[int] = [0]
    most: list[int] = [0]

    def wait() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] == cap:
                full.set()
        assert go_on.wait(10)
        with lock:
            running[0] -= 1

    runtime.before_run.append(wait)
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(both[number % 2], noise(32, 32), 0) for number in range(8)]
        assert full.wait(10)
        gate_is_open = runtime.gate.acquire(blocking=False)
        go_on.set()
        answers = [job.result(10) for job in jobs]

    assert not gate_is_open
    assert most[0] == cap
    assert all((answer == noise(32, 32)).all() for answer in answers)
    assert runtime.gate.acquire(blocking=False)  # all places are free again


def test_a_failed_run_gives_its_place_back(tmp_path: Path) -> None:
    runtime = spying()
    model = StyleModel(Network(tiny.save(tiny.identity(), tmp_path / "a.onnx"), runtime))
    runtime.before_run.append(fail)
    with pytest.raises(InferenceError):
        model(noise(40, 50), 0)
    runtime.before_run.clear()

    assert (model(noise(40, 50), 0) == noise(40, 50)).all()


@dataclass(frozen=True)
class SpyRuntime(Runtime):
    """Notes what every session is asked, and does something before."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    before_run: list[Callable[[], None]] = field(default_factory=list)
    opened: list[Path] = field(default_factory=list)

    def open(self, model: Path, backend: Backend, **_: bool) -> Any:  # noqa: ANN401  it has no types
        self.opened.append(model)
        return SpySession(super().open(model, REFERENCE), self)


def spying(cap: int = 1) -> SpyRuntime:
    return SpyRuntime((REFERENCE,), 1, cap, threading.BoundedSemaphore(cap))


class SpySession:
    def __init__(self, session: onnxruntime.InferenceSession, runtime: SpyRuntime) -> None:
        self._session = session
        self._runtime = runtime

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def run(
        self, outputs: list[str], inputs: dict[str, Tensor], options: object = None
    ) -> list[Tensor]:
        self._runtime.shapes.extend(tensor.shape for tensor in inputs.values())
        for action in self._runtime.before_run:
            action()
        return list(self._session.run(outputs, inputs))
