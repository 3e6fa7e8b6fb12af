"""Finds out whether other instances of the driver run on this node: each shows itself by a file that it locks.

The kernel reports files that come and go, so that an instance which is alone need not look for others all the time, and
it releases the lock of one that dies. A file gets its name once it is locked, so none that is not locked is in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import select
from pathlib import Path

from dranode.driver.core.api.errors import LedgerError
from dranode.driver.machine.folder_events import FolderEvents
from dranode.driver.process.locks import FileLock
from dranode.driver.process.threads import Wake

log = logging.getLogger(__name__)


class Companions:
    """The other instances, as one of them sees them. The thread that waits calls all methods but `wake`, `has_died`."""

    def __init__(self, folder: Path, name: str) -> None:
        """Name the folder, and this instance's file in it; nothing is made yet."""
        self._folder = folder
        self._name = name
        self._lock = FileLock(folder / f".{name}")
        self._events = FolderEvents(folder)
        self._wake = Wake()
        self._died: set[str] = set()

    def arrive(self) -> None:
        """Show this instance to the others; where that fails they see it at their next look in any case."""
        try:
            self._folder.mkdir(mode=0o750, exist_ok=True)
            self._take_name()
        except (OSError, LedgerError) as error:
            log.warning("folder=%s: this instance cannot show itself to others: %s", self._folder, error)
        self._events.names()

    def _take_name(self) -> None:
        while True:
            self._lock.acquire()
            # Another instance may have removed the file before it was locked, taking it for one that had died.
            with contextlib.suppress(FileNotFoundError):
                self._lock.path.rename(self._folder / self._name)
                return
            self._lock.release()

    def there(self) -> bool:
        """Return whether there is another instance, as far as can be seen; what is left of one that died is removed."""
        try:
            others = [path for path in self._folder.iterdir() if path.name not in (self._name, self._lock.path.name)]
        except OSError:
            return True
        return any(map(self._lives, others))

    def has_died(self, name: str) -> bool:
        """Return whether another instance was seen to have died; one that left, or never came, has not. Thread-safe."""
        self._lives(self._folder / name)
        return name in self._died

    def _lives(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                self._died.add(path.name)
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def wait(self, seconds: float) -> None:
        """Wait until another instance comes or goes, or `wake` is called; for `seconds` at most."""
        poll = select.poll()
        for file in (self._wake.fileno(), self._events.fileno):
            if file is not None and file >= 0:
                poll.register(file, select.POLLIN)
        poll.poll(seconds * 1000)
        self._wake.heard()
        self._events.names()

    @property
    def watched(self) -> bool:
        """Return whether `wait` ends when another instance comes."""
        return self._events.fileno is not None

    def wake(self) -> None:
        """End a wait, this one or the next."""
        self._wake.up()

    def leave(self) -> None:
        """Go out of the others' sight."""
        with contextlib.suppress(OSError):
            (self._folder / self._name).unlink(missing_ok=True)
        self._lock.release()
        self._events.close()
        self._wake.close()
