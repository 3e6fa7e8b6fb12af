"""How the driver logs: one line an event, key=value text or JSON, and one operation id in every line of a call.

A call of kubelet or of the container runtime is answered by one thread from beginning to end; whoever hands a part of
it to another thread runs that part in a copy of the context (`contextvars.copy_context`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final

from dranode.driver.core.api.sentence import printable

_LEVELS: Final = (logging.INFO, logging.DEBUG)
_OPERATION: Final[ContextVar[str]] = ContextVar("operation", default="")
# A placeholder of a log message, and the key in front of it if it has one.
_PLACEHOLDER: Final = re.compile(r"(?:\b(\w+)=)?%(?:%|[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])")


def _random_id() -> str:
    return os.urandom(4).hex()


@contextlib.contextmanager
def operation(new_id: Callable[[], str] = _random_id) -> Iterator[str]:
    """Put one operation id (8 hexadecimal digits) into every line that is logged meanwhile."""
    token = _OPERATION.set(new_id())
    try:
        yield _OPERATION.get()
    finally:
        _OPERATION.reset(token)


class TextFormatter(logging.Formatter):
    """Time, level, operation id if there is one, message; one line an event, below it a traceback that is indented.

    Whatever values others wrote, they make no line that looks like another event.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(op)s%(message)s", "%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record."""
        current = _OPERATION.get()
        record.op = f"op={current} " if current else ""
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line without a traceback."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """The traceback."""
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())


class JSONFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, op, message, what the message says as key=value, and a traceback.

    Characters that do not print, and those that turn a line's direction, stand there as JSON's escapes.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if current := _OPERATION.get():
            line["op"] = current
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        text = json.dumps(_fields(record) | line, ensure_ascii=False)
        return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The arguments of a message that it names (`claim=%s`), by those names."""
    if not isinstance(record.args, tuple):
        return {}
    arguments = iter(record.args)
    fields: dict[str, Any] = {}
    for match in _PLACEHOLDER.finditer(str(record.msg)):
        if match[0].endswith("%%"):
            continue
        value = next(arguments, None)
        if match[1]:
            fields[match[1]] = value if isinstance(value, (int, float, str, bool)) else str(value)
    return fields


def _one_line(record: logging.LogRecord) -> bool:
    """Bytes that are no message are the sender's mistake: one line tells of them, and no traceback through gRPC."""
    if record.exc_info and (error := record.exc_info[1]) is not None:
        record.msg, record.args = "a gRPC message cannot be read: %s", (error,)
        record.exc_info = record.exc_text = None
    return True


def set_up(log_format: str, verbosity: int) -> None:
    """Log to stderr as `text` or `json`; `verbosity` 0 tells what happened to claims, 1 and more tells details."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])
    # Its details are of no use to anybody who looks for a claim.
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    # It logs what it cannot decode, on either side of a call.
    logging.getLogger("grpc._common").addFilter(_one_line)
    if sys.version_info >= (3, 12):
        # Nothing here is a task, and asking which one logs would load asyncio with the first record.
        logging.logAsyncioTasks = False
