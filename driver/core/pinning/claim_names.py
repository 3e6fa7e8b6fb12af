"""Finds the claims that containers name: by CDI devices that kubelet asked for, and by variables that these inject."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from dranode.driver.core.claims.record import claim_device

_DIGITS: Final = 9


def claim_key(driver: str, uid: str) -> str:
    """Return what a claim is called in a snapshot: its UID, after its driver where the snapshot is of several."""
    return f"{driver}/{uid}" if driver else uid


class ClaimNames(msgspec.Struct, frozen=True):
    """The names by which containers name the claims of one driver.

    Attributes:
        driver: the driver, in a snapshot of several; else empty.
        cdi_kind: the kind of its CDI devices; empty if there are none.
        variable: the prefix of the variable that CDI injects, before the claim's UID; empty if there is none.
        part_variable: the prefix of the variable of one allocation result, before `<UID>_<number>`; empty if there is
            none.
        pins_cpus: whether it is among those that decide about CPUs.
    """

    driver: str = ""
    cdi_kind: str = ""
    variable: str = ""
    part_variable: str = ""
    pins_cpus: bool = True

    def key(self, uid: str) -> str:
        """Return what the claim with this UID is called in the snapshot."""
        return claim_key(self.driver, uid)

    def of_devices(self, devices: Iterable[str], known: Collection[str]) -> Iterator[tuple[str, int | None]]:
        """Yield claims by key, with the number of the result or None, of which these are the CDI devices.

        A claim's devices are `<kind>=claim-<uid>` and `<kind>=claim-<uid>-<index>`; `known` are the keys of claims on
        record.
        """
        prefix = f"{self.cdi_kind}={claim_device('')}"
        if not self.cdi_kind:
            return
        for device in devices:
            if not device.startswith(prefix):
                continue
            uid = device.removeprefix(prefix)
            whole, _, index = uid.rpartition("-")
            if self.key(uid) not in known and _is_index(index) and self.key(whole) in known:
                yield self.key(whole), int(index)
            else:
                yield self.key(uid), None

    def in_env(self, env: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the claims by key that variables name, with the value of each."""
        if not self.variable:
            return
        for entry in env:
            if entry.startswith(self.variable):
                name, _, value = entry.partition("=")
                yield self.key(name.removeprefix(self.variable)), value

    def parts_in_env(self, key: str, env: Iterable[str]) -> Iterator[int]:
        """Yield the numbers of the claim's results that variables name."""
        uid = key.removeprefix(self.key(""))
        if not self.part_variable or self.key(uid) != key:
            return
        prefix = f"{self.part_variable}{uid}_"
        numbers = (entry.removeprefix(prefix).partition("=")[0] for entry in env if entry.startswith(prefix))
        yield from (int(number) for number in numbers if _is_index(number))


def _is_index(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS
