"""A machine described in YAML."""

import contextlib
import tempfile
from pathlib import Path

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.api.errors import DranodeError
    from dranode.sim.machines.machine_file import read_machine_file


def test_one_input(data: bytes) -> None:
    """Read it, and list what it has."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.yaml"
        path.write_bytes(data)
        with contextlib.suppress(DranodeError, OSError):
            root = read_machine_file(path)
            root.listdir("sys")


if __name__ == "__main__":
    fuzz(test_one_input)
