"""What one driver has read of a claim and the next one takes, by a clock that a test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pytest

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.errors import ClaimGoneError, DranodeError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.kube.handover import HandedClaims, Handover
from tests.fakes.drivers import reference
from tests.fakes.waiting import PATIENCE

A, B, C = "a.example.com", "b.example.com", "c.example.com"


def claim_of(*drivers: str, name: str = "x", uid: str = "") -> ResourceClaim:
    """A claim with a device of each of these drivers."""
    results = [{"request": "r", "driver": driver, "pool": "node", "device": "d"} for driver in drivers]
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": name, "uid": uid or f"uid-{name}"},
            "status": {"allocation": {"devices": {"results": results}}},
        },
    )


class Server:
    """Claims as an API server has them, a new value for every read; `asked` are the names that it was asked for."""

    def __init__(self, *claims: ResourceClaim) -> None:
        self.claims = {reference(claim): claim for claim in claims}
        self.asked: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        self.asked += [ref.name for ref in refs]
        answers = {ref: self._get(ref) for ref in refs}
        self.meanwhile()
        return answers

    def _get(self, ref: ClaimRef) -> ResourceClaim | DranodeError:
        claim = self.claims.get(ref)
        names = [] if claim is None or claim.status.allocation is None else claim.status.allocation.devices.results
        if claim is None:
            return ClaimGoneError(f"claim {ref} does not exist any more")
        return claim_of(*(entry["driver"] for entry in names), name=ref.name, uid=ref.uid)


class World:
    """The drivers of a process, and kubelet's calls of them."""

    def __init__(self, *drivers: str) -> None:
        self.now = 100.0
        self.server = Server(claim_of(A, B, C), claim_of(A, B, C, name="y"), claim_of(A, B, name="z"))
        self.handover = Handover(lambda: self.now)
        for driver in drivers or (A, B, C):
            self.handover.join(driver)

    def read(self, driver: str, *names: str) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        refs = tuple(ClaimRef("default", name, f"uid-{name}") for name in names or ("x",))
        return HandedClaims(driver, self.server, self.handover).get(refs)

    def call(self, driver: str, *names: str, prepared: bool = True) -> list[str]:
        """Prepare claims; the names of those for which the API server was asked."""
        before = len(self.server.asked)
        self.handover.answered(self.read(driver, *names), prepared=prepared)
        return self.server.asked[before:]

    def unprepare(self, name: str = "x") -> None:
        self.handover.drop([ClaimRef("default", name, f"uid-{name}")])


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("order", [(A, B, C), (C, A, B), (B, C, A)])
def test_one_read_serves_all_drivers_of_a_claim_in_any_order(world: World, order: tuple[str, ...]) -> None:
    first, *others = order
    assert world.call(first) == ["x"]
    assert [world.call(driver) for driver in others] == [[], []]
    assert len(world.handover) == 0


def test_what_was_read_is_taken_as_it_was_read(world: World) -> None:
    mine = world.read(A)
    world.handover.answered(mine, prepared=True)
    (ref,) = mine
    assert world.read(B)[ref] is mine[ref]


def test_a_driver_takes_a_read_once(world: World) -> None:
    assert world.call(A) == ["x"]
    assert world.call(B) == []
    assert world.call(B) == ["x"]


def test_a_driver_never_takes_its_own_read(world: World) -> None:
    assert world.call(A) == ["x"]
    assert world.call(A) == ["x"]


def test_a_newer_read_takes_the_place_of_an_older_one(world: World) -> None:
    world.call(A)
    world.now += 0.9
    newer = world.read(A)
    world.handover.answered(newer, prepared=True)
    world.now += 0.9
    assert world.read(B) == newer
    assert world.server.asked == ["x", "x"]


def test_a_read_is_over_a_second_after_it_was_begun(world: World) -> None:
    def slow() -> None:
        world.now += 0.6

    world.server.meanwhile = slow
    world.call(A)
    world.server.meanwhile = lambda: None
    world.now += 0.3
    assert world.call(B) == []
    world.now += 0.2
    assert world.call(C) == ["x"]


def test_nothing_is_taken_before_the_driver_that_read_it_has_answered(world: World) -> None:
    read = world.read(A)
    world.read(B)
    assert world.server.asked == ["x", "x"]
    # B's read is the newer one; what A has is nobody's any more.
    world.handover.answered(read, prepared=True)
    assert world.call(C) == ["x"]


def test_nothing_is_taken_before_the_driver_that_took_it_has_answered(world: World) -> None:
    world.call(A)
    taken = world.read(B)
    assert world.server.asked == ["x"]
    assert world.call(C) == ["x"]
    world.handover.answered(taken, prepared=True)
    assert world.call(B) == []


def test_a_call_that_failed_offers_none_of_its_claims(world: World) -> None:
    assert world.call(A, "x", "y", prepared=False) == ["x", "y"]
    assert len(world.handover) == 0
    assert world.call(B, "x", "y") == ["x", "y"]


def test_a_failed_call_ends_the_offer_that_it_took(world: World) -> None:
    world.call(A)
    assert world.call(B, prepared=False) == []
    assert len(world.handover) == 0
    assert world.call(C) == ["x"]


@pytest.mark.parametrize(
    "other",
    [
        ClaimRef("default", "x", "uid-of-another"),
        ClaimRef("default", "another", "uid-x"),
        ClaimRef("another", "x", "uid-x"),
    ],
)
def test_a_read_is_for_the_claim_of_that_namespace_name_and_uid(world: World, other: ClaimRef) -> None:
    world.call(A)
    HandedClaims(B, world.server, world.handover).get((other,))
    assert world.server.asked == ["x", other.name]


def test_a_claim_that_cannot_be_had_is_asked_for_by_every_driver(world: World) -> None:
    world.server.claims.clear()
    assert world.call(A) == ["x"]
    assert len(world.handover) == 0
    assert world.call(B) == ["x"]


def test_only_drivers_with_devices_in_the_allocation_take_a_read(world: World) -> None:
    world.call(A, "z")
    assert world.call(C, "z") == ["z"]
    world = World()
    world.server.claims = {reference(claim): claim for claim in (claim_of(A), claim_of(A, "d.example.com", name="y"))}
    world.call(A, "x", "y")
    assert len(world.handover) == 0


def test_a_claim_that_was_unprepared_is_read_again(world: World) -> None:
    world.call(A)
    world.unprepare()
    assert world.call(B) == ["x"]


def test_an_unprepare_ends_the_offer_of_a_read_that_is_under_way(world: World) -> None:
    world.server.meanwhile = world.unprepare
    world.call(A)
    world.server.meanwhile = lambda: None
    assert world.call(B) == ["x"]


def test_an_unprepare_ends_the_offer_of_a_read_that_was_not_answered_for_yet(world: World) -> None:
    read = world.read(A)
    world.unprepare()
    world.handover.answered(read, prepared=True)
    assert world.call(B) == ["x"]


def test_an_unprepare_ends_the_offer_that_another_driver_has_just_taken(world: World) -> None:
    world.call(A)
    taken = world.read(B)
    world.unprepare()
    world.handover.answered(taken, prepared=True)
    assert world.call(C) == ["x"]


def test_of_several_claims_those_that_are_offered_are_taken_and_the_others_are_read_together(world: World) -> None:
    world.call(A, "x")
    together: list[int] = []
    get = world.server.get

    def counting(refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        together.append(len(refs))
        return get(refs)

    world.server.get = counting  # type: ignore[method-assign]
    answers = world.read(B, "x", "y", "z")
    assert {ref.name for ref in answers} == {"x", "y", "z"}
    assert together == [2]
    world.handover.answered(answers, prepared=True)
    assert world.call(C, "x", "y") == []


def test_a_driver_without_others_keeps_nothing() -> None:
    world = World(A)
    assert world.handover.needless
    assert world.call(A) == ["x"]
    assert len(world.handover) == 0
    world.handover.join(B)
    assert not world.handover.needless


def test_what_nobody_comes_for_goes_the_oldest_first(world: World) -> None:
    world.server.claims = {
        reference(claim): claim for claim in (claim_of(A, B, name=f"n{number}") for number in range(400))
    }
    for number in range(400):
        world.call(A, f"n{number}")
    assert len(world.handover) == 256
    assert world.call(B, "n143") == ["n143"]
    assert world.call(B, "n399") == []
    world.now += 1.1
    world.call(A, "n0")
    assert len(world.handover) == 1


@pytest.mark.parametrize("call", ["begin", "end", "answered", "drop"])
def test_calls_of_drivers_in_several_threads_go_one_after_the_other(call: str) -> None:
    within, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def clock() -> float:
        if not within.is_set():
            within.set()
            assert goes_on.wait(PATIENCE)
        return 100.0

    handover, ref = Handover(clock), ClaimRef("default", "x", "uid-x")
    calls: dict[str, Callable[[], object]] = {
        "begin": lambda: handover.begin(B, (ref,)),
        "end": lambda: handover.end((), {}),
        "answered": lambda: handover.answered({}, prepared=True),
        "drop": lambda: handover.drop((ref,)),
    }
    first = threading.Thread(target=handover.begin, args=(A, (ref,)))

    def other() -> None:
        calls[call]()
        ended.set()

    second = threading.Thread(target=other)
    first.start()
    assert within.wait(PATIENCE)
    second.start()
    # Without the lock it would end at once; a machine that is too busy for that sees nothing amiss.
    assert not ended.wait(0.05)
    goes_on.set()
    assert ended.wait(PATIENCE)
    first.join(PATIENCE)
    second.join(PATIENCE)
