"""A model of Triton whose workers call endpoints in this process."""

import logging
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytriton.model_config import ModelConfig, Tensor
from pytriton.models.model import Model

from styleserve.channel import Desk, Error, Reply
from styleserve.endpoint import Answer, Endpoint, Tensors
from styleserve.errors import HIDDEN, InferenceError, RequestError
from styleserve.ticket import CURRENT, IS_OVER, Ticket

LOGGER = logging.getLogger(__name__)

WORKSPACE = re.compile(r'("workspace-path"\s+value \{\s+string_value: )".*"')
# What a worker needs, and under which names it lies in the model store.
FILES = {"worker.py": "model.py", "channel.py": "channel.py", "mailbox.py": "mailbox.py"}


class BoundModel(Model):  # type: ignore[misc]  # pytriton has no types
    """Has one worker for each of its endpoints; PyTriton's own way to these is not taken."""

    SCRIPT_FILES_TO_COPY = ()

    def __init__(
        self,
        name: str,
        endpoints: Sequence[Endpoint],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        queue_size: int,
        **context: Any,  # noqa: ANN401  PyTriton's own: workspace and triton_context
    ) -> None:
        """Wait for the workers of the model `name`, for each of which one endpoint answers.

        `queue_size` requests may wait for them.
        """
        self._queue_size = queue_size
        config = ModelConfig(batching=False)
        home = context["workspace"].path
        self._desks = [Desk(home, f"{name}_{worker}") for worker in range(len(endpoints))]
        calls = [
            Binding(name, endpoint, Ticket(desk.is_gone))
            for endpoint, desk in zip(endpoints, self._desks, strict=True)
        ]
        super().__init__(name, 1, calls, inputs, outputs, config, strict=True, **context)
        for desk, call in zip(self._desks, calls, strict=True):
            desk.serve(call)

    def generate_model(self, model_repository: Path) -> None:
        """Write what Triton reads: the model's configuration and its worker's code."""
        super().generate_model(model_repository)
        folder = model_repository / self.model_name
        config = folder / "config.pbtxt"
        config.write_text(_configured(config.read_text(), self._queue_size))
        for file, name in FILES.items():
            shutil.copy(Path(__file__).with_name(file), folder / "1" / name)

    def setup(self) -> None:
        """Do nothing: the workers have come already."""

    def clean(self) -> None:
        """Let the workers go."""
        for desk in self._desks:
            desk.close()

    def is_alive(self) -> bool:
        """Tell whether no worker has gone."""
        return all(desk.is_alive() for desk in self._desks)


def _configured(config: str, queue_size: int) -> str:
    """Add what is not in PyTriton's ModelConfig, and keep our path from what Triton tells callers.

    That is a queue with an end; the worker of ours finds the path by itself.
    """
    hidden = WORKSPACE.sub(r'\1""', config)
    queue = f"default_queue_policy {{ max_queue_size: {queue_size} }}"
    return f"{hidden}dynamic_batching {{ {queue} }}\n"


class Binding:
    """What answers one worker of a model."""

    def __init__(self, name: str, endpoint: Endpoint, ticket: Ticket) -> None:
        """Answer with `endpoint` for the model `name`."""
        self._name = name
        self._endpoint = endpoint
        self._ticket = ticket
        self.is_busy = False

    def __call__(self, tensors: Tensors, outputs: list[str]) -> Reply:
        """Answer one request, whatever happens."""
        self.is_busy = True
        CURRENT.set(self._ticket)
        IS_OVER.set(self._ticket.is_gone)
        answer: Answer = {}
        error = None
        try:
            answer = self._answer(tensors, outputs)
        except RequestError as refusal:
            LOGGER.debug("%s: refused: %s", self._name, refusal)
            error = Error(str(refusal), is_callers=True)
        except Exception as failure:
            LOGGER.exception("%s: a request failed", self._name)
            message = str(failure) if isinstance(failure, InferenceError) else HIDDEN
            error = Error(message, is_callers=False)
        self.is_busy = False
        return Reply(answer, error, self._ticket.hand_over())

    def _answer(self, tensors: Tensors, outputs: list[str]) -> Answer:
        start = time.perf_counter()
        answer = self._endpoint(tensors, outputs)
        LOGGER.debug("%s: answered in %.1f ms", self._name, 1e3 * (time.perf_counter() - start))
        return answer
