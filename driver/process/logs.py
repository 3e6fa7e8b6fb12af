"""The log: one line for each event, as key=value text or JSON, and one operation id in all lines of a call.

One thread handles a call of kubelet or the container runtime from beginning to end. Code that passes a part of it to
another thread runs that part in a copy of the context (`contextvars.copy_context`).
"""

import contextlib
import functools
import json
import logging
import math
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from dranode.api.errors import printable

_LEVELS: Final = (logging.INFO, logging.DEBUG)
# How long a line waits for a reader of standard error before it is dropped.
_READER_MILLISECONDS: Final = 1000
_OPERATION: Final[ContextVar[str]] = ContextVar("operation", default="")
# A placeholder of a log message, with the key before it if it has one.
_PLACEHOLDER: Final = re.compile(r"(?:\b(\w+)=)?%(?:%|[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])")


@contextlib.contextmanager
def operation() -> Iterator[str]:
    """Add one operation id (8 hexadecimal digits) to every line that is logged in the `with` block."""
    token = _OPERATION.set(os.urandom(4).hex())
    try:
        yield _OPERATION.get()
    finally:
        _OPERATION.reset(token)


class TextFormatter(logging.Formatter):
    """Time, level, operation id if there is one, and message on one line; an indented traceback may follow.

    A value from outside cannot add a line that looks like another event.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(op)s%(message)s", "%Y-%m-%dT%H:%M:%S")
        # UTC, as in JSON: local time jumps twice a year, and nodes may have different ones.
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        current = _OPERATION.get()
        record.op = f"op={current} " if current else ""
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line without a traceback."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the traceback."""
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())


class JSONFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, op, message, the message's key=value pairs, and a traceback.

    Characters that do not print, and those that change the direction of text, are escaped.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
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
        # The names of the line win, so a message with `level=%s` cannot change them.
        text = json.dumps(_fields(record) | line, ensure_ascii=False)
        if text.isprintable():
            return text
        return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the arguments of a message that have a key (`claim=%s`), by key."""
    if not isinstance(record.args, tuple):
        return {}
    fields: dict[str, Any] = {}
    for key, value in zip(_keys(str(record.msg)), record.args, strict=False):
        if key:
            # JSON has no numbers for NaN and infinity.
            number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
            fields[key] = value if number else str(value)
    return fields


# Messages are constants of the code, so each is parsed only once.
@functools.lru_cache(256)
def _keys(message: str) -> tuple[str, ...]:
    """Return the key of each argument that a message takes, empty for an argument without a key."""
    # "%%" is a percent sign and takes no argument.
    placeholders = (match for match in _PLACEHOLDER.finditer(message) if not match[0].endswith("%%"))
    return tuple(match[1] or "" for match in placeholders)


class _StandardError(logging.StreamHandler[Any]):
    """Writes to stderr. While nobody reads the pipe behind it, lines are dropped, because every call would hang."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._poll = select.poll()
        self._poll.register(sys.stderr, select.POLLOUT)
        self._lost = 0
        self._torn = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line for a record, after a line that says how many were dropped before it."""
        text = "lines=%d of the log are lost, because standard error was not read"
        lost = logging.LogRecord(__name__, logging.WARNING, "", 0, text, (self._lost,), None)
        try:
            if self._lost and self._is_written(lost):
                self._lost = 0
            if self._lost or not self._is_written(record):
                self._lost += 1
        except Exception:  # noqa: BLE001 - as in every handler: a line that cannot be written fails no call
            self.handleError(record)

    def _is_written(self, record: logging.LogRecord) -> bool:
        """Write a line, or a part of it if the reader stops; the next line does not continue it."""
        line = ("\n" * self._torn + self.format(record) + self.terminator).encode(errors="backslashreplace")
        left = line
        while left:
            # A pipe that is writable has room for PIPE_BUF bytes. A traceback may be longer.
            if not self._poll.poll(0 if self._lost else _READER_MILLISECONDS):
                self._torn = self._torn or left != line
                return False
            left = left[os.write(self.stream.fileno(), left[: select.PIPE_BUF]) :]
        self._torn = False
        return True


def set_up(log_format: str, verbosity: int) -> None:
    """Log to stderr as `text` or `json`; `verbosity` 0 logs what happens to claims, 1 or more also details."""
    handler = _StandardError()
    handler.setFormatter(JSONFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    # Replaced and not added: with a handler that a library has set, each line would be logged twice.
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])
    # No line shows the caller's place, thread or process, so logging need not look them up (logging, "Optimization").
    logging._srcfile = None  # noqa: SLF001
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Lines about its connections do not help to follow a claim.
    logging.getLogger("urllib3").setLevel(logging.WARNING)
