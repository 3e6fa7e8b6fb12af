"""The fields of pods and nodes that kube-scheduler reads, in addition to those of the driver's own documents.

Label selectors follow LabelSelectorAsSelector (`k8s.io/apimachinery/pkg/apis/meta/v1`).
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.api.resource import (
    APIDocument,
    DeviceTaint,
    DeviceToleration,
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    NodeStatus,
    Pod,
    PodContainer,
    PodSpec,
)
from dranode.sim.allocator.pools import requirement_holds

_WITH_VALUES: Final = ("In", "NotIn")
_WITHOUT_VALUES: Final = ("Exists", "DoesNotExist")


class LabelSelector(APIDocument, frozen=True, kw_only=True):
    """A label selector; an empty one matches all labels."""

    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()


class LabelMatcher:
    """A validated label selector.

    Attributes:
        everything: whether it matches all labels.
    """

    __slots__ = ("_expressions", "_labels", "_nothing", "everything")

    def __init__(self, selector: LabelSelector | None, more: Iterable[NodeSelectorRequirement] = ()) -> None:
        """Validate a selector, where None matches nothing; the requirements in `more` have to hold as well.

        Raises:
            DocumentError: an operator does not exist, or has too many or too few values.
        """
        self._nothing = selector is None
        selector = selector or LabelSelector()
        self._labels = tuple(selector.match_labels.items())
        self._expressions = (*selector.match_expressions, *more)
        self.everything = not self._nothing and not self._labels and not self._expressions
        for expression in self._expressions:
            _check(expression)

    @property
    def key(self) -> Hashable:
        """Return a value that is equal for matchers with the same text."""
        return self._nothing, self._labels, self._expressions

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels satisfy all requirements."""
        if self._nothing:
            return False
        for key, value in self._labels:
            if labels.get(key) != value:
                return False
        return all(requirement_holds(expression, labels) for expression in self._expressions)


def _check(expression: NodeSelectorRequirement) -> None:
    if expression.operator not in (*_WITH_VALUES, *_WITHOUT_VALUES):
        raise DocumentError(
            f'a label selector has no operator "{expression.operator}" (for {expression.key}); '
            "the operators are In, NotIn, Exists and DoesNotExist"
        )
    if (expression.operator in _WITH_VALUES) != bool(expression.values):
        raise DocumentError(
            f"the operator {expression.operator} for label {expression.key} has {len(expression.values)} values"
        )


ResourceList = Mapping[str, Quantity]


class NodeSpec(APIDocument, frozen=True, kw_only=True):
    """`Node.spec`."""

    taints: tuple[DeviceTaint, ...] = ()  # taints of devices and nodes have the same fields
    unschedulable: bool = False


class NodeImage(APIDocument, frozen=True, kw_only=True):
    """`Node.status.images[]`."""

    names: tuple[str, ...] = ()


class NodeCapacityStatus(NodeStatus, frozen=True, kw_only=True):
    """`Node.status`; the scheduler may use `allocatable`, while `capacity` is the total."""

    capacity: Mapping[str, Quantity] = {}
    allocatable: Mapping[str, Quantity] = {}
    images: tuple[NodeImage, ...] = ()

    def __post_init__(self) -> None:
        if not self.allocatable:  # the API server's default
            force_setattr(self, "allocatable", self.capacity)


class SchedulingNode(Node, frozen=True, kw_only=True):
    """A node as kube-scheduler sees it."""

    spec: NodeSpec = NodeSpec()
    status: NodeCapacityStatus = NodeCapacityStatus()


class PodAffinityTerm(APIDocument, frozen=True, kw_only=True):
    """Pods selected by labels and namespaces, and the topology in which they count."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(APIDocument, frozen=True, kw_only=True):
    """A preferred term with its weight, 1 to 100."""

    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(APIDocument, frozen=True, kw_only=True):
    """`affinity.podAffinity` or `affinity.podAntiAffinity`."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class PreferredSchedulingTerm(APIDocument, frozen=True, kw_only=True):
    """Preferred nodes with their weight, 1 to 100."""

    weight: int
    preference: NodeSelectorTerm = NodeSelectorTerm()


class PodNodeAffinity(APIDocument, frozen=True, kw_only=True):
    """`affinity.nodeAffinity`."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinities(APIDocument, frozen=True, kw_only=True):
    """`Pod.spec.affinity`."""

    node_affinity: PodNodeAffinity = PodNodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class TopologySpreadConstraint(APIDocument, frozen=True, kw_only=True):
    """`Pod.spec.topologySpreadConstraints[]`."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class ContainerPort(APIDocument, frozen=True, kw_only=True):
    """`ports[]` of a container; a port of 0 means no port."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class RestartRule(APIDocument, frozen=True, kw_only=True):
    """`restartPolicyRules[]` of a container."""

    action: str = ""


class SchedulingContainer(PodContainer, frozen=True, kw_only=True):
    """A container with the fields that decide where it can run."""

    image: str = ""
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""
    restart_policy_rules: tuple[RestartRule, ...] = ()
    volume_mounts: tuple[Mapping[str, Any], ...] = ()


class PodImage(APIDocument, frozen=True, kw_only=True):
    """`image` of a volume."""

    reference: str = ""


class PodVolume(APIDocument, frozen=True, kw_only=True):
    """`Pod.spec.volumes[]` with the sources that can tie a pod to nodes, and the image that nodes may have."""

    name: str = ""
    image: PodImage = PodImage()
    aws_elastic_block_store: Mapping[str, Any] | None = None
    azure_disk: Mapping[str, Any] | None = None
    cinder: Mapping[str, Any] | None = None
    csi: Mapping[str, Any] | None = None
    ephemeral: Mapping[str, Any] | None = None
    gce_persistent_disk: Mapping[str, Any] | None = None
    iscsi: Mapping[str, Any] | None = None
    persistent_volume_claim: Mapping[str, Any] | None = None
    portworx_volume: Mapping[str, Any] | None = None
    rbd: Mapping[str, Any] | None = None
    vsphere_volume: Mapping[str, Any] | None = None

    @property
    def placed(self) -> bool:
        """Return whether kube-scheduler's volume plug-ins check it."""
        return any(getattr(self, field) is not None for field in self.__struct_fields__[2:])


class SchedulingGate(APIDocument, frozen=True, kw_only=True):
    """`Pod.spec.schedulingGates[]`."""

    name: str = ""


class SchedulingPodSpec(PodSpec, frozen=True, kw_only=True):
    """`Pod.spec`."""

    init_containers: tuple[SchedulingContainer, ...] = ()
    containers: tuple[SchedulingContainer, ...] = ()
    overhead: Mapping[str, Quantity] = {}
    affinity: PodAffinities = PodAffinities()
    tolerations: tuple[DeviceToleration, ...] = ()  # tolerations of devices and nodes have the same fields
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    priority: int | None = None
    priority_class_name: str = ""
    runtime_class_name: str = ""
    preemption_policy: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    host_network: bool = False
    host_users: bool | None = None
    volumes: tuple[PodVolume, ...] = ()


class StatusResources(APIDocument, frozen=True, kw_only=True):
    """`resources` in a status: the amounts in force; None if the status has none."""

    requests: ResourceList | None = None


class ContainerStatus(APIDocument, frozen=True, kw_only=True):
    """`containerStatuses[]` with the fields that an in-place resize writes (KEP-1287)."""

    name: str
    allocated_resources: ResourceList | None = None
    resources: StatusResources | None = None


class PodCondition(APIDocument, frozen=True, kw_only=True):
    """`Pod.status.conditions[]`."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodClaimStatus(APIDocument, frozen=True, kw_only=True):
    """`Pod.status.resourceClaimStatuses[]`: the claim generated from a template; None if no claim is needed."""

    name: str
    resource_claim_name: str | None = None


class MappedAmount(APIDocument, frozen=True, kw_only=True):
    """The amount of a node resource that the devices of a claim map (KEP-5517)."""

    name: str
    quantity: Quantity | None = None


class OverheadAmount(APIDocument, frozen=True, kw_only=True):
    """The additional amount of a node resource that devices need (KEP-5517)."""

    name: str
    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableClaimStatus(APIDocument, frozen=True, kw_only=True):
    """`Pod.status.nodeAllocatableResourceClaimStatuses[]` (KEP-5517)."""

    resource_claim_name: str = ""
    containers: tuple[str, ...] = ()
    mapping: tuple[MappedAmount, ...] = ()
    overhead: tuple[OverheadAmount, ...] = ()


class SpecialClaimStatus(APIDocument, frozen=True, kw_only=True):
    """`Pod.status.extendedResourceClaimStatus`: the claim created for extended resources (KEP-5004)."""

    resource_claim_name: str = ""


class PodStatus(APIDocument, frozen=True, kw_only=True):
    """`Pod.status`."""

    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: ResourceList | None = None
    resources: StatusResources | None = None
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()
    node_allocatable_resource_claim_statuses: tuple[NodeAllocatableClaimStatus, ...] = ()
    extended_resource_claim_status: SpecialClaimStatus | None = None
    nominated_node_name: str = ""


class SchedulingPod(Pod, frozen=True, kw_only=True):
    """A pod as kube-scheduler sees it."""

    spec: SchedulingPodSpec = SchedulingPodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """Return `<namespace>/<name>`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def priority(self) -> int:
        """Return the priority, 0 by default."""
        return self.spec.priority or 0

    @property
    def finished(self) -> bool:
        """Return whether the pod has ended and no longer uses resources of its node."""
        return self.status.phase in ("Succeeded", "Failed")
