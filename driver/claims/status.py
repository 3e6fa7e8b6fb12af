"""Builds a driver's entries in `status.devices` of a claim (KEP-4817). No I/O.

There is one entry for each allocated device of this driver, with a `Ready` condition and the driver's data. The time of
a condition is that of its last transition, so that reporting the same state again is not a change.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dranode.api.documents import encode_json
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import NOT_ENFORCED, NotEnforced, needs_enforcing
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.record import Record

READY: Final = "Ready"
PREPARED: Final = "Prepared"
PREPARE_FAILED: Final = "PrepareFailed"
# Limits of the API: AllocatedDeviceStatusDataMaxLength of resource/v1, and that of metav1.Condition.
_MAX_DATA: Final = 10 * 1024
_MAX_MESSAGE: Final = 32 * 1024


class DeviceState(msgspec.Struct, frozen=True):
    """The state of one allocated device.

    Attributes:
        pool: the device's pool.
        device: its name.
        share_id: the share, if the device is allocated several times.
        ready: whether a container can use it.
        reason: the reason of the condition, one word.
        message: the reason as a sentence.
        data: more data of the driver, as plain JSON.
    """

    pool: str
    device: str
    share_id: str | None
    ready: bool
    reason: str
    message: str = ""
    data: Mapping[str, Any] = msgspec.field(default_factory=dict)


def prepared_states(
    plugin: Plugin, record: Record, inventory: Inventory, not_enforced: NotEnforced | None = None
) -> tuple[DeviceState, ...]:
    """Return the states of a prepared claim's devices.

    They are ready, unless the claim has lost something, or containers should be held to the claim but are not.
    """
    impaired = next(iter(plugin.impairments(inventory, (record,))), None)
    ready, reason, message = impaired is None, PREPARED, ""
    if impaired is not None:
        reason, message = impaired.reason, impaired.message
    elif not_enforced is not None and needs_enforcing(record):
        ready, reason, message = not_enforced.chosen, NOT_ENFORCED, not_enforced.message
    return tuple(
        DeviceState(
            grant.pool,
            grant.device,
            grant.share_id,
            ready=ready,
            reason=reason,
            message=message,
            data=plugin.describe(grant, record, inventory),
        )
        for grant in record.grants
    )


def failed_states(driver: str, claim: ResourceClaim, message: str) -> tuple[DeviceState, ...]:
    """Return the states of the driver's devices of a claim that cannot be prepared."""
    return tuple(
        DeviceState(result.pool, result.device, result.share_id, ready=False, reason=PREPARE_FAILED, message=message)
        for result in readable_results(claim.status.allocation)
        if result.driver == driver
    )


def device_statuses(
    driver: str, states: Iterable[DeviceState], before: Sequence[Any], now: str
) -> tuple[dict[str, Any], ...]:
    """Return this driver's entries for `status.devices`, one for each device.

    `before` is the present `status.devices` of all drivers; `now` is the time (RFC 3339) for conditions that change.
    """
    known = {_key(entry): entry for entry in before if isinstance(entry, Mapping)}
    entries: dict[tuple[str, ...], dict[str, Any]] = {}
    for state in states:
        place = {"driver": driver, "pool": state.pool, "device": state.device}
        if state.share_id is not None:
            place["shareID"] = state.share_id
        entry: dict[str, Any] = {**place, "conditions": [_condition(state, known.get(_key(place)), now)]}
        # Data that is too long would make the server reject the whole status.
        if state.data and len(encode_json(state.data)) <= _MAX_DATA:
            entry["data"] = dict(state.data)
        # Requests with admin access may have the same device, which still has only one entry.
        entries.setdefault(_key(place), entry)
    return tuple(entries.values())


def is_reported(driver: str, entries: Sequence[Mapping[str, Any]], before: Sequence[Any]) -> bool:
    """Return whether `status.devices` already has exactly these entries of this driver."""
    own = [entry for entry in before if isinstance(entry, Mapping) and entry.get("driver") == driver]
    # Their order has no meaning, and other drivers' entries may be in between.
    return sorted(own, key=_key) == sorted(entries, key=_key)


def _condition(state: DeviceState, before: Mapping[str, Any] | None, now: str) -> dict[str, Any]:
    status = "True" if state.ready else "False"
    # A new reason or message is not a transition: only a new status is.
    since = next(
        (
            str(condition.get("lastTransitionTime") or now)
            for condition in (before or {}).get("conditions") or ()
            if condition.get("type") == READY and condition.get("status") == status
        ),
        now,
    )
    return {
        "type": READY,
        "status": status,
        "reason": state.reason,
        "message": state.message[:_MAX_MESSAGE],
        "lastTransitionTime": since,
    }


def _key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name, "")) for name in ("driver", "device", "pool", "shareID"))
