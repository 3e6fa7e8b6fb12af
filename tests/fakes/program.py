"""Runs the program `dranode` in this process, which saves starting an interpreter for each command."""

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from dranode.driver.cli.commands import cli, run


def run_program(*arguments: str | Path, cwd: Path, **environment: str) -> CompletedProcess[str]:
    """Run a command in a folder with these extra environment variables; returns its exit status and output."""
    out, err = TextIOWrapper(BytesIO(), encoding="utf-8"), TextIOWrapper(BytesIO(), encoding="utf-8")
    words = list(map(str, arguments))
    status: object = 0
    with contextlib.ExitStack() as stack:
        for change in (
            _as_it_was(),
            patch.dict(os.environ, environment),
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            stack.enter_context(change)
        try:
            run(cli, words)
        except SystemExit as end:
            status = end.code
    return CompletedProcess(
        words, status if isinstance(status, int) else int(status is not None), _text(out), _text(err)
    )


def _text(stream: TextIOWrapper) -> str:
    stream.flush()
    written = stream.detach()
    assert isinstance(written, BytesIO)
    return written.getvalue().decode()


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Undo the process-wide changes of a command."""
    root = logging.getLogger()
    handlers, level, threshold, stdin = root.handlers[:], root.level, gc.get_threshold(), sys.stdin
    try:
        yield
    finally:
        root.handlers[:], sys.stdin = handlers, stdin
        root.setLevel(level)
        gc.set_threshold(*threshold)
