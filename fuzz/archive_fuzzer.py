"""An archive with a captured machine."""

import contextlib
import tempfile
from pathlib import Path

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.api.errors import DranodeError
    from dranode.sim.machines.forms import open_machine


def test_one_input(data: bytes) -> None:
    """Open it by the endings that it could have."""
    for ending in ("tar", "tar.gz", "tar.bz2"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"m.{ending}"
            path.write_bytes(data)
            with contextlib.suppress(DranodeError, OSError):
                root = open_machine(str(path))
                root.read_bytes("sys/devices/system/cpu/online")


if __name__ == "__main__":
    fuzz(test_one_input)
