"""Which providers and precisions are taken, of those that are installed and that the CPU has."""

import onnxruntime
import pytest

from styleserve import backend
from styleserve.backend import choose_backends, choose_providers
from styleserve.errors import ConfigError

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
        (("cuda", "cpu"), "", "auto", ["cuda fp16", "cuda tf32", "cuda fp32", "cpu fp32"]),
        (("cuda", "cpu"), "", "fp16", ["cuda fp16"]),
        (("cuda", "cpu"), "", "tf32", ["cuda tf32"]),
        (("tensorrt", "cuda", "cpu"), "", "fp16", ["tensorrt fp16", "cuda fp16"]),
    ],
)
def test_the_fastest_arithmetic_that_the_machine_has_comes_first(
    monkeypatch: pytest.MonkeyPatch,
    providers: tuple[str, ...],
    flags: str,
    precision: str,
    chosen: list[str],
) -> None:
    monkeypatch.setattr(backend, "_cpu_flags", lambda: {"sse4_2", flags})

    backends = choose_backends(providers, precision)

    assert [str(made) for made in backends] == chosen
    assert all(made.providers[-1] == "cpu" for made in backends)  # for layers unknown to it


@pytest.mark.parametrize(
    ("providers", "precision"),
    [
        (("cpu",), "bf16"),
        (("openvino", "cpu"), "bf16"),
        (("openvino", "cpu"), "int8"),
        (("cuda", "cpu"), "bf16"),
    ],
)
def test_a_precision_that_cannot_be_had_is_refused_naming_those_that_can(
    monkeypatch: pytest.MonkeyPatch, providers: tuple[str, ...], precision: str
) -> None:
    monkeypatch.setattr(backend, "_cpu_flags", set)

    told = rf"{precision} cannot be had on .*; set STYLESERVE_PRECISION to .*fp32 or auto"
    with pytest.raises(ConfigError, match=told):
        choose_backends(providers, precision)


def test_the_flags_of_this_cpu_are_read() -> None:
    assert {"flags", "processor"} & backend._cpu_flags()
