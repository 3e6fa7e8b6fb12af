"""Claims by dice on a node with a real runtime, and what the kernel should then say of each container."""

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from dranode.api.cpuset import CPUSet
from dranode.sim.local.kubelet import KubeletError
from tests.interop.cri import Pod, wait_until
from tests.interop.node import ONLINE, UNIFIED, Node

# Driver, device and consumed capacity, as an allocation result has them.
Wanted = tuple[str, str, dict[str, str]]
_MIB = 1 << 20
# Kubelet says of every page size what a container may have of it; none without a request.
_PAGES = "2MB"
# A pod's sandbox costs more than all the rest of a claim, so pods have claims one after the other.
_PODS = 8
# Each makes the runtime move what is in the way.
_ATTEMPTS = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Expected:
    """What a container should be held to.

    Attributes:
        cpus: how many CPUs are its own; 0 is the shared pool.
        mems: its NUMA nodes.
        pages: bytes in huge pages of 2 MiB.
    """

    cpus: int
    mems: CPUSet
    pages: int


@dataclass(frozen=True)
class _Claim:
    name: str
    pod: Pod
    containers: tuple[tuple[str, Expected], ...]


@dataclass(frozen=True)
class Offers:
    """What random claims ask for.

    Attributes:
        numa: the NUMA nodes.
        cpus: a number of CPUs of a node.
        memory: so many MiB of a node.
        pages: so many huge pages of a node.
    """

    numa: Sequence[int]
    cpus: Callable[[int, int], Wanted]
    memory: Callable[[int, int], Wanted]
    pages: Callable[[int, int], Wanted]


class RandomClaims:
    """Makes claims, runs their containers, takes them down again, and asks the kernel of each after every step."""

    def __init__(self, node: Node, offers: Offers, seed: int) -> None:
        self._node, self._offers = node, offers
        self._dice = random.Random(seed)
        self._alive: list[_Claim] = []
        self._free = [Pod(f"slot{number}", f"pod-slot{number}") for number in range(_PODS)]
        counted = ("prepared", "refused", "starts refused", "driver killed", "runtime killed", "containers read")
        self.counts = dict.fromkeys(counted, 0)
        self._all_nodes = CPUSet(offers.numa)

    def run(self, claims: int) -> None:
        """Make so many claims that are prepared."""
        try:
            self._run(claims)
        except BaseException as error:
            # The runtime says which of the driver's updates it could not carry out; the driver is not told.
            failed = [line for line in self._node.runtime.log.splitlines() if "level=info" not in line]
            said = "\n".join((*failed[-100:], self._node.driver_log[-20_000:]))
            error.add_note(f"{self.counts}\n{said}")
            raise

    def _run(self, claims: int) -> None:
        began = time.monotonic()
        number = 0
        while self.counts["prepared"] < claims:
            number += 1
            if self._make(f"c{number}"):
                self._check(settled=True)
                self._disturb()
                self._check()
                if self.counts["prepared"] % 50 == 0:
                    log.info("after %.0f s: %s", time.monotonic() - began, self.counts)
            else:
                self._release()
            while not self._free or (self._alive and self._dice.random() < 0.3):
                self._release()
        while self._alive:
            self._release()

    def _make(self, name: str) -> bool:
        """Prepare a claim and run its containers; whether the drivers had enough for it."""
        wanted, expected = self._draw()
        pod = self._free[-1]
        try:
            cdi = self._node.claim_of_results(name, wanted, pod)
        except KubeletError as error:
            assert "left" in str(error) or "last CPUs" in str(error), error  # noqa: PT017 - that is the point
            self._node.release(name)
            self.counts["refused"] += 1
            return False
        self._free.pop()
        parts = [tuple(wanted)] if self._dice.random() < 0.7 else [(request,) for request in wanted]
        containers = []
        for number, requests in enumerate(parts):
            devices = tuple(dict.fromkeys(device for request in requests for device in cdi[request]))
            container = self._start(pod, f"{name}-{number}", devices)
            containers.append((container, _union([expected[request] for request in requests], self._all_nodes)))
        self._alive.append(_Claim(name, pod, tuple(containers)))
        self.counts["prepared"] += 1
        return True

    def _start(self, pod: Pod, name: str, cdi: Sequence[str]) -> str:
        """Run a container, made again as kubelet does while the kernel still has another on its CPUs."""
        cri = self._node.runtime.cri
        for attempt in range(_ATTEMPTS):
            container = cri.create(pod, name, cdi=cdi, pages={_PAGES: 0}, attempt=attempt)
            try:
                cri.call("StartContainer", container_id=container)
            except grpc.RpcError as error:
                if "is on CPUs" not in (error.details() or "") or attempt + 1 == _ATTEMPTS:
                    raise
                self.counts["starts refused"] += 1
                cri.remove(container)
            else:
                break
        return container

    def _draw(self) -> tuple[dict[str, Wanted], Mapping[str, Expected]]:
        """Return what a claim asks for by request, and what each request should come to."""
        dice, offers = self._dice, self._offers
        wanted: dict[str, Wanted] = {}
        expected: dict[str, Expected] = {}
        home = dice.choice(offers.numa)
        if dice.random() < 0.4:
            wanted["cpus"], expected["cpus"] = offers.cpus(home, 1), Expected(1, CPUSet(), 0)
        for number in range(dice.choice((0, 1, 1, 2)) if wanted else dice.choice((1, 1, 2, 3))):
            where = home if dice.random() < 0.7 else dice.choice(offers.numa)
            if dice.random() < 0.5:
                wanted[f"m{number}"] = offers.memory(where, dice.randint(1, 64))
                expected[f"m{number}"] = Expected(0, CPUSet([where]), 0)
            else:
                count = dice.randint(1, 6)
                wanted[f"p{number}"] = offers.pages(where, count)
                expected[f"p{number}"] = Expected(0, CPUSet([where]), 2 * count * _MIB)
        return wanted, expected

    def _disturb(self) -> None:
        dice = self._dice.random()
        if dice < 0.06:
            self._node.kill_driver()
            self._node.start_driver()
            self.counts["driver killed"] += 1
        elif dice < 0.10:
            self._node.restart_runtime()
            self.counts["runtime killed"] += 1

    def _release(self) -> None:
        if not self._alive:
            return
        claim = self._alive.pop(self._dice.randrange(len(self._alive)))
        for container, _ in claim.containers:
            self._node.runtime.cri.remove(container)
        self._node.release(claim.name)
        self._free.append(claim.pod)

    def _check(self, *, settled: bool = False) -> None:
        """Compare the kernel with what every container was given.

        CPUs that a claim leaves behind come to the other containers with the runtime's next call, if its NRI is older
        than 0.12.1: with `settled` there was one since the last claim came or went.
        """
        everyone = [(claim.name, *each) for claim in self._alive for each in claim.containers]
        own = [self._node.effective(container) for _, container, expected in everyone if expected.cpus]
        held = CPUSet.union(own)
        assert len(held) == sum(map(len, own)), f"two containers have one CPU: {own}"
        for name, container, expected in everyone:
            if expected.cpus:
                assert len(self._node.effective(container)) == expected.cpus, name
            else:
                self._is_on(container, ONLINE - held, name, settled=settled)
            assert self._node.effective(container, "cpuset.mems") == expected.mems, name
            assert self._node.page_limit(container, _PAGES) == expected.pages, name
            if UNIFIED and expected.pages:
                # runc 1.1 sets this limit for nobody by itself, and it can be set with cgroup v2 alone.
                assert self._node.page_limit(container, f"{_PAGES}.rsvd") == expected.pages, name
        self.counts["containers read"] += len(everyone)

    def _is_on(self, container: str, pool: CPUSet, name: str, *, settled: bool) -> None:
        mine = self._node.effective(container)
        assert mine <= pool, f"{name} runs on {mine}, of which claims hold {mine - pool}"
        if settled and mine != pool:
            wait_until(lambda: self._node.effective(container) == pool, f"{name} runs on the shared pool {pool}")


def _union(expected: Sequence[Expected], every: CPUSet) -> Expected:
    """Return what a container with these results should be held to; without memory of its own, every node."""
    return Expected(
        sum(each.cpus for each in expected),
        CPUSet.union(each.mems for each in expected) or every,
        sum(each.pages for each in expected),
    )
