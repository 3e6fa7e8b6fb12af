"""Admitted workloads on a fleet: their pods are placed as any others."""

from __future__ import annotations

from collections.abc import Iterable

from dranode.api.documents import decode
from dranode.api.manifests import SourceDocument
from dranode.api.resource import Pod, PodSpec
from dranode.sim.cluster.workload import read_workload
from dranode.sim.fit.questions import ClusterQuestions
from dranode.sim.fit.state import ClusterState
from dranode.sim.fleet.cluster import demands_in
from dranode.sim.fleet.placing import PodResult, place_pods
from dranode.sim.queues.pods import pods_of
from dranode.sim.queues.setup import Setup
from dranode.sim.queues.values import Admitted

_CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")


class FleetNodes:
    """Nodes, and the pods that were placed on them.

    Attributes:
        state: the nodes as they are now.
        results: by workload, where its pods went.
    """

    def __init__(self, questions: ClusterQuestions, setup: Setup, sources: Iterable[SourceDocument]) -> None:
        """Start with the cluster as it is; the claims and templates of workloads are among the `sources`."""
        self._questions = questions
        self._setup = setup
        self._claims = tuple(source for source in sources if source.kind in _CLAIMS)
        self.state: ClusterState = questions.state
        self.results: dict[str, tuple[PodResult, ...]] = {}

    def place(self, admitted: Admitted) -> str:
        """Place all pods of a workload, or none.

        Returns:
            Why they have no place, with the first pod that has none; empty if they were placed.

        Raises:
            DocumentError: a pod, claim or template of the workload does not decode, or names what there is not.
        """
        key = admitted.workload.key
        pods = pods_of(self._setup.documents[key], admitted, self._setup.queues.flavors)
        specs = {f"{pod.document['metadata']['namespace']}/{pod.name}": decode(Pod, pod.document).spec for pod in pods}
        for name, spec in specs.items():
            nodes = self._questions.dump.nodes
            if not any(spec.node_selector.items() <= node.metadata.labels.items() for node in nodes):
                return f"pod {name}: no node has the labels {_labels(spec)}"
        names = {
            entry.resource_claim_name or entry.resource_claim_template_name
            for spec in specs.values()
            for entry in spec.resource_claims
        }
        claims = (source for source in self._claims if source.name in names)
        features = self._questions.features
        workload = [pod for pod in read_workload((*claims, *pods), features).pods if pod.name in specs]
        results, state = place_pods(self._questions, self.state, demands_in(workload, self._questions.dump, features))
        unplaced = next((result for result in results if result.node is None), None)
        if unplaced is not None:
            return f"pod {unplaced.pod}: {unplaced.sentence}"
        self.state, self.results[key] = state, results
        return ""

    def release(self, admitted: Admitted) -> None:
        """Take the pods of a workload off again; a claim that workloads share stays until the last of them has left."""
        results = self.results.pop(admitted.workload.key, ())
        self.state = self.state.without_pods(frozenset(result.pod for result in results))


def _labels(spec: PodSpec) -> str:
    return ", ".join(f"{key}={value}" for key, value in spec.node_selector.items())
