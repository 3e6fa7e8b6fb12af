"""The processes of the node, as far as they are to be seen: none of them from a pod of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dranode.driver.doctor.host import NodeHost


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the node that runs, such as the kubelet or the container runtime.

    Attributes:
        pid: its number.
        flags: of its command line, without dashes; empty for a flag without a value.
    """

    pid: int
    flags: dict[str, str]


def running(host: NodeHost, name: str) -> Program | None:
    """The process that the kernel knows by a name; None if none is to be seen.

    Raises:
        PermissionError: the processes may not be looked at.
    """
    for pid in host.names("/proc"):
        if not pid.isdigit():
            continue
        try:
            # One that has ended and is not reaped yet has no command line any more.
            if host.text(f"/proc/{pid}/comm").strip() == name and (line := host.text(f"/proc/{pid}/cmdline")):
                return Program(int(pid), _flags(line.split("\0")[1:]))
        except OSError:
            continue
    return None


def files_of(host: NodeHost, process: Program) -> NodeHost | None:
    """The node as the process sees it: a pod that sees the node's processes has files of its own.

    None where that may not be looked at.
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
