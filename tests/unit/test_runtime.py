"""Threads, runs at once, and how a session is opened; ONNX Runtime's errors in our words."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper

from styleserve import backend, metadata, runtime
from styleserve.backend import ON_REQUEST, PROVIDERS, REFERENCE, Backend
from styleserve.errors import ModelError
from styleserve.probe import photo
from styleserve.runtime import Runtime
from tests import tiny_models as tiny
from tests.unit.test_backend import CPU, CUDA, OPENVINO, TENSORRT, install

INT8 = Backend(("cpu",), "int8")


@pytest.mark.parametrize(
    ("providers", "at_once"), [("cpu", 1), ("openvino", 1), ("cuda", 2), ("tensorrt", 2)]
)
def test_runs_at_once_follow_the_provider(
    monkeypatch: pytest.MonkeyPatch, providers: str, at_once: int
) -> None:
    install(monkeypatch, TENSORRT, CUDA, OPENVINO, CPU)

    made = Runtime.create(providers)

    assert made.concurrency == at_once
    assert [made.gate.acquire(blocking=False) for _ in range(at_once + 1)] == [True] * at_once + [
        False
    ]


def test_threads_follow_the_quota_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cpu_count", lambda: 3)

    assert Runtime.create("cpu").threads == 3
    assert Runtime.create("cpu", threads=5).threads == 5
    assert Runtime.create("cpu", concurrency=7).concurrency == 7


def test_the_session_gets_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_with(monkeypatch, Runtime.create("cpu", threads=3), [CPU])

    options = opened["sess_options"]
    assert opened["providers"] == [(CPU, {})]
    assert opened["enable_fallback"] is False  # else what fails on a GPU is repeated on the CPU
    assert options.log_severity_level == 4
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.use_env_allocators") == "1"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("precision", "flag", "file", "hint"),
    [
        ("fp32", "avx512_bf16", "a-9.onnx", "f32"),
        ("bf16", "avx512_bf16", "a-9.onnx", "bf16"),
        ("int8", "avx512_bf16", "a-9.int8", "bf16"),  # the layers that are not in 8 bits
        ("int8", "avx512_vnni", "a-9.int8", "f32"),
    ],
)
def test_openvino_gets_file_precision_and_threads_for_all_runs_at_once(
    monkeypatch: pytest.MonkeyPatch, precision: str, flag: str, file: str, hint: str
) -> None:
    monkeypatch.setattr(backend, "_cpu_flags", lambda: {flag})
    install(monkeypatch, OPENVINO, CPU)
    made = Runtime.create("openvino", threads=3, concurrency=2)
    opened = open_with(monkeypatch, made, [OPENVINO, CPU], Backend(("openvino", "cpu"), precision))

    assert opened["path"] == f"folder/{file}"
    (name, options), (second, _) = opened["providers"]
    assert (name, second) == (OPENVINO, CPU)
    assert options["device_type"] == "CPU"
    assert json.loads(options["load_config"])["CPU"] == {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": 6,
        "NUM_STREAMS": 2,
        "CPU_RUNTIME_CACHE_CAPACITY": str(runtime.KERNELS),
    }


@pytest.mark.parametrize(
    ("precision", "tf32", "fp16"), [("fp32", 0, False), ("tf32", 1, True), ("fp16", 1, True)]
)
def test_a_gpu_computes_in_fp32_only_if_told_so(
    monkeypatch: pytest.MonkeyPatch, precision: str, tf32: int, fp16: bool
) -> None:
    backend = Backend(("tensorrt", "cuda", "cpu"), precision)
    opened = open_with(monkeypatch, Runtime.create("cpu"), [TENSORRT, CUDA, CPU], backend)

    assert opened["sess_options"].log_severity_level == 3  # it tells why a provider is dropped
    options = dict(opened["providers"])
    assert options[CUDA]["use_tf32"] == tf32
    assert options[CUDA]["enable_cuda_graph"] == 0
    assert options[TENSORRT]["trt_fp16_enable"] == fp16


@pytest.mark.parametrize(
    ("provider", "precision", "is_halved"),
    [("cuda", "fp16", True), ("cuda", "tf32", False), ("tensorrt", "fp16", False)],
)
def test_cuda_gets_a_model_in_fp16_to_compute_in_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    provider: str,
    precision: str,
    is_halved: bool,
) -> None:
    path, made = tiny.save(tiny.residual(), tmp_path / "a-9.onnx"), Runtime.create("cpu")
    backend = Backend((provider, "cpu"), precision)
    opened = open_with(
        monkeypatch, made, [(PROVIDERS | ON_REQUEST)[provider], CPU], backend, path=path
    )

    assert isinstance(opened["path"], bytes) == is_halved
    assert is_halved or opened["path"] == str(path)


def test_a_session_that_is_to_run_as_a_graph_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made, backend = Runtime.create("cpu"), Backend(("cuda", "cpu"), "tf32")
    opened = open_with(monkeypatch, made, [CUDA, CPU], backend, as_graph=True)

    assert dict(opened["providers"])[CUDA]["enable_cuda_graph"] == 1


def open_with(
    monkeypatch: pytest.MonkeyPatch,
    made: Runtime,
    runs_on: list[str],
    backend: Backend = REFERENCE,
    *,
    as_graph: bool = False,
    path: Path = Path("folder/a-9.onnx"),
) -> dict[str, Any]:
    """Open a model with an ONNX Runtime that takes these providers; return what it was given."""
    given: dict[str, Any] = {}

    class Session:
        def __init__(self, path: str | bytes, sess_options: object, **others: object) -> None:
            given.update(path=path, sess_options=sess_options, **others)

        def get_providers(self) -> list[str]:
            return runs_on

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(runtime, "_is_made_of", lambda *_: True)
    made.open(path, backend, as_graph=as_graph)
    return given


@pytest.mark.parametrize(
    ("backend", "mend"),
    [(REFERENCE, "put the model's ONNX export here"), (Backend(("openvino", "cpu")), "=cpu to do")],
)
def test_a_file_that_cannot_be_loaded_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: Backend, mend: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no room")

    path = tiny.save(tiny.identity(), tmp_path / "a-9.onnx")
    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    with pytest.raises(ModelError, match=rf"a-9\.onnx: .* cannot load it: no room; .*{mend}"):
        Runtime.create("cpu").open(path, backend)


def test_a_file_in_8_bits_is_taken_with_the_model_that_it_was_made_of(tmp_path: Path) -> None:
    path, made = int8_of(tmp_path, tiny.invert()), Runtime.create("cpu", threads=1)

    (answer,) = made.open(path, INT8).run(None, {"image": np.full((1, 3, 4, 4), 9, np.float32)})

    assert (answer == 246).all()


@pytest.mark.parametrize("change", ["other", "unmarked", "damaged", "empty", "text"])
def test_another_file_in_8_bits_is_refused_with_what_to_do(tmp_path: Path, change: str) -> None:
    path = int8_of(tmp_path, tiny.invert())
    file, told = path.with_suffix(".int8"), "it was made of another a-9.onnx than this one"
    if change == "other":
        tiny.save(tiny.identity(), path)
    elif change == "unmarked":
        tiny.save(tiny.invert(), file)
    else:
        cut = file.read_bytes()[:-9]
        file.write_bytes({"damaged": cut, "empty": b"", "text": b"to do"}[change])
        told = "it is damaged or cut short"

    mend = f"remove it, or write it again with python -m styleserve.quantize {path}"
    with pytest.raises(ModelError) as caught:
        Runtime.create("cpu").open(path, INT8)
    assert str(caught.value) == f"{file}: {told}; {mend}"


def test_a_file_in_8_bits_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = int8_of(tmp_path, tiny.invert())
    path.with_suffix(".int8").unlink()
    path.with_suffix(".int8").mkdir()

    with pytest.raises(ModelError, match=r"a-9\.int8 cannot be read: Is a directory"):
        Runtime.create("cpu").open(path, INT8)


@pytest.mark.parametrize("gone", [".onnx", ".int8"])
def test_a_file_that_has_gone_is_named(tmp_path: Path, gone: str) -> None:
    path = int8_of(tmp_path, tiny.invert())
    path.with_suffix(gone).unlink()

    with pytest.raises(ModelError, match=rf"a-9\{gone}"):
        Runtime.create("cpu").open(path, INT8)


def int8_of(folder: Path, model: ModelProto) -> Path:
    """Save a model, and a file beside it that says it was made of it."""
    path = tiny.save(model, folder / "a-9.onnx")
    made = onnx.load(path)
    digest = sha256(path.read_bytes()).hexdigest()
    helper.set_model_props(made, {metadata.INT8_OF: digest})
    onnx.save(made, path.with_suffix(".int8"))
    return path


def test_a_dropped_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told = r"a-9\.onnx: asked for cuda, .* run on CPUExecutionProvider; .*STYLESERVE_PROVIDERS=cpu"
    with pytest.raises(ModelError, match=told):
        open_with(monkeypatch, Runtime.create("cpu"), [CPU], Backend(("cuda", "cpu")))


@pytest.mark.parametrize("name", ["cpu", "openvino"])
def test_an_installed_provider_opens_a_model_and_computes_the_same(
    tmp_path: Path, name: str
) -> None:
    if PROVIDERS[name] not in onnxruntime.get_available_providers():
        pytest.skip(f"ONNX Runtime is installed without {name}")
    path = tiny.save(tiny.invert(), tmp_path / "a.onnx")
    pictures = photo(40, 60) + np.float32(0.03)  # half precision would not keep this

    backend = REFERENCE if name == "cpu" else Backend((name, "cpu"))
    session = Runtime.create(name, threads=1).open(path, backend)
    (answer,) = session.run(None, {"image": pictures})

    assert session.get_providers()[0] == PROVIDERS[name]
    np.testing.assert_allclose(answer, 255 - pictures, atol=1e-3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[ONNXRuntimeError] : 6 : FAIL : no room\nat line 2", "6 : FAIL : no room"),
        ("  plain words  ", "plain words"),
        ("x" * 1000, "x" * 300),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: /a/b.cc:136 B::B(X&) "
            "/a/c.cc:28 auto f() [with T = int] [OpenVINO-EP] Exception while Reading network: "
            "Check 'false' failed at src/frontend.cpp:221:\nFrontEnd API failed with "
            "GeneralFailure:\nOpenVINO does not support the following ONNX operations: X\n\n\n",
            "OpenVINO does not support the following ONNX operations: X",
        ),
        (
            "/a/cuda_call.cc:129 std::conditional_t<T, void> f(E, char*) [with E = cudaError; T = "
            "true] /a/cuda_call.cc:121 f(E, char*) [with E = cudaError] CUDA failure 35: CUDA "
            "driver version is insufficient ; GPU=-1 ; hostname=vm ; expr=f(id); ",
            "CUDA failure 35: CUDA driver version is insufficient",
        ),
    ],
)
def test_the_reason_is_one_short_line(text: str, told: str) -> None:
    assert runtime.reason(RuntimeError(text)).endswith(told)
    assert len(runtime.reason(RuntimeError(text))) <= 300
