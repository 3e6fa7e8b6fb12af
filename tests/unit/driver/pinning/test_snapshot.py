"""Incremental changes of the recorded claims: overlapping CPUs are held until the last claim with them is gone."""

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims


def claim(uid: str, held: str, *pods: str) -> PinnedClaim:
    cpus = CPUSet.parse(held)
    return PinnedClaim(ClaimRef("default", f"claim-{uid}", uid), cpus, cpus, frozenset(pods))


def held_by(claims: PinnedClaims) -> str:
    return str(claims.held)


def test_cpus_of_two_claims_are_held_until_both_are_gone() -> None:
    both = PinnedClaims.of((claim("a", "0-3"), claim("b", "2-5")))
    assert held_by(both) == "0-5"
    assert held_by(both.changed(drop=("a",))) == "2-5"
    assert held_by(both.changed((claim("a", "7"),))) == "2-5,7"
    assert held_by(both.changed((claim("a", "7"),), ("b",))) == "7"
    assert held_by(both.changed(drop=("a",)).changed(drop=("b",))) == ""


def test_an_overlap_that_comes_after_others_ended_is_counted_too() -> None:
    claims = PinnedClaims.of((claim("a", "0-3"), claim("b", "4-5")))
    claims = claims.changed((claim("c", "0-1"),), ("b",))
    assert held_by(claims) == "0-3"
    assert held_by(claims.changed(drop=("a",))) == "0-1"
    assert held_by(claims.changed(drop=("c",))) == "0-3"


def test_a_claim_that_is_put_and_dropped_at_once_holds_nothing() -> None:
    claims = PinnedClaims.of((claim("a", "0-1", "p"),)).changed((claim("b", "2-3", "p"),), ("b",))
    assert (held_by(claims), list(claims), len(claims)) == ("0-1", ["a"], 1)
    assert [each.claim.uid for each in claims.by_pod["p"]] == ["a"]


class Watched(PinnedClaim, frozen=True):
    """A claim that counts how often it is asked what it holds."""

    asked = 0

    def __getattribute__(self, name: str) -> object:
        if name == "held":
            Watched.asked += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_change_reads_no_other_claim_unless_some_overlap(*, overlap: bool) -> None:
    Watched.asked = 0
    other = Watched(ClaimRef("default", "other", "other"), CPUSet((9,)), CPUSet((9,)))
    claims = PinnedClaims.of((other, claim("a", "0-3"), claim("b", "3-5" if overlap else "4-5")))
    claims = claims.changed((claim("a", "0-2"),))
    claims = claims.changed((claim("c", "6"),), ("b",))
    Watched.asked = 0
    assert held_by(claims.changed((claim("d", "7"),), ("a",))) == "6-7,9"
    assert Watched.asked == 0
