"""The recorded claims for enforcement: an incremental snapshot equals one that is built from scratch."""

import contextlib
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record
from dranode.driver.node.node import NodeClaims
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims, Pins, PinSnapshot
from tests.fakes.drivers import Lamps, allocated_claim, reference

UIDS = st.sampled_from("abcdef")
CPUS = st.sets(st.integers(0, 9), max_size=4).map(CPUSet)
CLAIMS = st.builds(
    lambda uid, cpus, pods: PinnedClaim(ClaimRef("ns", f"claim-{uid}", uid), cpus, cpus, frozenset(pods)),
    UIDS,
    CPUS,
    st.sets(st.sampled_from(("p1", "p2", "p3")), max_size=2),
)
STEPS = st.lists(st.tuples(st.lists(CLAIMS, max_size=3), st.sets(UIDS, max_size=2)), max_size=12)


def told(claims: PinnedClaims) -> tuple[object, ...]:
    snapshot = PinSnapshot(claims, online=CPUSet(range(9)), reserved=CPUSet((0,)))
    by_pod = {pod: {each.claim.uid: each for each in having} for pod, having in snapshot.by_pod.items()}
    return dict(snapshot.claims), by_pod, str(snapshot.held), str(snapshot.shared)


@given(steps=STEPS)
def test_claims_that_came_and_went_leave_no_trace_in_the_snapshot(
    steps: list[tuple[list[PinnedClaim], set[str]]],
) -> None:
    claims, there = PinnedClaims(), dict[str, PinnedClaim]()
    for put, drop in steps:
        before = told(claims)
        changed = claims.changed(put, drop)
        assert told(claims) == before
        there |= {claim.claim.uid: claim for claim in put}
        there = {uid: claim for uid, claim in there.items() if uid not in drop}
        claims = changed
        assert told(claims) == told(PinnedClaims.of(there.values()))


class Lights(Lamps, Pins):
    """Lamps whose containers run on the CPU with the lamp's number."""

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        cpus = CPUSet(int(each.result.device.removeprefix("lamp-")) for each in claim.results)
        return replace(super().grant(claim, held, inventory), cpus=cpus, held=cpus)

    def pool(self, inventory: Inventory) -> PinSnapshot:
        return PinSnapshot(online=CPUSet(range(len(inventory.devices))))

    def pinned(self, record: Record) -> PinnedClaim:
        pods = frozenset(pod.uid for pod in record.pods)
        return PinnedClaim(record.ref, record.cpus, record.held, pods)


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("prepare", "unprepare", "elsewhere", "hardware", "damage")), st.integers(0, 3)),
        min_size=5,
        max_size=15,
    )
)
def test_an_updated_snapshot_equals_that_of_a_restarted_driver(steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        plugin = Lights()
        here, there = (NodeClaims(plugin, folder / "data", folder / "cdi") for _ in range(2))
        here.open()
        there.open()
        for step, number in steps:
            claim = allocated_claim(f"c{number}", Lights.driver, [f"lamp-{number}"])
            match step:
                case "prepare" | "elsewhere":
                    node = here if step == "prepare" else there
                    node.prepare({reference(claim): claim})
                case "unprepare":
                    here.unprepare((reference(claim),))
                case "hardware":
                    plugin.count = 4 + number
                    here.rescan()
                case "damage":
                    with contextlib.closing(sqlite3.connect(folder / "data" / "ledger.db")) as db, db:
                        db.execute("UPDATE claims SET checksum = 0 WHERE uid = ?", (claim.metadata.uid,))
            here.records()
            anew = NodeClaims(plugin, folder / "data", folder / "cdi")
            anew.open()
            mine, theirs = here.snapshot(), anew.snapshot()
            assert mine is not None
            assert theirs is not None
            assert (mine.claims, mine.online, mine.shared) == (theirs.claims, theirs.online, theirs.shared)
            anew.close()
        here.close()
        there.close()
