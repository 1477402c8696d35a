"""ONNX Runtime as set up here: how files are loaded, threads, and how many runs at once."""

import json
import re
import threading
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnxruntime
from loky import cpu_count

from styleserve import memory, metadata
from styleserve.backend import (
    GPU,
    ON_REQUEST,
    PROVIDERS,
    REFERENCE,
    Backend,
    choose_backends,
    choose_providers,
    has,
)
from styleserve.errors import ModelError
from styleserve.recognise import read_bytes, read_model_bytes

# So many layers, each for one size, stay prepared, at some 50 KiB; OpenVINO's 5000 are no faster.
KERNELS = 256
_BROKEN = re.compile("INVALID_PROTOBUF|does not have a graph")


@dataclass(frozen=True)
class Runtime:
    """How models run here. All models of a process share one `gate`, the cap on runs at once."""

    backends: tuple[Backend, ...]  # the fastest first
    threads: int
    concurrency: int
    gate: threading.BoundedSemaphore

    @property
    def on_gpu(self) -> bool:
        """Tell whether models are loaded on a GPU, if they can be."""
        return self.backends[0].on_gpu

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

    def open(
        self, model: Path, backend: Backend, *, as_graph: bool = False
    ) -> onnxruntime.InferenceSession:
        """Load a model's file for this backend, on CUDA perhaps to run as one graph: see `replay`.

        Raises:
            ModelError: if ONNX Runtime refuses the file or drops the first provider.
        """
        path = backend.file(model)
        wanted = [self._provider(name, backend.precision, as_graph) for name in backend.providers]
        options = self._options(backend)
        try:
            source = _halved(path) if backend.halves else str(path)
            session = onnxruntime.InferenceSession(
                source, options, providers=wanted, enable_fallback=False
            )
        except Exception as error:
            # Both refuse one that cannot be read, a model also one that plainly is something else.
            read_model_bytes(path) if path == model else read_bytes(path)
            broken = "it is damaged or cut short" if _BROKEN.search(str(error)) else ""
            why = broken or f"ONNX Runtime cannot load it: {reason(error)}"
            raise ModelError(f"{path}: {why}; {_mend(model, backend)}") from error
        if path != model and not _is_made_of(model, session):
            why = f"it was made of another {model.name} than this one"
            raise ModelError(f"{path}: {why}; {_mend(model, backend)}")
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
        options.log_severity_level = 3 if backend.on_gpu else 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # no busy wait
        return options

    def _provider(self, name: str, precision: str, as_graph: bool) -> tuple[str, dict[str, Any]]:
        is_full = precision == "fp32"
        openvino = {  # with int8, the hint is for layers that are not in 8 bits
            "INFERENCE_PRECISION_HINT": "f32" if is_full or not has("bf16") else "bf16",
            "INFERENCE_NUM_THREADS": self.threads * self.concurrency,
            "NUM_STREAMS": self.concurrency,
            "CPU_RUNTIME_CACHE_CAPACITY": str(KERNELS),
        }
        options: dict[str, dict[str, Any]] = {
            "openvino": {"device_type": "CPU", "load_config": json.dumps({"CPU": openvino})},
            "cuda": {
                # The default search, an exhaustive one, is repeated for every new size.
                "cudnn_conv_algo_search": "HEURISTIC",
                "use_tf32": int(not is_full),
                "enable_cuda_graph": int(as_graph),
            },
            "tensorrt": {"trt_fp16_enable": not is_full},
        }
        return (PROVIDERS | ON_REQUEST)[name], options.get(name, {})


def _halved(model: Path) -> bytes:
    from styleserve.half import halved  # it needs onnx, which is there for GPUs only

    return halved(model)


def _is_made_of(model: Path, session: onnxruntime.InferenceSession) -> bool:
    told = session.get_modelmeta().custom_metadata_map.get(metadata.INT8_OF)
    return bool(told == sha256(read_bytes(model)).hexdigest())


def _mend(model: Path, backend: Backend) -> str:
    if backend.file(model) != model:
        return f"remove it, or write it again with python -m styleserve.quantize {model}"
    if backend == REFERENCE:
        return "put the model's ONNX export here"
    return f"set STYLESERVE_PROVIDERS=cpu to do without {backend.providers[0]}"


def reason(error: Exception) -> str:
    """Return the line of an ONNX Runtime error that names the cause, without source positions."""
    lines = str(error).strip().split("\n")
    line = lines[-1] if "[OpenVINO-EP]" in lines[0] else lines[0].split("] : ")[-1]
    if on_gpu := re.search(r"\w+ failure \d+: .*(?= ; GPU=)", line):
        return on_gpu[0]
    return re.sub(r"/\S+\.(cc|h):\d+ .*\) (?=\w)", "", line)[:300]
