"""Tells systemd which CPUs the host's services may use: `AllowedCPUs` of its units, over D-Bus.

Where systemd has made the cgroups it is their one writer: `daemon-reload` takes back what somebody else wrote there,
and switches the cpuset controller off again (systemd's CGROUP_DELEGATION document). A property that is set at run time
(`SetUnitProperties`, as `systemctl set-property --runtime` does) outlives that until the next boot, as a drop-in below
`/run/systemd/system.control`. An empty set means all CPUs; a unit that is not active has it when it starts.

systemd may hang, or the bus may: all that is asked and told in one round has one deadline, and after a round without an
answer the next ones are left out, ever more of them.

Source: org.freedesktop.systemd1(5), the D-Bus specification.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_call
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import prep_socket
from jeepney.low_level import Parser

from dranode.cpu.setting_files import HOST_UNITS
from dranode.cpu.settings import UNITS, Kind, Setting
from dranode.driver.core.api.cpuset import CPUSet

_NAME: Final = "org.freedesktop.systemd1"
# For all that is asked and told in one round.
_SECONDS: Final = 5.0
# How long rounds are left out after one without an answer; it doubles with each.
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
        """Begin a round, with its time for everything that follows; none while rounds are left out."""
        self._left = 0.0
        if self._clock() >= self._not_before:
            self._left = _SECONDS
            self._silences = self._silences if self._silent else 0
            self._silent = False

    def settings(self) -> tuple[Setting, ...]:
        """Return what each unit of the host is allowed; none where systemd does not answer."""
        try:
            with self._connected() as bus:
                units = tuple(Setting(f"{UNITS}{unit}", Kind.UNIT, _allowed(bus, unit)) for unit in HOST_UNITS)
        except OSError:
            return ()
        return units

    def reread(self, setting: Setting) -> CPUSet | None:
        """Return the CPUs that a unit is allowed now; None if systemd does not answer."""
        try:
            with self._connected() as bus:
                return _allowed(bus, setting.path.removeprefix(UNITS))
        except OSError:
            return None

    def allow(self, setting: Setting, cpus: CPUSet) -> None:
        """Allow a unit these CPUs, or all if there are none, until the next boot.

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
    """One connection to a bus, with a deadline. That of jeepney waits for ever for the bus to answer its greeting."""

    def __init__(self, path: str, ends: float, clock: Callable[[], float]) -> None:
        """Connect and make the connection known.

        Raises:
            OSError: nobody answers, or what does is no bus.
        """
        self._ends, self._clock = ends, clock
        self._parser, self._serials = Parser(), itertools.count(1)
        try:
            self._socket: socket.socket = prep_socket(path, timeout=self._left())
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EPROTO, f"{path} is no D-Bus: {error}") from error
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
        """Call a method, and return what it answers.

        Raises:
            OSError: it refuses, does not answer in time, or answers nonsense.
        """
        answer = self._exchange(new_method_call(peer, method, signature, body))
        if answer.header.message_type is MessageType.error:
            said = "; ".join(str(part).strip() for part in answer.body if str(part).strip())
            raise OSError(errno.EPROTO, said or f"{method} is refused, without a reason")
        return answer.body

    def _exchange(self, message: Message) -> Message:
        serial = next(self._serials)
        self._socket.settimeout(self._left())
        self._socket.sendall(message.serialise(serial=serial))
        while True:
            try:
                answer: Message | None = self._parser.get_next_message()
            except Exception as error:
                raise OSError(errno.EPROTO, f"what the bus answers is no D-Bus: {error}") from error
            if answer is None:
                self._socket.settimeout(self._left())
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, "nothing: the bus has hung up")
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
