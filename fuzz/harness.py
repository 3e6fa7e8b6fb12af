"""The parts that fuzzers share: atheris where it is installed, and what a parser may raise."""

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

try:
    # A statement, which pyinstaller sees: OSS-Fuzz packs a fuzzer with what it imports.
    import atheris
except ImportError:
    # The corpora are tests too, and those need no coverage.
    atheris = None


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
