"""The node's file tree: this machine's own, or a mounted one (`kubectl debug node/...` mounts it at /host)."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dranode.api.errors import DranodeError, UsageError
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.presence import is_folder, is_there
from dranode.driver.machine.root import Root
from dranode.sim.machines.confined import ConfinedRoot, FolderFiles
from dranode.tools.diagnosis.facts import PathState

_ANSWER_SECONDS: Final = 0.5


class HostError(DranodeError):
    """A part of the node could not be read; the text says which and why."""


class UnparsedError(HostError):
    """A configuration file is not valid, so its program would not start again with it."""


@dataclass(frozen=True, slots=True)
class NodeHost:
    """A node's files; paths are absolute as on the node.

    Attributes:
        prefix: the path of the node's root on this machine.
        files: the node's files for reading.
    """

    prefix: Path
    files: Root

    @classmethod
    def at(cls, folder: str) -> NodeHost:
        """Return the node with its root at `folder`; `/` is this machine.

        Raises:
            UsageError: there is no such folder.
        """
        if not Path(folder).is_dir():
            raise UsageError(f"--root {folder} is not a folder; pass the node's root, such as /host")
        return cls(Path(folder), HostRoot() if folder == "/" else ConfinedRoot(FolderFiles(folder)))

    def place(self, path: str) -> Path:
        """Return where a path on the node is on this machine; links are followed as on the node."""
        inner = path.strip("/")
        missing: list[str] = []
        while inner:
            with contextlib.suppress(OSError):
                return self.prefix.joinpath(self.files.resolve(inner), *missing)
            inner, _, last = inner.rpartition("/")
            missing.insert(0, last)
        return self.prefix.joinpath(*missing)

    def text(self, path: str) -> str:
        """Return a file's text.

        Raises:
            OSError: the file does not exist or cannot be read.
        """
        return self.content(path).decode("utf-8", "replace")

    def content(self, path: str) -> bytes:
        """Return a file's bytes.

        Raises:
            OSError: the file does not exist or cannot be read.
        """
        return self.files.read_bytes(path.strip("/"))

    def text_if_there(self, path: str) -> str | None:
        """Return a file's text; None if there is no such file.

        Raises:
            HostError: there is one, and it cannot be read.
        """
        try:
            return self.text(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostError(f"{path} cannot be read: {error.strerror}") from error

    def names(self, path: str) -> list[str]:
        """Return the names in a folder; none if it does not exist.

        Raises:
            PermissionError: the folder may not be read.
            HostError: it cannot be read for another reason.
        """
        try:
            return self.files.listdir(path.strip("/"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            raise
        except OSError as error:
            raise HostError(f"{path} cannot be listed: {error.strerror}") from error

    def folder_state(self, path: str) -> PathState:
        """Return whether a folder exists and can be written.

        Raises:
            PermissionError: a folder above it may not be searched.
        """
        place = self.place(path)
        if not is_there(place):
            return PathState.MISSING
        if not is_folder(place):
            return PathState.WRONG
        return PathState.THERE if os.access(place, os.W_OK | os.X_OK) else PathState.UNUSABLE

    def socket_state(self, path: str) -> PathState:
        """Return whether a socket exists and a process answers it.

        Raises:
            PermissionError: this process may not connect to the socket.
        """
        place = self.place(path)
        try:
            if not stat.S_ISSOCK(place.stat().st_mode):
                return PathState.WRONG
            return PathState.THERE if _answers(place) else PathState.UNUSABLE
        except FileNotFoundError:
            return PathState.MISSING
        except NotADirectoryError:
            return PathState.WRONG


def _answers(place: Path) -> bool:
    # A Unix socket's path has at most 107 bytes. The path below a mounted root may be longer, the one through the
    # folder's descriptor is not.
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(f"/proc/self/fd/{folder}/{place.name}")
            return True
    except PermissionError:
        raise
    except (BlockingIOError, TimeoutError):
        return True  # a process listens, and its queue is full
    except OSError:
        return False
    finally:
        os.close(folder)


@dataclass(frozen=True, slots=True)
class Program:
    """A running program of the node, such as kubelet or the container runtime.

    Attributes:
        name: its process's name in the kernel (`comm`).
        pid: its process id.
        flags: the flags of its command line, without dashes; a flag without a value is empty.
    """

    name: str
    pid: int
    flags: dict[str, str]


def running(host: NodeHost, name: str) -> Program | None:
    """Return the first process with a name in the kernel (`comm`); None if none is visible.

    Raises:
        HostError: the processes cannot be listed.
    """
    return next(iter(all_running(host, name)), None)


def all_running(host: NodeHost, name: str) -> list[Program]:
    """Return the processes with a name in the kernel (`comm`).

    Raises:
        HostError: the processes cannot be listed.
    """
    try:
        pids = host.names("/proc")
    except PermissionError as error:
        raise HostError("/proc may not be listed, so running processes cannot be seen; try as root") from error
    programs: list[Program] = []
    for pid in sorted(int(pid) for pid in pids if pid.isdigit()):
        try:
            # A zombie has no command line.
            if host.text(f"/proc/{pid}/comm").strip() == name and (line := host.text(f"/proc/{pid}/cmdline")):
                programs.append(Program(name, pid, _flags(line.split("\0")[1:])))
        except OSError:
            continue
    return programs


def files_of(host: NodeHost, process: Program) -> NodeHost | None:
    """Return the node's files as a process sees them; None if they may not be read.

    A pod with hostPID sees the node's processes, but its own files.
    """
    if host.prefix != Path("/"):
        return host
    root = Path(f"/proc/{process.pid}/root")
    try:
        next(root.iterdir(), None)
    except OSError:
        return None
    return NodeHost.at(str(root))


def _flags(arguments: list[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    for index, argument in enumerate(arguments):
        if not argument.startswith("-"):
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        given = value if equals else "" if following.startswith("-") else following
        # kubelet adds the gates of a repeated flag to those of the earlier ones.
        gates = name.replace("_", "-") == "feature-gates" and name in flags
        flags[name] = f"{flags[name]},{given}" if gates else given
    return flags
