"""Tells systemd which CPUs the host's services may use: `AllowedCPUs` of its units, over D-Bus.

Where systemd has made the cgroups it is their one writer: `daemon-reload` takes back what somebody else wrote there,
and switches the cpuset controller off again (systemd's CGROUP_DELEGATION document). A property that is set at run time
(`SetUnitProperties`, as `systemctl set-property --runtime` does) outlives that until the next boot, as a drop-in below
`/run/systemd/system.control`. An empty set means all CPUs; a unit that is not active has it when it starts.

Source: org.freedesktop.systemd1(5), the D-Bus specification.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from dranode.cpu.setting_files import HOST_UNITS
from dranode.cpu.settings import UNITS, Kind, Setting
from dranode.driver.core.api.cpuset import CPUSet

if TYPE_CHECKING:
    from jeepney import DBusAddress, Message
    from jeepney.io.blocking import DBusConnection

_NAME: Final = "org.freedesktop.systemd1"
_SECONDS: Final = 5.0
_INTERFACES: Final = {"slice": f"{_NAME}.Slice", "scope": f"{_NAME}.Scope"}


class Systemd:
    """The systemd of a machine.

    Args:
        bus: the socket of the node's system bus, as it is mounted; the node may have none.
    """

    def __init__(self, bus: str) -> None:
        self._bus = bus

    def settings(self) -> tuple[Setting, ...]:
        """Return what each unit of the host is allowed; none where systemd does not answer."""
        try:
            with self._connected() as connection:
                return tuple(Setting(f"{UNITS}{unit}", Kind.UNIT, _allowed(connection, unit)) for unit in HOST_UNITS)
        except OSError:
            return ()

    def reread(self, setting: Setting) -> CPUSet | None:
        """Return the CPUs that a unit is allowed now; None if systemd does not answer."""
        try:
            with self._connected() as connection:
                return _allowed(connection, setting.path.removeprefix(UNITS))
        except OSError:
            return None

    def allow(self, setting: Setting, cpus: CPUSet) -> None:
        """Allow a unit these CPUs, or all if there are none, until the next boot.

        Raises:
            OSError: systemd does not answer, or refuses.
        """
        mask = cpus.mask.to_bytes((cpus.mask.bit_length() + 7) // 8, "little")
        unit = setting.path.removeprefix(UNITS)
        with self._connected() as connection:
            properties = [("AllowedCPUs", ("ay", mask))]
            _call(connection, _manager(), "SetUnitProperties", "sba(sv)", (unit, True, properties))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[DBusConnection]:
        from jeepney.io.blocking import open_dbus_connection  # noqa: PLC0415 - few nodes need it

        try:
            connection = open_dbus_connection(f"unix:path={self._bus}", auth_timeout=_SECONDS)
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EPROTO, f"{self._bus} is no D-Bus: {error}") from error
        with connection:
            yield connection


def _allowed(connection: DBusConnection, unit: str) -> CPUSet:
    from jeepney import DBusAddress  # noqa: PLC0415 - see above

    (path,) = _call(connection, _manager(), "LoadUnit", "s", (unit,))
    interface = _INTERFACES[unit.rpartition(".")[2]]
    properties = DBusAddress(path, _NAME, "org.freedesktop.DBus.Properties")
    ((_, mask),) = _call(connection, properties, "Get", "ss", (interface, "AllowedCPUs"))
    return CPUSet.of_mask(int.from_bytes(mask, "little"))


def _manager() -> DBusAddress:
    from jeepney import DBusAddress  # noqa: PLC0415 - see above

    return DBusAddress("/org/freedesktop/systemd1", _NAME, f"{_NAME}.Manager")


def _call(connection: DBusConnection, peer: DBusAddress, method: str, signature: str, body: tuple[Any, ...]) -> Any:
    from jeepney import MessageType, new_method_call  # noqa: PLC0415 - see above

    answer: Message = connection.send_and_get_reply(new_method_call(peer, method, signature, body), timeout=_SECONDS)
    if answer.header.message_type is MessageType.error:
        raise OSError(errno.EPROTO, "; ".join(map(str, answer.body)) or f"{method} is refused")
    return answer.body
