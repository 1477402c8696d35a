"""Choice of providers, threads and runs at once; ONNX Runtime's errors in our words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from styleserve import runtime
from styleserve.errors import ConfigError, ModelError
from styleserve.probe import photo
from styleserve.runtime import (
    PROVIDERS,
    REFERENCE,
    Backend,
    Runtime,
    choose_backends,
    choose_providers,
)
from tests import tiny_models as tiny

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TENSORRT, OPENVINO = "TensorrtExecutionProvider", "OpenVINOExecutionProvider"


def install(monkeypatch: pytest.MonkeyPatch, *providers: str) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(providers))


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        ((CPU,), ("cpu",)),
        ((OPENVINO, CPU), ("openvino", "cpu")),
        ((TENSORRT, CUDA, CPU), ("cuda", "cpu")),
        ((CPU, OPENVINO, CUDA), ("cuda", "openvino", "cpu")),
        (("AzureExecutionProvider", CPU), ("cpu",)),
    ],
)
def test_auto_takes_the_best_that_starts_at_once(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    install(monkeypatch, *installed)

    assert choose_providers("auto") == choose_providers(" AUTO ") == chosen


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        ("cpu", ("cpu",)),
        ("cuda", ("cuda", "cpu")),
        ("tensorrt,cuda", ("tensorrt", "cuda", "cpu")),
        ("cuda,tensorrt", ("cuda", "tensorrt", "cpu")),
        (" CUDA , cpu,", ("cuda", "cpu")),
        ("cuda,cuda,cpu,cpu", ("cuda", "cpu")),
        ("cpu,cuda", ("cpu",)),  # the CPU runs every model, so nothing after it is used
        ("cuda,cpu,tensorrt", ("cuda", "cpu")),
    ],
)
def test_a_list_is_taken_in_its_order_up_to_cpu(
    monkeypatch: pytest.MonkeyPatch, setting: str, chosen: tuple[str, ...]
) -> None:
    install(monkeypatch, TENSORRT, CUDA, CPU)

    assert choose_providers(setting) == chosen


@pytest.mark.parametrize(
    ("setting", "missing"),
    [
        ("cuda", "cuda"),
        ("cpu,tensorrt,cuda", "tensorrt, cuda"),
        ("gpu", "gpu"),
        ("auto,cpu", "auto"),
        ("", "nothing"),
        (" , ", "nothing"),
    ],
)
def test_what_is_not_installed_is_refused_naming_what_is(
    monkeypatch: pytest.MonkeyPatch, setting: str, missing: str
) -> None:
    install(monkeypatch, OPENVINO, CPU)

    told = rf"{missing} cannot be used, installed are openvino, cpu; set STYLESERVE_PROVIDERS"
    with pytest.raises(ConfigError, match=told):
        choose_providers(setting)


@pytest.mark.parametrize(
    ("providers", "flags", "precision", "chosen"),
    [
        (("cpu",), "avx512_bf16", "auto", ["cpu fp32"]),
        (("openvino", "cpu"), "", "auto", ["openvino fp32", "cpu fp32"]),
        (("openvino", "cpu"), "amx_bf16", "auto", ["openvino bf16", "openvino fp32", "cpu fp32"]),
        (("openvino", "cpu"), "avx_vnni", "auto", ["openvino int8", "openvino fp32", "cpu fp32"]),
        (("openvino", "cpu"), "avx512_vnni", "int8", ["openvino int8"]),
        (("openvino", "cpu"), "avx512_bf16", "bf16", ["openvino bf16"]),
        (("openvino", "cpu"), "avx512_bf16", "fp32", ["openvino fp32", "cpu fp32"]),
        (("cuda", "cpu"), "", "auto", ["cuda tf32", "cuda fp32", "cpu fp32"]),
        (("cuda", "cpu"), "", "tf32", ["cuda tf32"]),
        (("tensorrt", "cuda", "cpu"), "", "fp16", ["tensorrt fp16"]),
    ],
)
def test_the_fastest_arithmetic_that_the_machine_has_comes_first(
    monkeypatch: pytest.MonkeyPatch,
    providers: tuple[str, ...],
    flags: str,
    precision: str,
    chosen: list[str],
) -> None:
    monkeypatch.setattr(runtime, "_cpu_flags", lambda: {"sse4_2", flags})

    backends = choose_backends(providers, precision)

    assert [str(backend) for backend in backends] == chosen
    assert all(backend.providers[-1] == "cpu" for backend in backends)  # for layers unknown to it


@pytest.mark.parametrize(
    ("providers", "precision"),
    [
        (("cpu",), "bf16"),
        (("openvino", "cpu"), "bf16"),
        (("openvino", "cpu"), "int8"),
        (("cuda", "cpu"), "fp16"),
    ],
)
def test_a_precision_that_cannot_be_had_is_refused_naming_those_that_can(
    monkeypatch: pytest.MonkeyPatch, providers: tuple[str, ...], precision: str
) -> None:
    monkeypatch.setattr(runtime, "_cpu_flags", set)

    told = rf"{precision} cannot be had on .*; set STYLESERVE_PRECISION to .*fp32 or auto"
    with pytest.raises(ConfigError, match=told):
        choose_backends(providers, precision)


def test_the_flags_of_this_cpu_are_read() -> None:
    assert {"flags", "processor"} & runtime._cpu_flags()


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
    monkeypatch.setattr(runtime, "_cpu_flags", lambda: {flag})
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
    assert options[TENSORRT]["trt_fp16_enable"] == fp16


def open_with(
    monkeypatch: pytest.MonkeyPatch, made: Runtime, runs_on: list[str], backend: Backend = REFERENCE
) -> dict[str, Any]:
    """Open a model with an ONNX Runtime that takes these providers; return what it was given."""
    given: dict[str, Any] = {}

    class Session:
        def __init__(self, path: str, sess_options: object, providers: object) -> None:
            given.update(path=path, sess_options=sess_options, providers=providers)

        def get_providers(self) -> list[str]:
            return runs_on

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    made.open(Path("folder/a-9.onnx"), backend)
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
    ],
)
def test_the_reason_is_one_short_line(text: str, told: str) -> None:
    assert runtime.reason(RuntimeError(text)).endswith(told)
    assert len(runtime.reason(RuntimeError(text))) <= 300
