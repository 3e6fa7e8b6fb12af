"""Can these pods be placed, on whatever nodes and in whatever order: all ways are tried, and none twice.

The order matters, since the allocator takes the first devices that do. Shortcuts leave the answer as it is: of pods
that are alike one is tried in each place, what failed once is not tried again, and where no pod minds its neighbours, a
pod that fits nowhere now will not fit when more is placed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from dranode.api.documents import encode_json
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState

# Pods and the nodes where they are placed, in this order.
Steps: TypeAlias = list[tuple[PodDemand, str]]
_MOST_LOOKS: Final = 50_000


class Replacing:
    """The search for places for pods that were evicted, beside one that waits.

    Attributes:
        exhausted: whether not all ways could be tried, so that nothing is proven.
    """

    def __init__(self, scheduler: Scheduler, pods: Sequence[PodDemand]) -> None:
        """Get ready for these pods and some of them."""
        self._scheduler = scheduler
        self._shapes = {pod.pod.key: _shape(pod) for pod in pods}
        self._alone = all(pod.info.terms.none and not pod.pod.spec.topology_spread_constraints for pod in pods)
        self._failed: set[Hashable] = set()
        self._looks = 0

    @property
    def exhausted(self) -> bool:
        """Return whether the search was given up."""
        return self._looks > _MOST_LOOKS

    def steps(self, state: ClusterState, demand: PodDemand, chosen: Sequence[PodDemand]) -> Steps | None:
        """Return places for the pod that waits and for the chosen ones, once they are gone; None if there are none."""
        after = state.without_pods(frozenset(pod.pod.key for pod in chosen))
        return self._place(after, (demand, *(pod.waiting() for pod in chosen)))

    def _place(self, state: ClusterState, pods: tuple[PodDemand, ...]) -> Steps | None:
        if not pods:
            return []
        key = self._key(state, pods)
        if key in self._failed or self.exhausted:
            return None
        fits = {}
        for pod in pods:
            fits[pod.pod.key] = self._scheduler.fits(state, pod, state.nodes)
            self._looks += 1
            if self._alone and not fits[pod.pod.key]:
                self._failed.add(key)
                return None
        tried: set[bytes] = set()
        for pod in pods:
            shape = self._shapes[pod.pod.key]
            if shape in tried:
                continue
            tried.add(shape)
            rest = tuple(other for other in pods if other is not pod)
            for node, outcomes in fits[pod.pod.key].items():
                steps = self._place(self._scheduler.bind(state, pod, node, outcomes), rest)
                if steps is not None:
                    return [(pod, node), *steps]
        self._failed.add(key)
        return None

    def _key(self, state: ClusterState, pods: tuple[PodDemand, ...]) -> Hashable:
        """Return what the answer depends on: what is still to be placed, and who is where with what."""
        shapes = sorted(self._shapes[pod.pod.key] for pod in pods)
        placed = frozenset(
            (self._shapes.get(key, key), demand.pod.spec.node_name, self._count(state, demand))
            for key, demand in state.demands.items()
        )
        pools = frozenset((pool, state.holdings.state(pool)) for pool in state.holdings.pools)
        return tuple(shapes), placed, pools

    def _count(self, state: ClusterState, demand: PodDemand) -> int:
        """Return how many pods of the same shape are on its node: a set alone would forget it."""
        shape = self._shapes.get(demand.pod.key)
        pods = state.nodes[demand.pod.spec.node_name].pods if demand.pod.spec.node_name in state.nodes else ()
        return sum(self._shapes.get(key) == shape for key in pods)


def _shape(demand: PodDemand) -> bytes:
    """Equal for pods that differ by name alone; a claim that is not made from a template is one of its own."""
    spec = replace(demand.pod.spec, node_name="")
    templated = {entry.name for entry in spec.resource_claims if entry.resource_claim_template_name is not None}
    own = {demand.entries[name] for name in templated & demand.entries.keys()}
    claims = [
        encode_json(claim.spec) if ClaimKey.of(claim) in own else str(ClaimKey.of(claim)).encode()
        for claim in demand.claims
    ]
    labels = sorted(demand.pod.metadata.labels.items())
    return b"\n".join((demand.pod.metadata.namespace.encode(), encode_json(spec), encode_json(labels), *claims))
