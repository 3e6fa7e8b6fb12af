"""A stand-in for irqbalance: its socket, and a round in which it heeds what it was told (irqbalance.c, 1.9)."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path

from dranode.driver.core.api.cpuset import CPUSet, mask_text


class FakeIRQBalance:
    """One irqbalance.

    Attributes:
        banned: the CPUs that it leaves alone at the moment.
    """

    def __init__(self, folder: Path, *, banned: str = "", number: int = 7) -> None:
        self.banned = self._asked = self._own = CPUSet.parse(banned)
        self.path = folder / f"irqbalance{number}.sock"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(self.path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, name="irqbalance", daemon=True)
        self._thread.start()

    def round(self) -> None:
        """Heed what it was told since the last round."""
        self.banned = self._asked

    def end(self) -> None:
        """End, and remove the socket."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        self.path.unlink()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        message, ancillary, _, _ = connection.recvmsg(16384, socket.CMSG_SPACE(12))
        ((_, kind, data),) = ancillary
        _, uid, _ = struct.unpack("3i", data)
        if kind != socket.SCM_CREDENTIALS or uid != 0:
            return
        text = message.decode()
        if text == "setup":
            connection.sendall(f"SLEEP 10 BANNED {mask_text(self.banned)}".encode())
        elif text.startswith("settings cpus "):
            listed = text.removeprefix("settings cpus ")
            self._asked = self._own if listed == "NULL" else CPUSet.parse(listed)
