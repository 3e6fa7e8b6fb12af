"""How the driver logs: one line an event, key=value text or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

_LEVELS: Final = (logging.INFO, logging.DEBUG)


class JSONFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(log_format: str, verbosity: int) -> None:
    """Log to stderr as `text` or `json`; `verbosity` 0 tells what happened to claims, 1 and more tells details."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    handler.setFormatter(JSONFormatter() if log_format == "json" else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])
