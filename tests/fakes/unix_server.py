"""A server on a unix socket that serves one caller at a time."""

import socket
import threading
from abc import ABC, abstractmethod
from pathlib import Path


class UnixServer(ABC):
    """A server that listens from the start, in its own thread.

    Attributes:
        path: its socket.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX)
        # Every connection inherits this option: a message carries its sender's credentials.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def converse(self, connection: socket.socket) -> None:
        """Converse with a caller until either side ends it."""

    def end(self) -> None:
        """Stop; the socket's file stays."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.converse(connection)
