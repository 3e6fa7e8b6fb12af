"""Decides which pods and claims `explain` follows for a subject, from the cluster or from a node."""

import functools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from dranode.api.errors import DranodeError, UsageError
from dranode.api.resource import ResourceClaim, ResourceClaimConsumerReference
from dranode.driver.claims.grant import drivers_of
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.prepare import refused_beforehand
from dranode.driver.claims.record import Record
from dranode.driver.claims.users import pods_among
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.machines.forms import open_machine
from dranode.tools.cli.on_node import ThisNode, plugins_here
from dranode.tools.diagnosis.allocated import follow_allocated, node_of
from dranode.tools.diagnosis.live_objects import FitAnswer, Lookup, PodFacts
from dranode.tools.diagnosis.pod import follow_pod
from dranode.tools.diagnosis.scheduler import scheduler_answer
from dranode.tools.diagnosis.steps import Outcome, Step, StopCause, Trace, as_root, stopped, unseen
from dranode.tools.readers.pods import PodReader
from dranode.tools.readers.sources import ObjectSource

_KINDS: Final = {
    **dict.fromkeys(("pod", "pods", "po"), "Pod"),
    **dict.fromkeys(("resourceclaim", "resourceclaims", "claim"), "ResourceClaim"),
}
# How many pods are followed if many share a claim.
_MOST_PODS: Final = 5
_NOT_REPORTED_YET: Final = "fix it; the driver has not reported this yet, but the version installed here would"
_OUR_LABEL: Final = "app.kubernetes.io/name=dranode"
_OUR_NAMESPACE: Final = "dranode"
_NO_MACHINE: Final = "cores=1"


@dataclass(frozen=True, slots=True)
class Subject:
    """The object to explain.

    Attributes:
        kind: `Pod` or `ResourceClaim`; empty if it may be either.
        namespace: the object's namespace.
        name: the object's name.
    """

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        kind = {"Pod": "pod ", "ResourceClaim": "claim "}.get(self.kind, "")
        return f"{kind}{self.namespace}/{self.name}"


def subject_of(text: str, namespace: str, default: str) -> Subject:
    """Parse `NAME`, `NAMESPACE/NAME`, kubectl's `TYPE/NAME` or `TYPE/NAMESPACE/NAME`.

    Args:
        text: the text.
        namespace: the namespace given with `-n`; empty if none was.
        default: the namespace of a name without one.

    Raises:
        UsageError: the text has another form, or names another namespace than `-n`.
    """
    *front, name = text.split("/")
    if not name or "" in front or len(front) > 2:  # noqa: PLR2004 - TYPE/NAMESPACE/NAME
        raise UsageError(f'"{text}" is not NAME, NAMESPACE/NAME or TYPE/NAME, where TYPE is pod or claim')
    kind = ""
    if front and front[0].lower() in _KINDS and (namespace or len(front) > 1 or front[0] != "default"):
        kind = _KINDS[front.pop(0).lower()]
    if len(front) > 1:
        raise UsageError(f'"{front[0]}" in "{text}" is neither pod nor claim')
    if front and namespace and front[0] != namespace:
        raise UsageError(f'"{text}" is in namespace {front[0]}, but -n says {namespace}')
    return Subject(kind, front[0] if front else namespace or default, name)


@dataclass(slots=True)
class Explainer:
    """Follows pods and claims, with what can be read from here.

    Attributes:
        cluster: reads the cluster; None if there is no cluster to read.
        node: the node that this runs on; None if no node's files should be read.
        source: where the claims on this node are read from: the cluster, a folder, or None.
        fit: returns the answer of `fit` for a pod, `<namespace>/<name>`; raises DranodeError if there is none.
    """

    cluster: PodReader | None
    node: ThisNode | None
    source: ObjectSource | None
    fit: Callable[[str], FitAnswer] | None = None
    _elsewhere: dict[str, str] = field(default_factory=dict)

    @property
    def unasked(self) -> tuple[str, ...]:
        """Return a sentence for everything that could not be read from the cluster."""
        return tuple(dict.fromkeys(self.cluster.unasked)) if self.cluster is not None else ()

    def explain(self, subject: Subject) -> tuple[Trace, ...]:
        """Return the steps of a pod with its claims, or of a claim with its pods.

        Raises:
            DranodeError: the cluster cannot be read, or the node's ledger cannot.
        """
        if self.cluster is None:
            return tuple(self._recorded(subject))
        no_pod = False
        if subject.kind != "ResourceClaim":
            facts = self.cluster.read(subject.namespace, subject.name)
            no_pod = facts.lookup is Lookup.MISSING
            if facts.lookup is Lookup.FOUND or (subject.kind == "Pod" and no_pod):
                return tuple(self._pod(facts))
        return tuple(self._claim(self.cluster, subject, no_pod=no_pod))

    # --- pods ---

    def _pod(self, facts: PodFacts) -> Iterator[Trace]:
        yield follow_pod(self._asked(facts))
        for claim in facts.claims:
            if claim.claim is not None:
                yield from self._allocated(claim.claim, facts.node_name, waits=_waits(facts))

    def _asked(self, facts: PodFacts) -> PodFacts:
        pod = facts.pod
        if pod is None or self.cluster is None or facts.node_name or pod.spec.scheduling_gates:
            return facts
        if any(claim.needed and claim.claim is None for claim in facts.claims):
            return facts
        objects = self.cluster.objects_to_schedule()
        if objects is not None:
            features = features_of(self.cluster.objects.server_version)
            facts = replace(facts, scheduler=scheduler_answer(pod, facts.claims, objects, features))
        # If the claims fit no node, `fit` could only say the same.
        if self.fit is None or (facts.scheduler is not None and facts.scheduler.keeps):
            return facts
        try:
            return replace(facts, fit=self.fit(facts.name))
        except DranodeError as error:
            self.cluster.unasked.append(f"whether the pod fits by CPU, memory and everything else: {error}")
            return facts

    # --- claims ---

    def _claim(self, cluster: PodReader, subject: Subject, *, no_pod: bool) -> Iterator[Trace]:
        lookup, claim = cluster.claim(subject.namespace, subject.name)
        if lookup is not Lookup.FOUND:
            recorded = tuple(self._recorded(subject)) if self.node is not None else ()
            yield from recorded
            if lookup is Lookup.UNASKED and not recorded:
                yield self._invisible(subject, no_pod=no_pod)
            # A trace without a driver only says that ledgers cannot be read, so the claim is still missing.
            elif lookup is Lookup.MISSING and not any(trace.driver for trace in recorded):
                yield Trace(str(subject), (_missing(subject),), claim=f"{subject.namespace}/{subject.name}")
            return
        users = cluster.users(subject.namespace, subject.name, claim)
        pods = [cluster.read(subject.namespace, user) for user in users[:_MOST_PODS]]
        living = [facts for facts in pods if facts.lookup is Lookup.FOUND]
        yield from (follow_pod(self._asked(facts)) for facts in living)
        if claim is None:
            return
        if claim.status.allocation is not None:
            bound = next((facts.node_name for facts in living), "")
            yield from self._allocated(claim, bound, waits=any(map(_waits, living)), left=_is_left(claim, pods))
        elif not living:
            yield self._unused(claim, users)

    def _unused(self, claim: ResourceClaim, users: tuple[str, ...]) -> Trace:
        """Return the steps of a claim that is not allocated and has no pods, or whose pods cannot be read."""
        name = f"{claim.metadata.namespace}/{claim.metadata.name}"
        step = stopped(
            "claim",
            StopCause.CLAIM_UNUSED,
            "no pod uses it, and a claim is allocated only with the first pod that names it",
            "start a pod that names it as resourceClaimName, or check whether its pod names another claim",
        )
        if users or any("pods of namespace" in sentence for sentence in self.unasked):
            step = unseen(
                "claim",
                "it is not allocated; its pods could not be read",
                f"kubectl describe resourceclaim {claim.metadata.name} -n {claim.metadata.namespace}",
            )
        return Trace(f"claim {name}", (step,), claim=name)

    def _allocated(
        self, claim: ResourceClaim, bound: str, *, waits: bool = False, left: bool = False
    ) -> Iterator[Trace]:
        """Yield the steps of a claim.

        Args:
            claim: the claim.
            bound: the node of its pods; empty if they have none.
            waits: whether one of its pods is on a node and has not started there.
            left: whether all pods that it is reserved for are gone or have ended.
        """
        name = f"{claim.metadata.namespace}/{claim.metadata.name}"
        for driver in sorted(drivers_of(claim.status.allocation)):
            place = bound or node_of(claim, driver)
            if self.node is not None and driver in self.node.plugins and place == self.node.options.node:
                yield self._trace(self.node, driver, claim.metadata.namespace, claim.metadata.name)
                continue
            seen = (_unreleased(claim),) if left else self._from_afar(claim, driver, place, waits=waits)
            yield Trace(f"claim {name}", tuple(seen), driver, name)

    def _from_afar(self, claim: ResourceClaim, driver: str, place: str, *, waits: bool) -> Iterator[Step]:
        """Yield the steps of a claim on another node, as far as they can be seen from here."""
        steps = tuple(follow_allocated(claim, driver))
        yield from steps
        # The driver has reported nothing. Make its decision here, as far as it does not depend on what the node holds.
        if steps[-1].outcome is Outcome.UNSEEN and place and waits:
            refusal = self._refusal(claim, driver, place)
            if refusal:
                yield stopped("prepare", StopCause.PREPARE_REFUSED, refusal, _NOT_REPORTED_YET)
                return
        if place:
            command = self._command(place, driver, f"{claim.metadata.namespace}/{claim.metadata.name}")
            yield unseen("node", f"what node {place} has recorded about it cannot be seen from here", command)

    def _refusal(self, claim: ResourceClaim, driver: str, place: str) -> str:
        plugin = installed_drivers().get(driver)
        if plugin is None or self.cluster is None:
            return ""
        devices = self.cluster.published(driver, place)
        ref = ClaimRef.of(claim)
        return refused_beforehand(ref, claim, plugin, place, None if devices is None else Inventory(devices))

    def _command(self, place: str, driver: str, claim: str) -> str:
        """Return the command that shows a claim on another node."""
        driver_pod = self._driver_pod(place)
        if driver_pod:
            return f"kubectl exec -n {_OUR_NAMESPACE} {driver_pod} -- dranode explain {shlex.quote(f'claim/{claim}')}"
        if self.node is not None and driver in self.node.plugins:
            return f"dranode explain claim/{claim} on {place}; if this is {place}, pass --node-name {place}"
        return (
            f"kubectl get pods -A --field-selector spec.nodeName={place} names the driver's pod, whose log has the rest"
        )

    def _driver_pod(self, place: str) -> str:
        if place not in self._elsewhere:
            pods = self.cluster.pods_on(place, _OUR_NAMESPACE, _OUR_LABEL) if self.cluster is not None else None
            self._elsewhere[place] = pods[0].metadata.name if pods else ""
        return self._elsewhere[place]

    # --- this node alone ---

    def _recorded(self, subject: Subject) -> Iterator[Trace]:
        """Yield what this node knows: the claims on record with that name, or with a pod of that name."""
        if self.node is None:
            raise UsageError("there is no cluster to ask; pass --kubeconfig, or a folder of claims with --store")
        claim = self.source.claim(subject.namespace, subject.name) if self.source is not None else None
        if claim is not None:
            yield from self._stored(claim)
            return
        unread: list[str] = []
        recorded = list(self.node.recorded(unread))
        records = [(driver, record) for driver, record in recorded if record.namespace == subject.namespace]
        claims = {
            (driver, record.name)
            for driver, record in records
            if (record.name == subject.name or subject.name in {pod.name for pod in pods_among(record.pods)})
        }
        for driver, name in sorted(claims):
            yield self._trace(self.node, driver, subject.namespace, name)
        if not claims and unread:
            what = f"whether {subject} is on record here: {'; '.join(unread)}"
            yield Trace(str(subject), (unseen("record", what, as_root("dranode doctor", root=self.node.root)),))
        elif not claims and self.cluster is None:
            yield self._unknown(subject, [record for _, record in records])

    def _trace(self, node: ThisNode, driver: str, namespace: str, name: str) -> Trace:
        """Return the steps of a claim on this node, or a single step that says why it cannot be followed."""
        try:
            return node.trace(driver, namespace, name, self.source)
        except DranodeError as error:
            claim = f"{namespace}/{name}"
            about = f"claim {claim} on node {node.options.node}"
            return Trace(about, (unseen("node", str(error), as_root("dranode doctor", root=node.root)),), driver, claim)

    def _stored(self, claim: ResourceClaim) -> Iterator[Trace]:
        """Yield the steps of a claim from a folder, which has no pods."""
        if claim.status.allocation is not None:
            yield from self._allocated(claim, "")
            return
        step = stopped(
            "allocation",
            StopCause.CLAIM_NOT_ALLOCATED,
            "the scheduler has not allocated it",
            "run dranode allocate to see what is missing on each node",
        )
        name = f"{claim.metadata.namespace}/{claim.metadata.name}"
        yield Trace(f"claim {name}", (step,), claim=name)

    def _unknown(self, subject: Subject, records: Iterable[Record]) -> Trace:
        """Return the trace of a subject that does not appear in the records of its namespace."""
        node = self.node.options.node if self.node is not None else ""
        if self.source is not None:
            return Trace(str(subject), (_missing(subject),), claim=f"{subject.namespace}/{subject.name}")
        what = f"nothing is on record here about {subject}, and there is no cluster to ask"
        for ref, consumers in {record.ref: record.pods for record in records}.items():
            # If a claim is reserved for a PodGroup, the names of the pods that use it are not on record.
            groups = ", ".join(str(consumer) for consumer in consumers if not consumer.is_pod)
            if groups:
                what += f"; claim {ref} is reserved for {groups}, whose pods are not on record"
        return Trace(
            str(subject),
            (unseen("record", what, f"dranode explain with --kubeconfig, or in the driver's pod on {node}"),),
            unknown=True,
        )

    def _invisible(self, subject: Subject, *, no_pod: bool) -> Trace:
        """Return the trace of a subject that may be a claim, but could not be read."""
        name = f"{subject.namespace}/{subject.name}"
        if no_pod:
            what = f"there is no pod {name}, and it could not be read whether there is a claim of that name"
        elif subject.kind == "ResourceClaim":
            what = f"the claim {name} could not be read"
        else:
            what = f"neither a pod nor a claim {name} could be read"
        fix = "add the output of kubectl get pods,resourceclaims -A -o yaml to the files"
        if self.node is not None:
            what += ", and nothing about it is on record here"
            fix = "kubectl dranode explain from where a kubeconfig is; deploy/reader has the rights"
        return Trace(str(subject), (unseen("claim", what, fix),), unknown=True)


@functools.cache
def installed_drivers() -> Mapping[str, Plugin]:
    """Return the installed drivers, by name, with default options and without hardware."""
    return plugins_here((), open_machine(_NO_MACHINE), {})


def features_of(version: Callable[[], str]) -> Features:
    """Return the features of the release that `version` returns (`v1.37.1`), or of the newest stable one if unknown."""
    try:
        match = re.match(r"v?(\d+\.\d+\.\d+)", version())
        return Features.of(release(match[1])) if match else Features()
    except (UsageError, DranodeError):
        return Features()


def _waits(facts: PodFacts) -> bool:
    """Return whether a pod is on a node and has not started there."""
    return facts.pod is not None and bool(facts.node_name) and facts.pod.status.phase == "Pending"


def _is_left(claim: ResourceClaim, pods: Sequence[PodFacts]) -> bool:
    """Return whether a claim is reserved only for pods that are known to be gone or to have ended."""
    named = {facts.name.rpartition("/")[2]: facts for facts in pods}
    consumers = claim.status.reserved_for
    return bool(consumers) and all(
        consumer.is_pod and consumer.name in named and _is_over(consumer, named[consumer.name])
        for consumer in consumers
    )


def _is_over(consumer: ResourceClaimConsumerReference, facts: PodFacts) -> bool:
    pod = facts.pod
    if pod is None:
        return facts.lookup is Lookup.MISSING
    # The pod may have been replaced by another one of the same name.
    return pod.metadata.uid != consumer.uid or pod.status.phase in ("Succeeded", "Failed")


def _unreleased(claim: ResourceClaim) -> Step:
    users = ", ".join(pod.name for pod in pods_among(claim.status.reserved_for))
    deleted = ", and it is being deleted" if claim.metadata.deletion_timestamp is not None else ""
    return stopped(
        "claim",
        StopCause.CLAIM_NOT_RELEASED,
        f"it still holds its devices, although no pod that it is reserved for ({users}) runs any more{deleted}",
        "wait a moment; if nothing changes, check that kube-controller-manager runs, which releases such claims, and "
        "read the log of its resourceclaim controller",
    )


def _missing(subject: Subject) -> Step:
    if subject.kind == "ResourceClaim":
        what, cause = f"there is no claim {subject.namespace}/{subject.name}", StopCause.CLAIM_MISSING
    else:
        what, cause = f"there is no pod or claim {subject.namespace}/{subject.name}", StopCause.POD_MISSING
    return stopped(
        "claim",
        cause,
        what,
        "check the namespace and the name: kubectl get pods,resourceclaims -n "
        f"{subject.namespace}; Kubernetes adds a suffix to the names of claims that it makes from templates",
    )
