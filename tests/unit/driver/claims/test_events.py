"""Which Events are sent, and how many."""

import pytest

from dranode.api.resource import ResourceClaimConsumerReference as Consumer
from dranode.driver.claims.events import (
    MAX_NOTE,
    Allowance,
    DriftRepaired,
    Event,
    MetadataMissing,
    PrepareFailed,
    RecordQuarantined,
    Regarding,
    Unpinned,
    events_of,
)
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import PodSandbox

CLAIM = ClaimRef("default", "a", "uid-a")
POD = PodSandbox("sandbox", "uid-p", "default", "p")


def places(events: tuple[Event, ...]) -> list[tuple[str, str, str]]:
    return [(event.regarding.kind, event.regarding.name, event.regarding.uid) for event in events]


def test_a_failed_prepare_is_reported_on_the_claim_and_on_each_of_its_pods() -> None:
    users = (
        Consumer(resource="pods", name="p", uid="uid-p"),
        Consumer(resource="podgroups", name="g", uid="uid-g", api_group="scheduling.k8s.io"),
    )
    events = events_of(PrepareFailed(CLAIM, users, "no CPU is left"), "node")
    assert places(events) == [("ResourceClaim", "a", "uid-a"), ("Pod", "p", "uid-p")]
    assert {(event.reason, event.action, event.note) for event in events} == {
        ("PrepareFailed", "Prepare", "no CPU is left")
    }
    assert {event.regarding.namespace for event in events} == {"default"}


def test_drift_and_unpinned_containers_are_reported_on_pod_and_claims() -> None:
    drift = events_of(DriftRepaired(POD, (CLAIM,), "it runs on CPUs 0-7"), "node")
    assert places(drift) == [("Pod", "p", "uid-p"), ("ResourceClaim", "a", "uid-a")]
    unpinned = events_of(Unpinned(PodSandbox("sandbox"), (ClaimRef("", "", "uid-x"),), "nobody pinned it"), "node")
    assert unpinned == ()
    assert {event.reason for event in drift} == {"CPUSetDrift"}


def test_a_quarantined_record_is_reported_on_the_node_with_what_to_do() -> None:
    (event,) = events_of(RecordQuarantined("uid-a", "the checksum differs"), "node")
    assert event.regarding == Regarding("v1", "Node", "", "node", "node")
    assert "UID uid-a" in event.note
    assert "delete the pods that use that claim" in event.note


@pytest.mark.parametrize("character", ["x", "\u00fc", "\u20ac", "\ud800"])
def test_a_note_is_truncated_at_the_apis_limit_in_bytes(character: str) -> None:
    (event,) = events_of(PrepareFailed(CLAIM, (), character * 2000), "node")
    assert MAX_NOTE - 2 < len(event.note.encode()) <= MAX_NOTE


def event(number: int) -> Event:
    return Event(Regarding("v1", "Pod", "default", f"p{number}", f"u{number}"), "R", "A", "n")


def test_the_same_event_is_not_sent_twice_within_ten_minutes() -> None:
    once = Allowance().admit(event(1), 1000)
    assert once is not None
    assert once.admit(event(1), 1599) is None
    again = once.admit(event(1), 1601)
    assert again is not None
    assert again.admit(event(1), 1602) is None


def test_a_burst_of_events_is_limited_and_the_limit_refills() -> None:
    allowance, told = Allowance(), 0
    for number in range(100):
        after = allowance.admit(event(number), 1000)
        told += after is not None
        allowance = after or allowance
    assert told == 20
    assert allowance.admit(event(200), 1005) is None
    assert allowance.admit(event(200), 1006) is not None
    for number in range(300, 400):
        after = allowance.admit(event(number), 2000)
        told += after is not None
        allowance = after or allowance
    assert told == 40


def test_missing_metadata_is_reported_on_the_claim() -> None:
    (event,) = events_of(MetadataMissing(CLAIM, "claim ns/c gets no device metadata"), "node-a")
    assert (event.regarding.kind, event.regarding.uid, event.reason) == ("ResourceClaim", CLAIM.uid, "MetadataMissing")
