"""Decides which claims have a say in the machine's settings (`Tunes`) at which moment.

A claim is STARTED on record from before its settings are made until they are, and from before they are undone until it
is forgotten. So all claims count when one more is prepared, and those that are COMPLETED at any other time: a claim
whose Prepare was cut off gets its settings when kubelet repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dranode.driver.core.claims.hooks import Tunes, was_tuned
from dranode.driver.core.claims.record import ClaimState, Record


def tuning_claims(plugin: Tunes, records: Iterable[Record], *, preparing: bool) -> tuple[Record, ...]:
    """Return the claims for which settings are to be made.

    Args:
        plugin: the driver.
        records: all claims on record.
        preparing: whether a claim that is STARTED is being prepared.
    """
    counting = (record for record in records if preparing or record.state is ClaimState.COMPLETED)
    return tuple(record for record in counting if was_tuned(plugin, record))
