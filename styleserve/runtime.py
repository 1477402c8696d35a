"""ONNX Runtime on this machine: on what and how precisely it computes, in how many threads."""

import functools
import itertools
import json
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
from loky import cpu_count

from styleserve import memory, metadata
from styleserve.errors import ConfigError, ModelError
from styleserve.recognise import read_model_bytes

# In order of preference. TensorRT builds engines for minutes, so it runs only when asked for.
PROVIDERS = {
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
ON_REQUEST = {"tensorrt": "TensorrtExecutionProvider"}
GPU = {"cuda", "tensorrt"}
# What a provider computes with in place of fp32, if that shows in no picture: see `fidelity`.
REDUCED = {"tensorrt": ("fp16",), "cuda": ("tf32",), "openvino": ("int8", "bf16")}
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
        kinds = [*filter(_has, REDUCED.get(name, ())), "fp32"]
        backends += [Backend(providers[position:], kind) for kind in kinds]
    chosen = tuple(backend for backend in backends if precision in ("auto", backend.precision))
    if not chosen:
        had = dict.fromkeys(backend.precision for backend in backends)
        raise ConfigError(
            f"precision: {precision} cannot be had on {', '.join(providers)} of this machine; set "
            f"STYLESERVE_PRECISION to {', '.join(had)} or auto"
        )
    return chosen


def _has(precision: str) -> bool:
    return precision not in CPU_FLAGS or bool(CPU_FLAGS[precision] & _cpu_flags())


@functools.cache
def _cpu_flags() -> set[str]:
    return set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))


@dataclass(frozen=True)
class Runtime:
    """How models run here. All models of a process share one `gate`, the cap on runs at once."""

    backends: tuple[Backend, ...]  # the fastest first
    threads: int
    concurrency: int
    gate: threading.BoundedSemaphore

    @classmethod
    def create(
        cls,
        providers: str = "auto",
        threads: int = 0,
        concurrency: int = 0,
        precision: str = "auto",
    ) -> "Runtime":
        """Fill in what is left to choose: 0 threads means the CPU quota, 0 runs means 1 or 2.

        Raises:
            ConfigError: for providers or a precision that cannot be had.
        """
        names = choose_providers(providers)
        backends = choose_backends(names, precision)
        if GPU & set(names):
            onnxruntime.preload_dlls()  # CUDA and cuDNN are wheels, which no linker path names
        at_once = concurrency or (2 if GPU & set(names) else 1)
        gate = threading.BoundedSemaphore(at_once)
        return cls(backends, threads or int(cpu_count()), at_once, gate)

    def open(self, model: Path, backend: Backend) -> onnxruntime.InferenceSession:
        """Load a model's file for this backend.

        Raises:
            ModelError: if ONNX Runtime refuses the file or drops the first provider.
        """
        path = backend.file(model)
        wanted = [self._provider(name, backend.precision) for name in backend.providers]
        options = self._options(backend)
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=wanted)
        except Exception as error:
            read_model_bytes(path)  # refuses a file that plainly is something else
            broken = "it is damaged or cut short" if "INVALID_PROTOBUF" in str(error) else ""
            why = broken or f"ONNX Runtime cannot load it: {reason(error)}"
            mend = f"set STYLESERVE_PROVIDERS=cpu to do without {backend.providers[0]}"
            if backend == REFERENCE:
                mend = "put the model's ONNX export here"
            raise ModelError(f"{path}: {why}; {mend}") from error
        if session.get_providers()[0] != wanted[0][0]:
            raise ModelError(
                f"{path}: asked for {backend.providers[0]}, but ONNX Runtime dropped it and would "
                f"run on {', '.join(session.get_providers())}; mend its installation or set "
                f"STYLESERVE_PROVIDERS=cpu"
            )
        return session

    def _options(self, backend: Backend) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        memory.share()
        options.add_session_config_entry("session.use_env_allocators", "1")
        # What is raised need not stand between log lines, too; why a GPU is dropped is only there.
        options.log_severity_level = 3 if backend.providers[0] in GPU else 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # no busy wait
        return options

    def _provider(self, name: str, precision: str) -> tuple[str, dict[str, Any]]:
        is_full = precision == "fp32"
        openvino = {  # with int8, the hint is for layers that are not in 8 bits
            "INFERENCE_PRECISION_HINT": "f32" if is_full or not _has("bf16") else "bf16",
            "INFERENCE_NUM_THREADS": self.threads * self.concurrency,
            "NUM_STREAMS": self.concurrency,
        }
        options: dict[str, dict[str, Any]] = {
            "openvino": {"device_type": "CPU", "load_config": json.dumps({"CPU": openvino})},
            # The default search, an exhaustive one, is repeated for every new size.
            "cuda": {"cudnn_conv_algo_search": "HEURISTIC", "use_tf32": int(not is_full)},
            "tensorrt": {"trt_fp16_enable": not is_full},
        }
        return (PROVIDERS | ON_REQUEST)[name], options.get(name, {})


def reason(error: Exception) -> str:
    """Return the line of an ONNX Runtime error that names the cause, without source positions."""
    lines = str(error).strip().split("\n")
    line = lines[-1] if "[OpenVINO-EP]" in lines[0] else lines[0].split("] : ")[-1]
    return re.sub(r"/\S+\.(cc|h):\d+ .*\) (?=\w)", "", line)[:300]
