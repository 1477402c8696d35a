"""Log lines for people on a terminal, JSON lines elsewhere."""

import codecs
import logging
import re
import sys

from pythonjsonlogger.json import JsonFormatter

LOGGER = logging.getLogger("triton")

LEVELS = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
# As in: E1130 09:47:39.677598 5567 server.cc:305] "text"
TRITON_LINE = re.compile(r'^([IWEF])\d{4} [\d:.]+ +\d+ [\w./]+:\d+\] "?(.*?)"?$')
ABOUT_GPU = re.compile("CUDA|Cuda|NVML|DCGM")


def set_up(log_format: str, level: str) -> None:
    """Send all log lines to standard error as `text` or `json`, from `level` on.

    `auto` means text on a terminal and JSON elsewhere.
    """
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    if as_text:
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        )
    else:
        fields = ["asctime", "levelname", "name", "message"]
        names = {"asctime": "time", "levelname": "level", "name": "logger"}
        handler.setFormatter(JsonFormatter(fields, rename_fields=names))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # PyTriton logs every failed request as a warning with its traceback; we log our own faults.
    logging.getLogger("pytriton").setLevel(logging.ERROR)
    for name in ("sh", "asyncio", "urllib3", "httpx", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)


class TritonOutput:
    """Logs tritonserver's own output, line by line, at the level that each line names."""

    def __init__(self, has_gpu: bool) -> None:
        """Without a GPU, Triton's complaints that it finds none are no warnings."""
        self._text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_gpu = has_gpu

    def __call__(self, text: bytes | str) -> None:
        """Take the next piece of output; PyTriton hands over single characters."""
        self._text += self._decoder.decode(text) if isinstance(text, bytes) else text
        *lines, self._text = self._text.split("\n")
        for line in filter(None, map(str.strip, lines)):
            match = TRITON_LINE.match(line)
            noise = not self._has_gpu and ABOUT_GPU.search(line)
            level = logging.DEBUG if noise or not match else LEVELS[match[1]]
            LOGGER.log(level, "%s", match[2] if match else line)
