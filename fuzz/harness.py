"""The parts that fuzzers share: atheris where it is installed, and what a parser may raise."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

# The corpora are tests too, and those need no coverage.
atheris: Any = importlib.import_module("atheris") if importlib.util.find_spec("atheris") else None


def instrumented() -> AbstractContextManager[Any]:
    """Import this package's modules so that the fuzzer sees which branches an input takes."""
    if atheris is None:
        return contextlib.nullcontext()
    tracing: AbstractContextManager[Any] = atheris.instrument_imports(include=["dranode"])
    return tracing


def fuzz(target: Callable[[bytes], None]) -> None:
    """Run one target with the command line of libFuzzer.

    Raises:
        SystemExit: atheris is not installed.
    """
    if atheris is None:
        raise SystemExit("atheris is not installed: make fuzz installs it")
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
