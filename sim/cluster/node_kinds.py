"""The kinds of nodes of an imagined fleet, and the nodes and slices made from them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from dranode.api.errors import DocumentError
from dranode.api.names import is_dns_subdomain
from dranode.api.quantity import Quantity
from dranode.api.resource import DeviceTaint, ObjectMeta, ResourceSlice, ResourceSliceSpec
from dranode.sim.scheduler.amounts import allocatable_errors
from dranode.sim.scheduler.documents import NodeCapacityStatus, NodeSpec, SchedulingNode
from dranode.sim.scheduler.requests import PODS

# The pool name in templates that stands for the name of the node.
TEMPLATE_POOL = "node"
# Twenty times the largest cluster that Kubernetes supports.
MOST_NODES: Final = 100_000
# kubelet's own default.
_MOST_PODS: Final = Quantity("110")


class NodeKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry: nodes that differ only in their names.

    Attributes:
        name: the name of the node, or the prefix of several names.
        machine: a value of `--machine`; empty if there are slices.
        slices: a file with the ResourceSlices of one node; empty if there is a machine.
        count: the number of nodes.
        labels: the labels of every node.
        allocatable: the allocatable amounts of every node; by default 110 pods.
        taints: the taints of every node.
    """

    name: str
    machine: str = ""
    slices: str = ""
    count: int = 1
    labels: Mapping[str, str] = {}
    allocatable: Mapping[str, Quantity] = {}
    taints: tuple[DeviceTaint, ...] = ()

    @property
    def origin(self) -> str:
        """Return the machine or the file of slices, for people."""
        return self.machine or self.slices

    def names(self) -> tuple[str, ...]:
        """Return the names of the nodes."""
        return (self.name,) if self.count == 1 else tuple(f"{self.name}-{number}" for number in range(self.count))


def nodes_of(kinds: Iterable[NodeKind]) -> tuple[SchedulingNode, ...]:
    """Return the nodes of all kinds."""
    return tuple(node_of(kind, name) for kind in kinds for name in kind.names())


def node_of(kind: NodeKind, name: str) -> SchedulingNode:
    """Return a node of the kind."""
    return SchedulingNode(
        metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **kind.labels}),
        spec=NodeSpec(taints=kind.taints),
        status=NodeCapacityStatus(allocatable={PODS: _MOST_PODS, **kind.allocatable}),
    )


def stamped(templates: Iterable[ResourceSliceSpec], names: Iterable[str]) -> Iterator[ResourceSlice]:
    """Yield the slices of nodes with these names, made from the templates of one node.

    A slice is named `<node>-<driver>-<number>`. A pool that is not the node's own is named `<node>/<pool>`.
    """
    templates = tuple(templates)
    for name in names:
        for number, spec in enumerate(templates):
            pool = msgspec.structs.replace(
                spec.pool, name=name if spec.pool.name == TEMPLATE_POOL else f"{name}/{spec.pool.name}"
            )
            yield ResourceSlice(
                api_version="resource.k8s.io/v1",
                kind="ResourceSlice",
                metadata=ObjectMeta(name=f"{name}-{spec.driver}-{number:03d}"),
                spec=msgspec.structs.replace(spec, node_name=name, pool=pool),
            )


def slice_template(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    """A node's slice as a template for others like it: a pool that has the node's name is called `node`."""
    name = TEMPLATE_POOL if spec.pool.name == spec.node_name else spec.pool.name
    return msgspec.structs.replace(spec, pool=msgspec.structs.replace(spec.pool, name=name))


def check_node_kinds(kinds: Sequence[NodeKind]) -> None:
    """Refuse entries of a `nodes.yaml` that are none.

    Raises:
        DocumentError: there are none, one is invalid, or two nodes have the same name; names the place.
    """
    if not kinds:
        raise DocumentError("the list is empty; add at least one kind of node", "nodes")
    names: set[str] = set()
    for index, kind in enumerate(kinds):
        _check(kind, f"nodes[{index}]", names)


def _check(kind: NodeKind, path: str, names: set[str]) -> None:
    if not is_dns_subdomain(kind.name, 240):
        raise DocumentError(f'"{kind.name}" is not the name of a node', f"{path}.name")
    if bool(kind.machine) == bool(kind.slices):
        raise DocumentError("an entry has either machine or slices", path)
    if kind.count < 1:
        raise DocumentError(f"{kind.count} nodes are too few; the minimum is 1", f"{path}.count")
    if kind.count > MOST_NODES:
        raise DocumentError(f"{kind.count} nodes are too many; the maximum is {MOST_NODES}", f"{path}.count")
    for error in allocatable_errors(kind.allocatable, f"{path}.allocatable"):
        raise DocumentError(error.message, error.path)
    for name in (kind.name, *kind.names()):
        if name in names:
            raise DocumentError(f'"{name}" is listed twice', f"{path}.name")
    names.update((kind.name, *kind.names()))
