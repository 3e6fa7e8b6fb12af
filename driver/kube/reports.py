"""Reports to the cluster what became of claims: a driver's node whose answers are seen on their way to kubelet.

Answers pass through unchanged and at once; status and events follow from threads of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import assert_never

import msgspec

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.answers import Answer, Conflict, Prepared, Refused
from dranode.driver.core.claims.calls import Awaited, PreparingNode, always
from dranode.driver.core.claims.events import PrepareFailed
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.status import failed_states, prepared_states
from dranode.driver.kube.events import KubeEvents
from dranode.driver.kube.status import ClaimStatus

log = logging.getLogger(__name__)


class ReportingNode(msgspec.Struct, frozen=True):
    """A node whose answers are reported.

    Attributes:
        node: decides and acts.
        events: writes the events of failures.
        status: writes claims' status; None if it is not written.
    """

    node: PreparingNode
    events: KubeEvents
    status: ClaimStatus | None

    def prepare(
        self, asked: Mapping[ClaimRef, ResourceClaim | DranodeError], awaited: Awaited = always
    ) -> Mapping[str, Answer]:
        """Prepare claims; an answer for each, by UID."""
        new = {ref.uid for ref in asked if self.status is not None and self.node.record(ref.uid) is None}
        answers = self.node.prepare(asked, awaited)
        for ref, claim in asked.items():
            try:
                self._report(ref, claim, answers[ref.uid], new=ref.uid in new)
            except Exception:  # what a plug-in says of a device may be anything, and the claim is prepared all the same
                log.exception("claim=%s uid=%s driver=%s: not reported", ref, ref.uid, self.node.plugin.driver)
        return answers

    def unprepare(self, refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> Mapping[str, Refused | None]:
        """Unprepare claims; for each, by UID, None or why it is not unprepared."""
        answers = self.node.unprepare(refs, awaited)
        # Those without a record too: another instance may have prepared them, or they failed, and said so.
        for ref in refs:
            if self.status is not None and answers[ref.uid] is None:
                self.status.withdraw(ref)
        return answers

    def _report(self, ref: ClaimRef, claim: ResourceClaim | DranodeError, answer: Answer, *, new: bool) -> None:
        match answer:
            case Prepared():
                self._prepared(ref, claim, new=new)
            case Refused(reason) | Conflict(reason):
                self._refused(ref, claim, reason)
            case _:
                assert_never(answer)

    def _prepared(self, ref: ClaimRef, claim: ResourceClaim | DranodeError, *, new: bool) -> None:
        if self.status is None or not isinstance(claim, ResourceClaim):
            return
        record = self.node.record(ref.uid)
        if record is not None:
            self.status.say(
                ref,
                partial(prepared_states, self.node.plugin, record, self.node.inventory, self.node.not_enforced()),
                claim.status.devices,
                new=new,
                # Another instance may have unprepared it before the status is written.
                still=lambda: self.node.record(ref.uid) is not None,
            )

    def _refused(self, ref: ClaimRef, claim: ResourceClaim | DranodeError, error: str) -> None:
        fetched = isinstance(claim, ResourceClaim) and claim.metadata.uid == ref.uid
        pods = claim.status.reserved_for if isinstance(claim, ResourceClaim) and fetched else ()
        self.events.notify(PrepareFailed(ref, pods, error))
        if self.status is not None and isinstance(claim, ResourceClaim) and fetched:
            states = failed_states(self.node.plugin.driver, claim, error)
            if states:
                self.status.say(ref, lambda: states, claim.status.devices)
