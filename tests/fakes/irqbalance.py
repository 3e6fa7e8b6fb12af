"""A stand-in for irqbalance: its socket, and a round in which it applies what it was told (irqbalance.c, 1.9).

Like the real one, it serves nobody while it sleeps through a round, and it dies of an answer to a peer that has hung
up.
"""

import socket
import struct
import threading
from pathlib import Path

from dranode.api.cpuset import CPUSet, mask_text
from tests.fakes.unix_server import UnixServer


class FakeIRQBalance(UnixServer):
    """One irqbalance.

    Attributes:
        banned: the CPUs that it leaves alone at the moment.
        awake: set unless it sleeps.
        killed: whether it answered somebody who had gone.
        reads: how many bytes of a command it reads; 500 before 1.9.5.
    """

    reads = 16384

    def __init__(self, folder: Path, *, banned: str = "", number: int = 7) -> None:
        self.banned = self._asked = self._own = CPUSet.parse(banned)
        self.awake, self.killed = threading.Event(), False
        self.awake.set()
        super().__init__(folder / f"irqbalance{number}.sock", "irqbalance")

    def round(self) -> None:
        """Heed what it was told since the last round."""
        self.banned = self._asked

    def end(self) -> None:
        """End, and remove the socket."""
        self.awake.set()
        super().end()
        self.path.unlink()

    def converse(self, connection: socket.socket) -> None:
        """Take one command; close the connection at any other word."""
        self.awake.wait()
        message, ancillary, _, _ = connection.recvmsg(self.reads, socket.CMSG_SPACE(12))
        ((_, kind, data),) = ancillary
        _, uid, _ = struct.unpack("3i", data)
        if kind != socket.SCM_CREDENTIALS or uid != 0:
            return
        text = message.decode()
        if text == "setup":
            try:
                connection.sendall(f"SLEEP 10 BANNED {mask_text(self.banned)}".encode())
            except BrokenPipeError:
                self.killed = True
        elif text.startswith("settings cpus "):
            listed = text.removeprefix("settings cpus ")
            self._asked = self._own if listed == "NULL" else CPUSet.parse(listed.rstrip(","))
