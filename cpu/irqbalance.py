"""Tells irqbalance which CPUs to leave alone, through the socket that irqbalance-ui uses.

A command is one message with the sender's credentials, and irqbalance takes those of root. `setup` is answered with
`SLEEP <seconds> ... BANNED <CPU mask>`; `settings cpus <cpu-list>` bans CPUs in place of those before, `NULL` has it
decide by itself again. Source: sock_handle() in irqbalance.c, since irqbalance 1.3.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from typing import Final

from dranode.cpu.settings import Kind, Setting
from dranode.driver.core.api.cpuset import CPUSet

# What stands in the notes, wherever the node's files are mounted.
_FOLDER: Final = "run/irqbalance"
_SOCKET: Final = re.compile(r"irqbalance(\d+)\.sock", re.ASCII)
_BANNED: Final = re.compile(r"BANNED ([0-9a-f,]+)", re.ASCII)
# It answers within its main loop, where it sleeps unless it is moving interrupts.
_SECONDS: Final = 1.0
_MAX_BYTES: Final = 1 << 16
_SCM_CREDENTIALS: Final = 2
_UNTOLD: Final = "an irqbalance may put interrupts back on quiet CPUs: restart it, or stop it on this node"


class IRQBalance:
    """The irqbalance processes of a machine, of which there is one or none.

    Args:
        folder: where their sockets lie: the node's `/run/irqbalance`, as it is mounted.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def settings(self, quiet: CPUSet) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
        """Return what each has banned and is to ban besides, and a sentence for each that cannot be told anything."""
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208 - names alone
        except FileNotFoundError:
            return (), ()
        except OSError as error:
            return (), (f"/{_FOLDER} cannot be listed ({error.strerror}), so {_UNTOLD}",)
        settings: list[Setting] = []
        silent: list[str] = []
        for name in filter(_SOCKET.fullmatch, names):
            path = f"{_FOLDER}/{name}"
            try:
                settings.append(Setting(path, Kind.BANNED, _banned(f"{self._folder}/{name}"), needed=quiet))
            except (FileNotFoundError, ConnectionRefusedError):
                # It has ended: nobody listens there any more.
                continue
            except (OSError, ValueError) as error:
                silent.append(f"/{path} gives no answer ({error}), so {_UNTOLD}")
        return tuple(settings), tuple(silent)

    def ban(self, setting: Setting, cpus: CPUSet) -> None:
        """Have these CPUs banned and no others, from irqbalance's next round on (10 s by default).

        Raises:
            OSError: it cannot be reached.
        """
        _ask(f"{self._folder}/{setting.path.rpartition('/')[2]}", f"settings cpus {cpus or 'NULL'}")


def _banned(path: str) -> CPUSet:
    answer = _ask(path, "setup")
    match = _BANNED.search(answer)
    if match is None:
        raise ValueError(f"{answer[:80]!r} names no banned CPUs")
    return CPUSet.parse_mask(match[1])


def _ask(path: str, command: str) -> str:
    """Send a command and return the answer, which is empty for `settings`: irqbalance only closes the connection."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        mine = struct.pack("3i", os.getpid(), os.getuid(), os.getgid())
        connection.sendmsg([command.encode()], [(socket.SOL_SOCKET, _SCM_CREDENTIALS, mine)])
        return connection.recv(_MAX_BYTES).decode("ascii", "replace")
