"""Carries effects out, in order; nothing else of the driver acts on a claim's behalf."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from dranode.driver.core.api.errors import DranodeError, in_words
from dranode.driver.core.claims.answers import Refused
from dranode.driver.core.claims.effects import (
    Commit,
    Configure,
    Decision,
    Effect,
    RemoveMetadata,
    RemoveSpec,
    Restore,
    WriteMetadata,
    WriteSpec,
)
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.hooks import Configures, Recovers
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.record import Record
from dranode.driver.node.discovery import Discovery
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.record_store import Holders
from dranode.driver.node.specs import Marks, Specs

log = logging.getLogger(__name__)


@dataclass
class Interpreter:
    """Does what effects say, under the lock on decisions.

    Attributes:
        plugin: the driver, who knows its hardware.
        holders: the ledger and its index.
        specs: the CDI specs.
        metadata: where workloads are told of their devices; None if they are not.
        discovery: what the driver has read of the hardware, for the metadata.
        left: the CDI specs of each claim as this process left them; a claim without is to be looked into.
        undescribed: is told of each claim whose metadata cannot be written, and why.
    """

    plugin: Plugin
    holders: Holders
    specs: Specs
    metadata: DeviceMetadata | None
    discovery: Discovery
    left: dict[str, Marks] = field(default_factory=dict)
    undescribed: Callable[[ClaimRef, str], None] = lambda _claim, _reason: None

    def execute(self, decision: Decision) -> dict[str, Refused]:
        """Commit what was decided, then carry its effects out; failures come by UID.

        Raises:
            LedgerError: it cannot be committed.
        """
        if decision.commit:
            self.commit(decision.commit, failures=())
        return self.carry_out(decision.effects)

    def carry_out(self, effects: Iterable[Effect]) -> dict[str, Refused]:
        """Carry effects out in order; one that fails ends its claim's effects and no other's. Failures come by UID."""
        failures: dict[str, Refused] = {}
        for effect in effects:
            if isinstance(effect, Commit):
                self.commit(effect, failures)
                continue
            uid = effect.uid if isinstance(effect, (RemoveSpec, RemoveMetadata)) else effect.record.uid
            if uid in failures:
                continue
            try:
                self.act(effect)
            except DranodeError as error:
                log.warning("uid=%s driver=%s: %s", uid, self.plugin.driver, error)
                failures[uid] = Refused(str(error))
            except Exception as error:
                log.exception("uid=%s driver=%s: %s failed", uid, self.plugin.driver, type(effect).__name__)
                failures[uid] = Refused(
                    f"{type(effect).__name__} failed inside {self.plugin.driver}: {in_words(error)}"
                )
        return failures

    def commit(self, commit: Commit, failures: Container[str]) -> None:
        """Commit what belongs to claims that have not failed.

        Raises:
            LedgerError: it cannot be committed.
        """
        kept = Commit(
            put=tuple(record for record in commit.put if record.uid not in failures),
            drop=tuple(uid for uid in commit.drop if uid not in failures),
        )
        if kept:
            with self.holders.transaction():
                self.holders.commit(kept)

    def act(self, effect: Configure | Restore | WriteSpec | RemoveSpec | WriteMetadata | RemoveMetadata) -> None:
        """Carry one effect out.

        Raises:
            DranodeError: it cannot be.
        """
        match effect:
            case Configure(record):
                if isinstance(self.plugin, Configures):
                    self.plugin.configure(record.ref, record.grants)
            case Restore(record):
                if isinstance(self.plugin, Configures):
                    self.plugin.restore(record.ref, record.grants)
            case WriteSpec(record):
                self.write(record)
            case RemoveSpec(uid):
                self.left.pop(uid, None)
                self.specs.remove(uid)
            case WriteMetadata(record):
                self._describe_if_possible(record)
                self.note(record)
            case RemoveMetadata(claim, requests):
                if self.metadata is not None:
                    self.metadata.remove(claim, requests)
            case _:
                assert_never(effect)

    def write(self, record: Record) -> bool:
        """Write a claim's CDI spec, completed by what only the live machine knows; False if it says the same already.

        Raises:
            DranodeError: it cannot be written, or something that it names is not there.
        """
        grants = self.plugin.complete(record.ref, record.grants)
        # A driver's own form says nothing of several requests, whose CDI devices kubelet goes on asking for.
        several = any(grant.cpus is not None for grant in grants)
        original = None if isinstance(self.plugin, Recovers) and not several else record
        return self.specs.write(msgspec.structs.replace(record, grants=grants), original)

    def note(self, record: Record) -> None:
        """Note the claim's files as they are: this process has just written or seen that they say what they should."""
        names = self.metadata.spec_names(record) if self.metadata is not None else ()
        marks = self.specs.marks_of((self.specs.name(record.uid), *names))
        if marks is not None:
            self.left[record.uid] = marks
        else:
            self.left.pop(record.uid, None)

    def describe(self, record: Record) -> None:
        """Write a claim's metadata, if workloads are told of their devices.

        Raises:
            DranodeError: it cannot be written.
        """
        if self.metadata is None:
            return
        for uid in self.metadata.predecessors(record):
            # One whose record was lost is never unprepared, and of a name there is one claim at a time.
            if uid not in self.holders.records and uid not in self.holders.damaged:
                self.metadata.remove(ClaimRef(record.namespace, record.name, uid), ())
        self.metadata.write(record, self.discovery.inventory)

    def _describe_if_possible(self, record: Record) -> None:
        # A workload can do without it, so a failure is nobody else's.
        try:
            self.describe(record)
        except DranodeError as error:
            log.warning("uid=%s driver=%s: %s", record.uid, self.plugin.driver, error)
            self.undescribed(record.ref, str(error))
