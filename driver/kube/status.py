"""Writes `status.devices` of claims by server-side apply under the driver's own field manager.

No call waits for it: what was prepared is prepared, whether the API server knows of it or not. It is written after an
idle moment, so that it does not compete with kubelet's calls, and not at all for a claim that is unprepared before.
From Kubernetes 1.36 it takes the verb `associated-node:patch` on `resourceclaims/driver` beside `patch` on
`resourceclaims/status`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dranode.driver.core.api.documents import API_GROUP
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.status import DeviceState, device_statuses, is_said
from dranode.driver.kube.client import APPLY, APIRequest, Client
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.events import utc_now
from dranode.driver.kube.outbox import Outbox
from dranode.driver.kube.pending import PendingItems
from dranode.driver.kube.retry import CONFLICT, NOT_FOUND, UNPROCESSABLE
from dranode.driver.process.threads import Fatal

log = logging.getLogger(__name__)

# The claim is gone, or is another one of its name, or was taken back meanwhile: there is nothing to say any more.
_PAST: Final = frozenset({NOT_FOUND, CONFLICT, UNPROCESSABLE})

# How many claims it is remembered of that their entries were removed: far more than in the time that a read may take.
_CAPACITY: Final = 1000


# The devices of a claim, asked for when its status is written: most are moot before.
SaidStates = Callable[[], Sequence[DeviceState]]


class _Said(msgspec.Struct, frozen=True):
    """The status to write of a claim.

    Attributes:
        claim: the claim.
        states: its devices; none to remove the driver's entries.
        before: its `status.devices` when this came.
        at: the time (RFC 3339) at which this came.
        first: whether its status has no entry of this driver before this is written, whichever instance prepared it.
        anyway: whether `before` may have changed since.
        still: whether it is to be said still.
    """

    claim: ClaimRef
    states: SaidStates = tuple
    before: Sequence[Any] = ()
    at: datetime | None = None
    first: bool = False
    anyway: bool = True
    still: Callable[[], bool] = lambda: True

    def entries(self, driver: str) -> tuple[dict[str, Any], ...] | None:
        """The driver's entries; None if the claim's status has just these already."""
        at = "" if self.at is None else self.at.strftime("%Y-%m-%dT%H:%M:%SZ")
        entries = device_statuses(driver, self.states(), self.before, at)
        return None if not self.anyway and is_said(driver, entries, self.before) else entries


class ClaimStatus:
    """The driver's part of claims' status."""

    def __init__(self, client: Client, driver: str, fatal: Fatal, now: Callable[[], datetime] = utc_now) -> None:
        """Write through `client` as `driver`; `now` is the wall clock's time."""
        self._client = client
        self._driver = driver
        self._now = now
        timing = client.timing
        pending: PendingItems[_Said] = PendingItems(timing.idle, timing.delay)
        self._outbox: Outbox[_Said] = Outbox(f"{driver}-status", self._send, timing, fatal, pending)
        # The UIDs of claims whose status may have entries of this process.
        self._written: set[str] = set()
        # Those from whose status this process has removed its entries last, the oldest first: a read that has entries
        # was made before, and handed over by another driver or overtaken by the removal.
        self._removed: dict[str, None] = {}

    def say(
        self,
        claim: ClaimRef,
        states: SaidStates,
        before: Sequence[Any],
        *,
        new: bool = False,
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        """Say how the claim's devices are. Returns at once.

        Args:
            claim: the claim.
            states: its devices; called when the status is written, from a thread of its own.
            before: its `status.devices`.
            new: whether no instance of the driver had prepared it before.
            still: asked before it is written: whether the claim is as it is said to be.
        """
        none = is_said(self._driver, (), before)
        overtakes = self._overtakes(claim)
        said = _Said(claim, states, before, self._now(), first=new and none, anyway=overtakes, still=still)
        if not none and said.entries(self._driver) is None:
            self._outbox.take_back(claim.uid)
            # Until then the thread may have taken a removal that waited.
            if not self._overtakes(claim):
                return
            said = replace(said, anyway=True)
        # kubelet waits for this, and most statuses are moot before they are written: their entries are made then.
        self._outbox.put(claim.uid, said)

    def _overtakes(self, claim: ClaimRef) -> bool:
        """Return whether the claim's status may have changed since it was read for a call that is being answered."""
        return self._outbox.sends(claim.uid) or claim.uid in self._removed

    def withdraw(self, claim: ClaimRef) -> None:
        """Remove the driver's entries, because the claim is not prepared any more. Returns at once."""
        moot = self._outbox.take_back(claim.uid)
        if moot is None or not moot.first or claim.uid in self._written:
            self._outbox.put(claim.uid, _Said(claim))

    def close(self, seconds: float) -> None:
        """Write what waits, for no longer than `seconds`."""
        self._outbox.close(seconds)

    def _remember(self, uid: str) -> None:
        self._removed.pop(uid, None)
        self._removed[uid] = None
        if len(self._removed) > _CAPACITY:
            del self._removed[next(iter(self._removed))]

    def _send(self, said: _Said) -> None:
        claim = said.claim
        if not said.still():
            log.debug(
                "claim=%s uid=%s driver=%s: no status is written: it is unprepared", claim, claim.uid, self._driver
            )
            return
        try:
            entries = said.entries(self._driver)
        except Exception:  # what a plug-in says of a device may be anything, and the claim is prepared all the same
            log.exception("claim=%s uid=%s driver=%s: not reported", claim, claim.uid, self._driver)
            return
        if entries is None:
            return
        # Before the request, because one that fails may have been carried out all the same.
        if entries:
            self._written.add(claim.uid)
            self._removed.pop(claim.uid, None)
        else:
            self._remember(claim.uid)

        def request(root: str, version: str) -> APIRequest:
            return APIRequest(
                "PATCH",
                f"{root}/namespaces/{claim.namespace}/resourceclaims/{claim.name}/status",
                f"patch resourceclaims/status in namespace {claim.namespace} (and resourceclaims/driver)",
                {"fieldManager": self._driver, "force": "true"},
                {
                    "apiVersion": f"{API_GROUP}/{version}",
                    "kind": "ResourceClaim",
                    "metadata": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
                    "status": {"devices": list(entries)} if entries else {},
                },
                APPLY,
            )

        try:
            self._client.resource(request)
        except ApiError as error:
            if error.status not in _PAST:
                raise
            log.debug("claim=%s uid=%s driver=%s: its status is not written: %s", claim, claim.uid, self._driver, error)
        if not entries:
            self._written.discard(claim.uid)
