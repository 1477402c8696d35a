"""What models can run on here: providers, and how precisely each computes."""

import functools
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import onnxruntime

from styleserve import metadata
from styleserve.errors import ConfigError

# In order of preference. TensorRT builds engines for minutes, so it runs only when asked for.
PROVIDERS = {
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
ON_REQUEST = {"tensorrt": "TensorrtExecutionProvider"}
GPU = {"cuda", "tensorrt"}
# What a provider computes with in place of fp32, if that shows in no picture: see `fidelity`.
REDUCED = {"tensorrt": ("fp16",), "cuda": ("fp16", "tf32"), "openvino": ("int8", "bf16")}
BF16, INT8 = {"avx512_bf16", "amx_bf16"}, {"avx512_vnni", "avx_vnni", "amx_int8"}
CPU_FLAGS = {"bf16": BF16, "int8": INT8}  # without one of these it is slower than fp32


@dataclass(frozen=True)
class Backend:
    """What computes: a provider, with others for the layers it does not know, and how precisely."""

    providers: tuple[str, ...]
    precision: str = "fp32"

    @property
    def keeps_memory(self) -> bool:
        """Tell whether a session keeps what its largest picture needed."""
        return self.providers[0] == "openvino"

    @property
    def halves(self) -> bool:
        """Tell whether it takes a model that is in half precision already."""
        return (self.providers[0], self.precision) == ("cuda", "fp16")

    @property
    def on_gpu(self) -> bool:
        """Tell whether it computes on a GPU."""
        return self.providers[0] in GPU

    def file(self, model: Path) -> Path:
        """Name what it loads of a model: for int8 another file, beside it."""
        return model.with_suffix(metadata.INT8_SUFFIX) if self.precision == "int8" else model

    def __str__(self) -> str:
        """Name it as logs and the catalog do."""
        return f"{self.providers[0]} {self.precision}"


REFERENCE = Backend(("cpu",))  # what all others are measured by


def choose_providers(setting: str) -> tuple[str, ...]:
    """Return short provider names in order, ending with cpu, for `setting` (a list or "auto").

    Raises:
        ConfigError: for a name that is unknown or not installed.
    """
    available = set(onnxruntime.get_available_providers())
    known = PROVIDERS | ON_REQUEST
    installed = [name for name, provider in known.items() if provider in available]
    if setting.strip().lower() == "auto":
        return tuple(name for name in PROVIDERS if name in installed)
    names = [name.strip().lower() for name in setting.split(",") if name.strip()]
    missing = [name for name in names if name not in installed]
    if missing or not names:
        raise ConfigError(
            f"providers: {', '.join(missing) or 'nothing'} cannot be used, installed are "
            f"{', '.join(installed)}; set STYLESERVE_PROVIDERS to some of these or to auto"
        )
    before_cpu = itertools.takewhile(lambda name: name != "cpu", dict.fromkeys(names))
    return (*before_cpu, "cpu")


def choose_backends(providers: tuple[str, ...], precision: str) -> tuple[Backend, ...]:
    """Return what may run a model on `providers`, the fastest first.

    Args:
        providers: short names in order, ending with cpu.
        precision: "auto" for any, else the one that is wanted.

    Raises:
        ConfigError: if nothing here has that precision.
    """
    backends = []
    for position, name in enumerate(providers):
        kinds = [*filter(has, REDUCED.get(name, ())), "fp32"]
        backends += [Backend(providers[position:], kind) for kind in kinds]
    chosen = tuple(backend for backend in backends if precision in ("auto", backend.precision))
    if not chosen:
        had = dict.fromkeys(backend.precision for backend in backends)
        raise ConfigError(
            f"precision: {precision} cannot be had on {', '.join(providers)} of this machine; set "
            f"STYLESERVE_PRECISION to {', '.join(had)} or auto"
        )
    return chosen


def has(precision: str) -> bool:
    """Tell whether this CPU is faster in that precision than in fp32; true for those of GPUs."""
    return precision not in CPU_FLAGS or bool(CPU_FLAGS[precision] & _cpu_flags())


@functools.cache
def _cpu_flags() -> set[str]:
    return set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
