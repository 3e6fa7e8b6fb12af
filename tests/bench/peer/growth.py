"""Many claims on record, and what should not grow with them: the cost of a call, the start, memory.

Records are written with the driver's own code, since both drivers' API clients would need hours. Once every CPU of the
machine has its claim, the other claims have admin access and hold nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.cpu.treatment import claim_edits
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.record import Record
from dranode.driver.node.ledger import Ledger
from tests.bench.peer.drivers import Driver
from tests.bench.peer.surroundings import claim, uid
from tests.bench.peer.usage import resident

# The first number of the claims on record; the claims of calls have lower numbers.
FIRST = 100_000
_AT_ONCE = 50


def _record(number: int, cpu: int | None) -> Record:
    own = CPUSet() if cpu is None else CPUSet((cpu,))
    claim_uid = uid(number)
    grant = Grant(
        request="r",
        pool="node",
        device="cpudevmachine",
        share_id=f"00000000-0000-4000-8000-{number:012d}",
        admin=cpu is None,
    )
    pod = ResourceClaimConsumerReference(resource="pods", name=f"pod-{number}", uid=f"pod-{number}")
    return Record(
        uid=claim_uid,
        namespace="default",
        name=f"claim-{number}",
        grants=(grant,),
        edits=claim_edits(claim_uid, own, own),
        cpus=own,
        held=own,
        pods=(pod,),
        fingerprint="0011223344556677",
    )


def seed(data: Path, count: int, cpus: Sequence[int]) -> None:
    """Put `count` claims on record in a driver's folder; the first ones hold one of these CPUs each."""
    data.mkdir(parents=True)
    ledger = Ledger(data / "ledger.db")
    with ledger.transaction():
        ledger.commit(put=[_record(FIRST + n, cpus[n] if n < len(cpus) else None) for n in range(count)])
    ledger.close()


def churn(driver: Driver, count: int, note: Callable[[str, float], None]) -> None:
    """Prepare and unprepare `count` claims; record the driver's memory before, half-way and afterwards."""
    for begin in range(0, count, _AT_ONCE):
        if begin in (_AT_ONCE * 20, count // 2):
            time.sleep(2)
            note(f"resident after {begin} claims, MiB", resident(driver.pid))
        numbers = range(begin, begin + _AT_ONCE)
        driver.prepare(numbers)
        driver.unprepare(numbers)
    time.sleep(5)
    note(f"resident after {count} claims, MiB", resident(driver.pid))


def many_claims(count: int, cpus: Sequence[int]) -> list[dict[str, Any]]:
    """Return claims for one CPU each; any fifty consecutive ones can be prepared at the same time."""
    return [claim(number, "cpudevmachine", 1, str(cpus[number % _AT_ONCE])) for number in range(count)]
