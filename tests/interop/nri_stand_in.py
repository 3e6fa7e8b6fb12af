"""A container runtime's NRI socket without containers, for drivers that start only beside one.

Plug-ins may connect again; each is registered, configured and synchronized without containers.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.nri import FakeRuntime


@contextlib.contextmanager
def nri_stand_in(path: Path) -> Iterator[None]:
    """Serve NRI at a socket."""
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
