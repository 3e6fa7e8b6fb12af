"""The processes of a node that also decide where host work runs: irqbalance and systemd.

Either may be slow or hang, so the lock on decisions is not held while the driver waits for them: they are asked without
it, the changes are decided and noted under it, and they are told without it. The notes are those of `settings`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Self

import msgspec
from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_call
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import prep_socket
from jeepney.low_level import Parser
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.cpu.isolation.setting_files import every_cpu, has_unified_cgroups, host_units, why_kept
from dranode.cpu.isolation.settings import (
    UNITS,
    Kind,
    Machine,
    Noted,
    Setting,
    Tuning,
    TuningNotes,
    noted_after,
    refused_settings,
    tuning,
    unread_settings,
)
from dranode.driver.machine.root import Root

# Tells irqbalance which CPUs to leave alone, through the socket that irqbalance-ui uses. A command is one message with
# the sender's credentials, and irqbalance accepts those of root. `setup` is answered with `SLEEP <seconds> ... BANNED
# <CPU mask>`; `settings cpus <cpu-list>` replaces the banned CPUs, and `NULL` lets irqbalance decide again. Source:
# sock_handle() and scan() in irqbalance.c, since irqbalance 1.3.
#
# After a command it sleeps for a round, ten seconds by default, and only then handles the connections made meanwhile.
# If the caller has gone by then, its answer ends it, because it does not ignore SIGPIPE. So it is asked for its banned
# CPUs only when it has just handled a command that has no answer. Until then, what it was sent last is assumed.

BALANCERS: Final = "run/irqbalance"
"""The prefix of the path of an irqbalance in the notes, which does not depend on where the node's files are mounted."""
_SOCKET: Final = re.compile(r"irqbalance(\d+)\.sock", re.ASCII)
_BANNED: Final = re.compile(r"BANNED ([0-9a-f,]+)", re.ASCII)
# It handles a connection at once, unless it sleeps or moves interrupts.
_IRQBALANCE_SECONDS: Final = 1.0
# It has just handled a command, so it answers soon unless it does not get a processor.
_PATIENCE: Final = 15.0
# This is not a command: irqbalance reads it and closes the connection.
_PROBE: Final = "attend"
_MAX_BYTES: Final = 1 << 16
_SCM_CREDENTIALS: Final = 2
# Before 1.9.5 it reads 500 bytes of a command, and closes the connection before the rest.
_CUT: Final = "it did not read their whole list; irqbalance 1.9.5 and newer read long ones"
_UNTOLD: Final = "it may put interrupts back on quiet CPUs: restart it, or stop it on this node"
_IN_TIME: Final = "within two of its rounds, of 10 s by default"


class BalancerState(msgspec.Struct, frozen=True):
    """The answers of a machine's irqbalance processes.

    Attributes:
        settings: the CPUs that each has banned, and those that it should ban too. For one that sleeps they are those
            that it was sent last.
        silent: the paths of those that exist, or may exist, and did not answer.
        sentences: a sentence about each of these.
    """

    settings: tuple[Setting, ...] = ()
    silent: frozenset[str] = frozenset()
    sentences: tuple[str, ...] = ()


class IRQBalance:
    """The irqbalance processes of a machine; normally there is at most one.

    Args:
        folder: the folder of their sockets: the node's `/run/irqbalance`, as it is mounted.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def ask(self, quiet: CPUSet, noted: Mapping[str, Noted]) -> BalancerState:
        """Ask each process which CPUs it has banned.

        Args:
            quiet: the CPUs that it should ban too.
            noted: the notes, by path.
        """
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208 - names alone
        except FileNotFoundError:
            return BalancerState()
        except OSError as error:
            unseen = frozenset(path for path in noted if path.startswith(BALANCERS))
            sentence = f"/{BALANCERS} cannot be listed ({error.strerror}); if an irqbalance runs, {_UNTOLD}"
            return BalancerState(silent=unseen, sentences=(sentence,) if quiet or unseen else ())
        settings: list[Setting] = []
        silent: dict[str, str] = {}
        for name in filter(_SOCKET.fullmatch, names):
            path = f"{BALANCERS}/{name}"
            known = noted.get(path)
            try:
                settings.append(Setting(path, Kind.BANNED, _banned(f"{self._folder}/{name}"), needed=quiet))
            except (FileNotFoundError, ConnectionRefusedError):
                # The process has ended.
                continue
            except (TimeoutError, BlockingIOError) as error:
                then = f"it applies the last change {_IN_TIME}" if known else _UNTOLD
                silent[path] = f"/{path} does not answer ({error}): {then}"
                if known and known.given and known.given != (str(CPUSet.parse(known.original) | quiet),):
                    settings.append(Setting(path, Kind.BANNED, CPUSet.parse(known.given[0]), needed=quiet))
            except (OSError, ValueError) as error:
                silent[path] = f"/{path} does not answer ({error}): {_UNTOLD}"
        sentences = tuple(sentence for path, sentence in silent.items() if quiet or path in noted)
        return BalancerState(tuple(settings), frozenset(silent) - {setting.path for setting in settings}, sentences)

    def ban(self, setting: Setting, cpus: CPUSet) -> None:
        """Ban exactly these CPUs. irqbalance applies this in its next round, within 10 s by default.

        Raises:
            OSError: it cannot be reached.
        """
        path = f"{self._folder}/{setting.path.rpartition('/')[2]}"
        # It closes the connection after it has read the command. If it sleeps it reads the command later, also if this
        # side has closed by then.
        with _sent(path, f"settings cpus {cpus or 'NULL'}") as connection, contextlib.suppress(TimeoutError):
            try:
                connection.recv(1)
            except ConnectionResetError as error:
                raise OSError(errno.EMSGSIZE, _CUT) from error


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
        connection.settimeout(_IRQBALANCE_SECONDS)
        connection.connect(path)
        credentials = struct.pack("3i", os.getpid(), os.getuid(), os.getgid())
        connection.sendmsg([command.encode()], [(socket.SOL_SOCKET, _SCM_CREDENTIALS, credentials)])
    except BaseException:
        connection.close()
        raise
    return connection


# Tells systemd which CPUs the host's services may use: `AllowedCPUs` of its units, over D-Bus. systemd is the only
# writer of the cgroups that it has made: `daemon-reload` reverts what others wrote there, and disables the cpuset
# controller again (systemd's CGROUP_DELEGATION document). A property that is set at run time (`SetUnitProperties`, as
# `systemctl set-property --runtime` does) stays until the next boot, as a drop-in below `/run/systemd/system.control`.
# An empty set means all CPUs. A unit that is not active gets the property when it starts.
#
# systemd or the bus may hang: all calls of one round share one deadline, and after a round without an answer the next
# rounds are skipped, for a time that doubles. Source: org.freedesktop.systemd1(5), the D-Bus specification.

_NAME: Final = "org.freedesktop.systemd1"
# For all calls of one round.
_SECONDS: Final = 5.0
# How long rounds are skipped after a round without an answer; it doubles each time.
_PAUSE: Final = 10.0
_LONGEST_PAUSE: Final = 300.0
_SILENCE: Final = f"nothing: no answer within {_SECONDS:.0f} s"
_CHUNK: Final = 1 << 16
_INTERFACES: Final = {"slice": f"{_NAME}.Slice", "scope": f"{_NAME}.Scope"}


class Systemd:
    """The systemd of a machine.

    Args:
        bus: the socket of the node's system bus, as it is mounted; the node may have none.
        clock: seconds, monotonic.
    """

    def __init__(self, bus: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock = clock
        self._left = _SECONDS
        self._silences = 0
        self._silent = False
        self._not_before = 0.0

    def begin(self) -> None:
        """Begin a round and its deadline; there is no time for calls while rounds are skipped."""
        self._left = 0.0
        if self._clock() >= self._not_before:
            self._left = _SECONDS
            self._silences = self._silences if self._silent else 0
            self._silent = False

    def settings(self, units: Iterable[str]) -> tuple[Setting, ...]:
        """Return the CPUs that each unit may use; empty if systemd does not answer."""
        try:
            with self._connected() as bus:
                return tuple(Setting(f"{UNITS}{unit}", Kind.UNIT, _allowed(bus, unit)) for unit in units)
        except OSError:
            return ()

    def reread(self, setting: Setting) -> CPUSet | None:
        """Return the CPUs that a unit may use now; None if systemd does not answer."""
        try:
            with self._connected() as bus:
                return _allowed(bus, setting.path.removeprefix(UNITS))
        except OSError:
            return None

    def allow(self, setting: Setting, cpus: CPUSet) -> None:
        """Let a unit use these CPUs, or all if the set is empty, until the next boot.

        Raises:
            OSError: systemd does not answer, or refuses.
        """
        mask = cpus.mask.to_bytes((cpus.mask.bit_length() + 7) // 8, "little")
        unit = setting.path.removeprefix(UNITS)
        with self._connected() as bus:
            bus.call(_manager(), "SetUnitProperties", "sba(sv)", (unit, True, [("AllowedCPUs", ("ay", mask))]))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[_Bus]:
        if self._left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, _SILENCE)
        began = self._clock()
        try:
            with _Bus(self._bus, began + self._left, self._clock) as bus:
                yield bus
        except TimeoutError:
            self._left = 0.0
            self._not_before = self._clock() + min(_LONGEST_PAUSE, _PAUSE * 2.0 ** min(self._silences, 16))
            self._silences += 1
            self._silent = True
            raise TimeoutError(errno.ETIMEDOUT, _SILENCE) from None
        finally:
            self._left = max(0.0, self._left - (self._clock() - began))


class _Bus:
    """One connection to a bus, with a deadline. jeepney's own would wait for ever for the answer to its greeting."""

    def __init__(self, path: str, ends: float, clock: Callable[[], float]) -> None:
        """Connect and say hello.

        Raises:
            OSError: there is no answer, or the peer is not a bus.
        """
        self._ends, self._clock = ends, clock
        self._parser, self._serials = Parser(), itertools.count(1)
        try:
            self._socket: socket.socket = prep_socket(path, timeout=self._left())
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EPROTO, f"{path} is not a D-Bus: {error}") from error
        try:
            self._exchange(message_bus.Hello())
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, peer: DBusAddress, method: str, signature: str, body: tuple[Any, ...]) -> Any:
        """Call a method and return its answer.

        Raises:
            OSError: it refuses, does not answer in time, or its answer cannot be decoded.
        """
        answer = self._exchange(new_method_call(peer, method, signature, body))
        if answer.header.message_type is MessageType.error:
            reason = "; ".join(str(part).strip() for part in answer.body if str(part).strip())
            raise OSError(errno.EPROTO, reason or f"{method} is refused, without a reason")
        return answer.body

    def _exchange(self, message: Message) -> Message:
        serial = next(self._serials)
        self._socket.settimeout(self._left())
        self._socket.sendall(message.serialise(serial=serial))
        while True:
            try:
                answer: Message | None = self._parser.get_next_message()
            except Exception as error:
                raise OSError(errno.EPROTO, f"the answer of the bus is not valid D-Bus: {error}") from error
            if answer is None:
                self._socket.settimeout(self._left())
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, "nothing: the bus has closed the connection")
                self._parser.add_data(data)
            elif answer.header.fields.get(HeaderFields.reply_serial) == serial:
                return answer

    def _left(self) -> float:
        left = self._ends - self._clock()
        if left <= 0:
            raise TimeoutError
        return left


def _allowed(bus: _Bus, unit: str) -> CPUSet:
    (path,) = bus.call(_manager(), "LoadUnit", "s", (unit,))
    interface = _INTERFACES[unit.rpartition(".")[2]]
    properties = DBusAddress(path, _NAME, "org.freedesktop.DBus.Properties")
    ((_, mask),) = bus.call(properties, "Get", "ss", (interface, "AllowedCPUs"))
    return CPUSet.of_mask(int.from_bytes(mask, "little"))


def _manager() -> DBusAddress:
    return DBusAddress("/org/freedesktop/systemd1", _NAME, f"{_NAME}.Manager")


def is_peers(path: str) -> bool:
    """Return whether a setting on record belongs to irqbalance or systemd."""
    return path.startswith((UNITS, BALANCERS))


class Asked(msgspec.Struct, frozen=True):
    """The answers of irqbalance and systemd.

    Attributes:
        balancer: irqbalance's answers.
        units: the CPUs that systemd lets the units of the host use; empty if it does not answer.
    """

    balancer: BalancerState
    units: tuple[Setting, ...]

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Return all settings in the answers."""
        return (*self.balancer.settings, *self.units)


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of the changes that irqbalance and systemd were told to make.

    Attributes:
        failures: the changes that failed, by path.
        after: the units that were changed, as they are now, by path; without those that systemd does not report.
    """

    failures: Mapping[str, OSError] = {}
    after: Mapping[str, Setting] = {}


class Peers(msgspec.Struct):
    """The irqbalance and the systemd of one machine.

    Attributes:
        root: the machine's files; None if there is neither irqbalance nor systemd to talk to.
        balancer: the node's irqbalance; None if it cannot be reached.
        systemd: the node's systemd; None if it cannot be reached.
        by_systemd: whether systemd decides where the host's services run; None before it was asked.
        sentences: one sentence for each thing that they keep on quiet CPUs, from the last round.
    """

    root: Root | None = None
    balancer: IRQBalance | None = None
    systemd: Systemd | None = None
    by_systemd: bool | None = False
    sentences: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.systemd is not None and self.root is not None and has_unified_cgroups(self.root):
            self.by_systemd = None

    @property
    def there(self) -> bool:
        """Return whether irqbalance or systemd can be asked."""
        return self.balancer is not None or self.systemd is not None

    def ask(self, machine: Machine, noted: TuningNotes) -> Asked:
        """Ask both for their present settings."""
        balancer = BalancerState() if self.balancer is None else self.balancer.ask(machine.quiet, noted.settings)
        return Asked(balancer, self._units())

    def decide(self, asked: Asked, machine: Machine, noted: TuningNotes) -> Tuning:
        """Decide what both should do; the record of the kernel's files does not change."""
        # Claims may have come or gone since they were asked.
        settings = [
            replace(setting, needed=machine.quiet) if setting.kind is Kind.BANNED else setting
            for setting in asked.settings
        ]
        peer_paths = {path for path in noted.settings if is_peers(path)}
        silent = asked.balancer.silent | {path for path in peer_paths if path.startswith(UNITS)}
        others = (noted.settings.keys() | (noted.interrupts or {}).keys()) - peer_paths
        return tuning(settings, noted, machine, (silent - {setting.path for setting in settings}) | others)

    def carry_out(self, tuned: Tuning) -> Outcome:
        """Tell them to make the changes."""
        failures: dict[str, OSError] = {}
        for write in tuned.writes:
            try:
                self._tell(write.setting, write.cpus)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                failures[write.setting.path] = error
        units = (write.setting for write in tuned.writes if write.setting.kind is Kind.UNIT)
        return Outcome(failures, {unit.path: now for unit in units if (now := self._reread(unit)) is not None})

    def noted_after(self, tuned: Tuning, outcome: Outcome, noted: TuningNotes) -> TuningNotes:
        """Return the present notes, updated with the outcome."""
        writes = tuple(write for write in tuned.writes if write.setting.path in noted.settings)
        unread = {write.setting.path for write in writes if write.setting.kind is Kind.UNIT} - outcome.after.keys()
        return noted_after(Tuning(noted, writes), outcome.after, {}, unread, outcome.failures)

    def report(self, asked: Asked, tuned: Tuning, outcome: Outcome, noted: TuningNotes) -> None:
        """Keep a sentence for each change that they did not make."""
        peer_notes = {path: known for path, known in noted.settings.items() if is_peers(path)}
        refused = refused_settings(tuned, replace(noted, settings=peer_notes), outcome.failures)
        sentences = (*asked.balancer.sentences, *refused)
        paths = [setting.path for setting in asked.settings]
        self.sentences = (*sentences, *unread_settings(peer_notes, paths, sentences))

    def _units(self) -> tuple[Setting, ...]:
        """Return the CPUs that systemd lets the host's units use; empty if it does not answer, or without cgroup v2."""
        if self.systemd is None or self.root is None or not has_unified_cgroups(self.root):
            self.by_systemd = False
            return ()
        self.systemd.begin()
        units = tuple(map(self._unit, self.systemd.settings(host_units(self.root))))
        self.by_systemd = bool(units)
        return units

    def _unit(self, setting: Setting) -> Setting:
        kept = self.root is not None and bool(why_kept(self.root, setting.path.removeprefix(UNITS)))
        return replace(setting, cpus=self._some(setting.cpus), kept=kept)

    def _some(self, cpus: CPUSet) -> CPUSet:
        """Return the CPUs of a unit; an empty set if it has all of them."""
        return CPUSet() if self.root is not None and cpus == every_cpu(self.root) else cpus

    def _reread(self, setting: Setting) -> Setting | None:
        cpus = None if self.systemd is None else self.systemd.reread(setting)
        return None if cpus is None else replace(setting, cpus=self._some(cpus))

    def _tell(self, setting: Setting, cpus: CPUSet) -> None:
        if setting.kind is Kind.BANNED and self.balancer is not None:
            self.balancer.ban(setting, cpus)
        elif setting.kind is Kind.UNIT and self.systemd is not None:
            if not cpus and self.root is not None and (every := every_cpu(self.root)):
                # systemd leaves the old CPUs in a cgroup whose property becomes empty while another unit has CPUs of
                # its own, so all CPUs are set first.
                self.systemd.allow(setting, every)
            self.systemd.allow(setting, cpus)
