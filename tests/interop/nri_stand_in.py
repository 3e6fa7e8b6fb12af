"""A container runtime's NRI socket without containers, for drivers that start only beside one.

`python -m tests.interop.nri_stand_in FOLDER -- COMMAND` serves `FOLDER/nri.sock` until the command ends, with its
status. Plug-ins may connect as often as they like; each is registered, configured and told of no container.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.nri import FakeRuntime


@contextlib.contextmanager
def nri_stand_in(path: Path) -> Iterator[None]:
    """Serve NRI at a socket meanwhile."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        yield


def _accept(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            plugin, _ = listener.accept()
            threading.Thread(target=_attend, args=(plugin,), daemon=True).start()


def _attend(plugin: socket.socket) -> None:
    with plugin, contextlib.suppress(OSError):
        runtime = FakeRuntime(plugin)
        runtime.handshake([], [])
        while True:
            plugin.settimeout(None)
            runtime.pump()


def main() -> int:
    """Run the command beside the socket."""
    folder, dashes, *command = sys.argv[1:]
    if dashes != "--":
        raise SystemExit("usage: python -m tests.interop.nri_stand_in FOLDER -- COMMAND...")
    with nri_stand_in(Path(folder) / "nri.sock"):
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
