"""Records as CDI specs tell them: what is left of a claim where the ledger does not say what it holds."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from dranode.driver.core.claims.hooks import Recovers
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.record import Record, copied, recovered
from dranode.driver.node.specs import Specs

log = logging.getLogger(__name__)


class SpecRecords(msgspec.Struct, frozen=True):
    """The records of one driver's CDI specs.

    Attributes:
        plugin: the driver, which may know a form of specs that is given.
        specs: the CDI specs.
    """

    plugin: Plugin
    specs: Specs

    def uids(self) -> tuple[str, ...]:
        """The claims that have a spec, in order.

        Raises:
            LedgerError: the CDI directory cannot be listed.
        """
        return tuple(sorted(self.specs.uids()))

    def all(self) -> Mapping[str, Record]:
        """Return what every spec says, by UID.

        Raises:
            LedgerError: the CDI directory cannot be listed.
        """
        return {uid: self.record(uid) for uid in self.uids()}

    def record(self, uid: str) -> Record:
        """Return what a claim's spec says: the copy of its record, else what the driver reads there.

        Lost if neither is.
        """
        spec = self.specs.read(uid)
        if spec is None:
            return Record(uid=uid)
        copy = copied(uid, spec)
        if copy is not None:
            return copy
        try:
            grant = self.plugin.recover(uid, spec) if isinstance(self.plugin, Recovers) else None
        except Exception:
            log.exception("uid=%s driver=%s: its CDI spec is not understood", uid, self.plugin.driver)
            grant = None
        return Record(uid=uid) if grant is None else recovered(uid, grant)
