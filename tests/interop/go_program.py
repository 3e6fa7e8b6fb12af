"""Builds Go programs of other projects by their packages' names, if the module proxy has them."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

CPU_DRIVER: Final = "github.com/kubernetes-sigs/dra-driver-cpu/cmd/dracpu"
# The commit that docs/benches.md and docs/sanity.md name; the project has released no version.
CPU_DRIVER_VERSION: Final = "de98098690f25e59d781c1659b5c3e0b0a210c2a"


class NoProgramError(Exception):
    """A program cannot be built here; the message says why."""


def go_program(package: str, version: str, folder: Path) -> Path:
    """Return the program of a package, which is built into a folder once.

    Raises:
        NoProgramError: Go is missing, or the module cannot be downloaded or built.
    """
    program = folder / package.rpartition("/")[2]
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise NoProgramError(f"{package} cannot be built: Go is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-buildvcs=false"}
    command = ["go", "install", f"{package}@{version}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise NoProgramError(f"{package} cannot be had: {done.stderr.strip()[-300:]}")
    return program
