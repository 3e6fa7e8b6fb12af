"""Writes Events (events.k8s.io/v1) and the status of claims, from threads of their own: no call waits for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, assert_never

import msgspec
from msgspec.structs import replace

from dranode.api.documents import API_GROUP
from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Answer, Conflict, NotEnforced, Prepared, Refused
from dranode.driver.claims.events import Allowance, Event, Occurrence, PrepareFailed, events_of
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.record import Record
from dranode.driver.claims.status import DeviceState, device_statuses, failed_states, is_reported, prepared_states
from dranode.driver.kube.client import APPLY, APIRequest, Client
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.outbox import Outbox, PendingItems
from dranode.driver.process.threads import Fatal

log = logging.getLogger(__name__)


class RecordedNode(Protocol):
    """The part of `dranode.driver.node.node.NodeClaims` that reports need."""

    plugin: Plugin
    not_enforced: Callable[[], NotEnforced | None]

    @property
    def inventory(self) -> Inventory:
        """The hardware as it was last read.

        Raises:
            UnreadError: it was never read.
        """

    def record(self, uid: str) -> Record | None:
        """Return a claim's record as of the last reading of the ledger, without waiting."""


_GROUP: Final = "events.k8s.io/v1"
# The namespace of Events about objects that have none, such as Nodes.
_CLUSTER: Final = "default"
# The API server refuses an Event whose `reportingInstance` is longer.
_MAX_INSTANCE: Final = 128


class _TimedEvent(msgspec.Struct, frozen=True):
    """An Event that waits to be written, with the time at which its cause was seen."""

    event: Event
    at: datetime

    def __str__(self) -> str:
        about = self.event.regarding
        name = f"{about.namespace}/{about.name}" if about.namespace else about.name
        return f"the Event {self.event.reason} about {about.kind} {name}"


class KubeEvents:
    """Events of one driver on one node."""

    def __init__(self, client: Client, driver: str, node_name: str, fatal: Fatal) -> None:
        """Write through `client`."""
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._lock = threading.Lock()
        self._allowance = Allowance()
        self._outbox: Outbox[_TimedEvent] = Outbox(f"{driver}-events", self._send, client.timing, fatal)
        self._sent = 0

    def notify(self, occurrence: Occurrence) -> None:
        """Write the Events of an occurrence, unless the same were written recently; returns at once."""
        for event in events_of(occurrence, self._node_name):
            with self._lock:
                allowance = self._allowance.admit(event, self._client.timing.clock())
                if allowance is None:
                    continue
                self._allowance = allowance
                self._sent += 1
                number = self._sent
            self._outbox.put(str(number), _TimedEvent(event, datetime.now(UTC)))

    def close(self, seconds: float) -> None:
        """Write the waiting Events, for no longer than `seconds`."""
        self._outbox.close(seconds)

    def _send(self, timed: _TimedEvent) -> None:
        event = timed.event
        about = event.regarding
        namespace = about.namespace or _CLUSTER
        regarding = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name, "uid": about.uid}
        if about.namespace:
            regarding["namespace"] = about.namespace
        document = {
            "apiVersion": _GROUP,
            "kind": "Event",
            "metadata": {"generateName": f"{about.name}-", "namespace": namespace},
            "eventTime": timed.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": "Warning",
            "reason": event.reason,
            "action": event.action,
            "note": event.note,
            "regarding": regarding,
            "reportingController": self._driver,
            "reportingInstance": f"{self._driver}-{self._node_name}"[:_MAX_INSTANCE],
        }
        path = f"/apis/{_GROUP}/namespaces/{namespace}/events"
        self._client.send(
            APIRequest("POST", path, f"create events.k8s.io events in namespace {namespace}", {}, document)
        )


class ClaimReporter(msgspec.Struct, frozen=True):
    """Reports the answers of one driver's node to the cluster. Status and Events are written later, by other threads.

    Attributes:
        node: the node.
        events: writes the Events of failures.
        status: writes the status of claims; None if it is not written.
    """

    node: RecordedNode
    events: KubeEvents
    status: ClaimStatus | None

    def prepared(self, claims: Mapping[ClaimRef, ResourceClaim | DranodeError], answers: Mapping[str, Answer]) -> None:
        """Report the answers to a Prepare, by UID."""
        for ref, claim in claims.items():
            try:
                match answers[ref.uid]:
                    case Prepared(new=new):
                        self._prepared(ref, claim, new=new)
                    case Refused(reason) | Conflict(reason):
                        self._refused(ref, claim, reason)
                    case unknown:
                        assert_never(unknown)
            except Exception:  # a plug-in's error in describing a device must not fail the Prepare
                log.exception("claim=%s uid=%s driver=%s: not reported", ref, ref.uid, self.node.plugin.driver)

    def unprepared(self, answers: Mapping[ClaimRef, Refused | None]) -> None:
        """Report the answers to an Unprepare."""
        # Also for claims without a record: another instance may have prepared them, or their failure was reported.
        for ref, refusal in answers.items():
            if self.status is not None and refusal is None:
                self.status.withdraw(ref)

    def _prepared(self, ref: ClaimRef, claim: ResourceClaim | DranodeError, *, new: bool) -> None:
        if self.status is None or not isinstance(claim, ResourceClaim):
            return
        record = self.node.record(ref.uid)
        if record is not None:
            self.status.report(
                ref,
                partial(prepared_states, self.node.plugin, record, self.node.inventory, self.node.not_enforced()),
                claim.status.devices,
                new=new,
                # Another instance may have unprepared it before the status is written.
                still=lambda: self.node.record(ref.uid) is not None,
            )

    def _refused(self, ref: ClaimRef, claim: ResourceClaim | DranodeError, error: str) -> None:
        # A claim with another UID was created again under the same name. Its pods and its status are not about this
        # failure.
        if not isinstance(claim, ResourceClaim) or claim.metadata.uid != ref.uid:
            self.events.notify(PrepareFailed(ref, (), error))
            return
        self.events.notify(PrepareFailed(ref, claim.status.reserved_for, error))
        states = failed_states(self.node.plugin.driver, claim, error)
        if self.status is not None and states:
            self.status.report(ref, lambda: states, claim.status.devices)


# `status.devices` of claims is written by server-side apply with the driver as field manager. No call waits for it: a
# claim that was prepared stays prepared, whether or not the API server knows. It is written after an idle moment, so
# that it does not compete with kubelet's calls. If the claim is unprepared before that, it is not written at all. From
# Kubernetes 1.36 it needs the verb `associated-node:patch` on `resourceclaims/driver` as well as `patch` on
# `resourceclaims/status`.

# The claim was deleted, created again under its name, or deallocated meanwhile, so there is nothing left to report.
_PAST: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})

# How many removals of entries are remembered: far more than claims can be unprepared while one claim is being read.
_CAPACITY: Final = 1000


# Returns the devices of a claim. It is called when the status is written, since most statuses are replaced before that.
DeviceStates = Callable[[], Sequence[DeviceState]]


class _DueStatus(msgspec.Struct, frozen=True):
    """The status of a claim that waits to be written.

    Attributes:
        claim: the claim.
        states: returns its devices; none to remove the driver's entries.
        before: its `status.devices` when it was read.
        at: the time of the report.
        first: whether the status has no entry of this driver yet, of any instance.
        anyway: whether it is written even if it equals `before`, because `before` may have changed since.
        still: called before it is written; False if the claim has changed since and nothing is to be written.
    """

    claim: ClaimRef
    states: DeviceStates = tuple
    before: Sequence[Any] = ()
    at: datetime | None = None
    first: bool = False
    anyway: bool = True
    still: Callable[[], bool] = lambda: True

    def __str__(self) -> str:
        return f"the status of claim {self.claim}"

    def entries(self, driver: str) -> tuple[dict[str, Any], ...] | None:
        """Return the driver's entries; None if the claim's status has exactly these already."""
        at = "" if self.at is None else self.at.strftime("%Y-%m-%dT%H:%M:%SZ")
        entries = device_statuses(driver, self.states(), self.before, at)
        return None if not self.anyway and is_reported(driver, entries, self.before) else entries


class ClaimStatus:
    """Writes the driver's entries in the status of claims."""

    def __init__(self, client: Client, driver: str, fatal: Fatal) -> None:
        """Write through `client` as `driver`."""
        self._client = client
        self._driver = driver
        timing = client.timing
        pending: PendingItems[_DueStatus] = PendingItems(timing.idle, timing.delay)
        self._outbox: Outbox[_DueStatus] = Outbox(f"{driver}-status", self._send, timing, fatal, pending)
        # The UIDs of claims whose status may have entries of this process.
        self._written: set[str] = set()
        # The claims from whose status this process has removed its entries, the oldest first. If a claim still shows
        # such entries, it was read before the removal.
        self._removed: dict[str, None] = {}

    def report(
        self,
        claim: ClaimRef,
        states: DeviceStates,
        before: Sequence[Any],
        *,
        new: bool = False,
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        """Report the state of a claim's devices; returns at once.

        Args:
            claim: the claim.
            states: returns its devices; called by another thread when the status is written.
            before: its `status.devices`.
            new: whether no instance of the driver had prepared it before.
            still: called before the status is written; False if the claim has changed since.
        """
        none = is_reported(self._driver, (), before)
        overtakes = self._overtakes(claim)
        due = _DueStatus(claim, states, before, datetime.now(UTC), first=new and none, anyway=overtakes, still=still)
        if not none and due.entries(self._driver) is None:
            self._outbox.take_back(claim.uid)
            # The thread may have started to send a waiting removal in the meantime.
            if not self._overtakes(claim):
                return
            due = replace(due, anyway=True)
        # kubelet waits for this call, and most statuses are replaced before they are written, so the entries are made
        # only then.
        self._outbox.put(claim.uid, due)

    def _overtakes(self, claim: ClaimRef) -> bool:
        """Return whether the claim's status may have changed since the claim was read for the present call."""
        return self._outbox.sends(claim.uid) or claim.uid in self._removed

    def withdraw(self, claim: ClaimRef) -> None:
        """Remove the driver's entries, because the claim is not prepared any more. Returns at once."""
        # If the status was never written, there is nothing to remove, and both requests are saved.
        unsent = self._outbox.take_back(claim.uid)
        if unsent is None or not unsent.first or claim.uid in self._written:
            self._outbox.put(claim.uid, _DueStatus(claim))

    def close(self, seconds: float) -> None:
        """Write the waiting statuses, for no longer than `seconds`."""
        self._outbox.close(seconds)

    def _send(self, due: _DueStatus) -> None:
        claim = due.claim
        if not due.still():
            log.debug(
                "claim=%s uid=%s driver=%s: no status is written, because it is unprepared",
                claim,
                claim.uid,
                self._driver,
            )
            return
        try:
            entries = due.entries(self._driver)
        except Exception:  # a plug-in's error in describing a device concerns only this status
            log.exception("claim=%s uid=%s driver=%s: not reported", claim, claim.uid, self._driver)
            return
        if entries is None:
            return
        # Noted before the request, because a request that fails may have been carried out.
        self._removed.pop(claim.uid, None)
        if entries:
            self._written.add(claim.uid)
        else:
            self._removed[claim.uid] = None
            if len(self._removed) > _CAPACITY:
                del self._removed[next(iter(self._removed))]

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
            # The UID is part of what is applied: if the claim was created again under its name, the server answers with
            # a conflict.
            self._client.resource(request)
        except ApiError as error:
            if error.status not in _PAST:
                raise
            log.debug("claim=%s uid=%s driver=%s: its status is not written: %s", claim, claim.uid, self._driver, error)
        if not entries:
            self._written.discard(claim.uid)
