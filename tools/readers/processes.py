"""Finds programs among the processes of the node; a pod with its own PID namespace sees none of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dranode.tools.readers.host import HostError, NodeHost


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the node that runs, such as the kubelet or the container runtime.

    Attributes:
        name: its name, as the kernel knows it.
        pid: its process id.
        flags: the flags of its command line, without dashes; a flag without a value is empty.
    """

    name: str
    pid: int
    flags: dict[str, str]


def running(host: NodeHost, name: str) -> Program | None:
    """Return the process with a name, as the kernel knows it; None if there is none to see.

    Raises:
        HostError: the processes cannot be listed.
    """
    try:
        pids = host.names("/proc")
    except PermissionError as error:
        raise HostError("/proc may not be listed, so what runs is not to be seen; try as root") from error
    for pid in pids:
        if not pid.isdigit():
            continue
        try:
            # A process that has ended, but is not reaped yet, has no command line.
            if host.text(f"/proc/{pid}/comm").strip() == name and (line := host.text(f"/proc/{pid}/cmdline")):
                return Program(name, int(pid), _flags(line.split("\0")[1:]))
        except OSError:
            continue
    return None


def files_of(host: NodeHost, process: Program) -> NodeHost | None:
    """Return the node's files as a process sees them; a pod that sees the node's processes still has its own files.

    The answer is None if they may not be read.
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
        flags[name] = value if equals else "" if following.startswith("-") else following
    return flags
