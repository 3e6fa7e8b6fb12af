"""Calls at the same time, as from many pods that start together."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from dranode.sanity.bench import Bench, calling
from dranode.sanity.breach import expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.claims import BenchClaim, together
from dranode.sanity.kubelet import ClaimAnswer, DriverCallError

T = TypeVar("T")

_CALLS: Final = 100
_CALLERS: Final = 20
_MANAGER: Final = "kubelet, pkg/kubelet/cm/dra: pods are started in parallel"


def _at_once(work: Sequence[Callable[[], T]]) -> list[T]:
    with ThreadPoolExecutor(_CALLERS, thread_name_prefix="caller") as pool:
        return [future.result() for future in [pool.submit(each) for each in work]]


def _answer(bench: Bench, claim: BenchClaim) -> ClaimAnswer:
    return bench.prepared(claim)[0]


def _claims(bench: Bench, most: int) -> list[BenchClaim]:
    """As many claims as can be prepared at the same time."""
    if bench.api is None:
        return [bench.claim()]
    devices = [device for device in together(bench.offers()) for _ in range(device.shares())]
    return [bench.claim([device]) for device in devices[:most]]


@must("concurrency-100-calls", _MANAGER)
def many_calls_are_answered(bench: Bench) -> None:
    """100 calls at once are all answered, each with its own claim's devices.

    Uses as many claims as devices and shares allow; several calls ask for the same claim.
    """
    claims = _claims(bench, _CALLS)
    rounds = [claims[index % len(claims)] for index in range(_CALLS)]
    answers = _at_once([partial(_answer, bench, claim) for claim in rounds])
    first: dict[str, ClaimAnswer] = {}
    for claim, answer in zip(rounds, answers, strict=True):
        expect(
            answer.named <= claim.allocated, f"claim {claim.identity} got {listed(answer.named)}", "do not mix up calls"
        )
        seen = f"claim {claim.identity} got {shown(answer)} and {shown(first.get(claim.uid))}"
        expect(first.setdefault(claim.uid, answer) == answer, seen, "decide under a lock")


@must("concurrency-same-claim", _MANAGER)
def one_claim_has_one_answer(bench: Bench) -> None:
    """Many calls that prepare the same claim at once get the same answer.

    Makes twenty calls.
    """
    claim = bench.claim()
    answers = _at_once([partial(_answer, bench, claim)] * _CALLERS)
    distinct = set(answers)
    expect(len(distinct) == 1, f"there are {len(distinct)} answers", "decide under a lock, and answer from the record")


@should("concurrency-held", "kubeletplugin/draplugin.go: last line of defense")
def one_claim_gets_the_device(bench: Bench) -> None:
    """Of many claims for one device that are prepared at once, exactly one gets it.

    Uses eight claims.
    """
    (device,) = bench.devices(shareable=False)
    claims = [bench.claim([device]) for _ in range(8)]
    refusals = _at_once([partial(bench.refused, claim) for claim in claims])
    given = refusals.count("")
    expect(
        given == 1,
        f"{device.name} is prepared for {given} of {len(claims)} claims{'' if given else f': {refusals[0]}'}",
        "decide under a lock, and hold it until the decision is recorded",
    )


@must("concurrency-mixed", _MANAGER)
def mixed_calls_leave_nothing(bench: Bench) -> None:
    """After many Prepares and Unprepares at once every claim is as its last call left it.

    Each claim is prepared and unprepared several times in its own thread, and nothing may remain at the end.
    """
    claims = _claims(bench, 8)
    before = set(bench.specs.listing()) if bench.places.cdi else set()

    def come_and_go(claim: BenchClaim) -> None:
        for _ in range(4):
            bench.prepared(claim)
            bench.unprepared(claim)

    _at_once([partial(come_and_go, claim) for claim in claims])
    left = set(bench.specs.listing()) - before if bench.places.cdi else set()
    expect(not left, f"{', '.join(sorted(left))} is left", "serialize the calls for one claim")
    for claim in claims:
        bench.prepared(claim)


@should(
    "concurrency-connections",
    "kubelet opens one for registration, one for calls and streams; monitoring and drains open more",
)
def many_connections_are_served(bench: Bench) -> None:
    """Many connections at once are served.

    Opens fifty connections and makes a call on each.
    """
    clients = [bench.another_connection() for _ in range(50)]
    with calling("NodePrepareResources"):
        _at_once([partial(client.prepare, bench.version, (), 20) for client in clients])


@must("concurrency-cancelled", "kubelet cancels a call at its deadline and repeats it")
def cancelled_calls_are_survived(bench: Bench) -> None:
    """After kubelet has given up a call, the driver can answer the next one.

    Calls Prepare with deadlines of a few milliseconds, and then once with enough time.
    """
    claim = bench.claim()
    for seconds in (0.001, 0.003, 0.01):
        try:
            bench.plugin.prepare(bench.version, [claim.identity], seconds)
        except DriverCallError:
            continue
    (answer,) = bench.prepared(claim)
    bench.see_ids_resolve(answer)
    bench.unprepared(claim)


@must("concurrency-big-batch", f"{_MANAGER}; the call's deadline")
def big_batches_are_answered(bench: Bench) -> None:
    """One call with many claims is answered within kubelet's 45 s.

    Prepares as many claims as possible, up to a hundred, in one call.
    """
    claims = _claims(bench, _CALLS)
    bench.prepared(*claims)
    bench.unprepared(*claims)
