"""The entries in status.devices."""

import pytest

from dranode.driver.claims.status import DeviceState, device_statuses, failed_states, is_reported
from tests.fakes.drivers import allocated_claim

NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T01:00:00Z"
READY = DeviceState("node", "d0", "share", ready=True, reason="Prepared", data={"cpus": "0-1"})


def test_an_entry_has_the_devices_key_a_condition_and_data() -> None:
    (entry,) = device_statuses("d.example.com", [READY], (), NOW)
    assert entry == {
        "driver": "d.example.com",
        "pool": "node",
        "device": "d0",
        "shareID": "share",
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Prepared", "message": "", "lastTransitionTime": NOW}
        ],
        "data": {"cpus": "0-1"},
    }


def test_the_time_of_a_condition_is_that_of_the_last_transition() -> None:
    before = device_statuses("d.example.com", [READY], (), NOW)
    same = device_statuses("d.example.com", [READY], before, LATER)
    assert same == before
    broken = DeviceState("node", "d0", "share", ready=False, reason="PrepareFailed", message="no")
    (entry,) = device_statuses("d.example.com", [broken], before, LATER)
    assert entry["conditions"][0]["lastTransitionTime"] == LATER
    assert "data" not in entry


def test_an_unchanged_status_is_not_reported_again_whatever_others_report() -> None:
    before = device_statuses("d.example.com", [READY], (), NOW)
    other = {"driver": "other.example.com", "pool": "node", "device": "d0"}
    assert is_reported("d.example.com", before, (other, *before))
    assert not is_reported("d.example.com", before, (other,))
    assert not is_reported("d.example.com", (), before)
    assert is_reported("d.example.com", (), (other,))


def test_a_device_of_two_requests_has_one_entry() -> None:
    entries = device_statuses("d.example.com", [READY, READY], (), NOW)
    assert len(entries) == 1


@pytest.mark.parametrize(("size", "kept"), [(10_000, True), (10_400, False)])
def test_data_beyond_the_apis_limit_is_left_out(size: int, *, kept: bool) -> None:
    state = DeviceState("node", "d0", None, ready=True, reason="Prepared", data={"cpus": "x" * size})
    (entry,) = device_statuses("d.example.com", [state], (), NOW)
    assert ("data" in entry) is kept


def test_a_failed_claim_has_the_reason_on_each_device_of_this_driver() -> None:
    claim = allocated_claim("a", "d.example.com", {"r": "d0", "s": "d1"})
    states = failed_states("d.example.com", claim, "no CPU is left")
    assert [(state.device, state.ready, state.message) for state in states] == [
        ("d0", False, "no CPU is left"),
        ("d1", False, "no CPU is left"),
    ]
    assert failed_states("other.example.com", claim, "no") == ()
