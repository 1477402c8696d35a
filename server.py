"""Serve every ONNX image-to-image model of a folder; `--help` lists the settings."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from styleserve import logs, settings
from styleserve.crew import leave
from styleserve.errors import ConfigError, ModelError

LOGGER = logging.getLogger("styleserve")

OK, GAVE_UP, REFUSED = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after an orderly stop, 1 when Triton died too often, 2 when a setting, the
        machine or a model does not allow to start.
    """
    _on_signals(lambda: sys.exit(OK))  # nothing is served yet
    logs.set_up("auto", "info")
    try:
        options = settings.load(argv)
        logs.set_up(options.log_format, options.log_level)
        return _serve(options)
    except (ConfigError, ModelError) as error:
        for problem in error.problems:
            LOGGER.critical("cannot start: %s", problem)
        return REFUSED


def _serve(options: settings.ServerSettings) -> int:
    # Imported late, so that --help and a bad setting answer at once.
    from styleserve import leftovers, lifecycle, machine, memory
    from styleserve.catalog import RESERVED, find_models, find_pipelines, load_catalog
    from styleserve.runtime import Runtime

    memory.keep_freed()
    for folder in (machine.SHM, options.cache_dir):
        for path in leftovers.clean(folder):
            LOGGER.info("removed %s, left by a server that was killed", path)
    models = find_models(options.models_dir)
    declared = find_pipelines(options.pipelines, options.models_dir)
    machine.check(options, (*models, *declared.lines, RESERVED))
    runtime = Runtime.create(
        options.providers, options.threads, options.concurrency, options.precision
    )
    LOGGER.info(
        "loading models from %s: on %s, %d threads, %d at once",
        *(options.models_dir, " or ".join(map(str, runtime.backends))),
        *(runtime.threads, runtime.concurrency),
    )
    catalog = load_catalog(models, declared, runtime)
    stop = threading.Event()
    _on_signals(stop.set)
    return OK if lifecycle.run(catalog, options, stop) else GAVE_UP


def _on_signals(act: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: act())


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
