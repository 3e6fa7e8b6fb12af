"""Tells irqbalance which CPUs to leave alone, through the socket that irqbalance-ui uses.

A command is one message with the sender's credentials, and irqbalance takes those of root. `setup` is answered with
`SLEEP <seconds> ... BANNED <CPU mask>`; `settings cpus <cpu-list>` bans CPUs in place of those before, `NULL` has it
decide by itself again. Source: sock_handle() and scan() in irqbalance.c, since irqbalance 1.3.

Once it was told it sleeps through a round, ten seconds by default, and then attends to who has called meanwhile. An
answer to somebody who has gone ends it: it does not ignore SIGPIPE. So it is asked what it bans only when it has just
attended to a word that it answers with nothing, and what it was told last stands for what it bans until then.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from dranode.cpu.settings import Kind, Noted, Setting
from dranode.driver.core.api.cpuset import CPUSet

FOLDER: Final = "run/irqbalance"
"""What the path of an irqbalance begins with in the notes, wherever the node's files are mounted."""
_SOCKET: Final = re.compile(r"irqbalance(\d+)\.sock", re.ASCII)
_BANNED: Final = re.compile(r"BANNED ([0-9a-f,]+)", re.ASCII)
# It attends within its main loop at once, unless it is moving interrupts.
_SECONDS: Final = 1.0
# Having attended a moment ago it answers, if its processor is not taken away.
_PATIENCE: Final = 15.0
# No command: it closes the connection.
_PROBE: Final = "attend"
_MAX_BYTES: Final = 1 << 16
_SCM_CREDENTIALS: Final = 2
_UNTOLD: Final = "an irqbalance may put interrupts back on quiet CPUs: restart it, or stop it on this node"
_IN_TIME: Final = "within two of its rounds, of 10 s by default"


class Heard(msgspec.Struct, frozen=True):
    """The answers of a machine's irqbalance processes.

    Attributes:
        settings: what each has banned and is to ban besides. One that sleeps and was told something else last is taken
            to have banned that.
        silent: the paths of those that are there and did not answer, or may be.
        said: a sentence on each of these.
    """

    settings: tuple[Setting, ...] = ()
    silent: frozenset[str] = frozenset()
    said: tuple[str, ...] = ()


class IRQBalance:
    """The irqbalance processes of a machine, of which there is one or none.

    Args:
        folder: where their sockets lie: the node's `/run/irqbalance`, as it is mounted.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def hear(self, quiet: CPUSet, noted: Mapping[str, Noted]) -> Heard:
        """Ask each what it has banned.

        Args:
            quiet: what is to be banned besides.
            noted: what is on record by path.
        """
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208 - names alone
        except FileNotFoundError:
            return Heard()
        except OSError as error:
            unseen = frozenset(path for path in noted if path.startswith(FOLDER))
            sentence = f"/{FOLDER} cannot be listed ({error.strerror}), so {_UNTOLD}"
            return Heard(silent=unseen, said=(sentence,) if quiet or unseen else ())
        settings: list[Setting] = []
        silent: dict[str, str] = {}
        for name in filter(_SOCKET.fullmatch, names):
            path = f"{FOLDER}/{name}"
            known = noted.get(path)
            try:
                settings.append(Setting(path, Kind.BANNED, _banned(f"{self._folder}/{name}"), needed=quiet))
            except (FileNotFoundError, ConnectionRefusedError):
                # It has ended: nobody listens there any more.
                continue
            except (TimeoutError, BlockingIOError) as error:
                then = f"it heeds what it was told {_IN_TIME}" if known else _UNTOLD
                silent[path] = f"/{path} gives no answer ({error}): {then}"
                if known and known.given and known.given != (str(CPUSet.parse(known.original) | quiet),):
                    settings.append(Setting(path, Kind.BANNED, CPUSet.parse(known.given[0]), needed=quiet))
            except (OSError, ValueError) as error:
                silent[path] = f"/{path} gives no answer ({error}): {_UNTOLD}"
        said = tuple(sentence for path, sentence in silent.items() if quiet or path in noted)
        return Heard(tuple(settings), frozenset(silent) - {each.path for each in settings}, said)

    def ban(self, setting: Setting, cpus: CPUSet) -> None:
        """Have these CPUs banned and no others, from irqbalance's next round on (10 s by default).

        Raises:
            OSError: it cannot be reached.
        """
        path = f"{self._folder}/{setting.path.rpartition('/')[2]}"
        # It closes once it has read that. One that sleeps reads it later, also if nobody waits any more.
        with _sent(path, f"settings cpus {cpus or 'NULL'}") as connection, contextlib.suppress(TimeoutError):
            connection.recv(1)


def _banned(path: str) -> CPUSet:
    with _sent(path, _PROBE) as connection:
        connection.recv(1)
    with _sent(path, "setup") as connection:
        connection.settimeout(_PATIENCE)
        answer = connection.recv(_MAX_BYTES).decode("ascii", "replace")
    match = _BANNED.search(answer)
    if match is None:
        raise ValueError(f"{answer[:80]!r} names no banned CPUs")
    return CPUSet.parse_mask(match[1])


def _sent(path: str, command: str) -> socket.socket:
    """Send a command and return the connection."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        mine = struct.pack("3i", os.getpid(), os.getuid(), os.getgid())
        connection.sendmsg([command.encode()], [(socket.SOL_SOCKET, _SCM_CREDENTIALS, mine)])
    except BaseException:
        connection.close()
        raise
    return connection
