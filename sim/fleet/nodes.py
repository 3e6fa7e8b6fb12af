"""`nodes.yaml`: the machines of a fleet that may only be imagined, and how many of each.

    nodes:
    - name: big                                    # big-0, big-1 ...; with a count of 1, just big
      machine: sockets=2,numa=2,l3=4,cores=4,threads=2   # whatever --machine takes
      count: 100                                   # 1 if left out
      labels: {topology.kubernetes.io/zone: a}     # beside kubernetes.io/hostname
    - name: gpu
      slices: gpu-node.yaml                        # ResourceSlices of one node, as they were dumped or made up
      count: 20
    - name: cpu
      machine: cores=32
      allocatable: {cpu: "30", memory: 120Gi}            # what pods may take; `dranode fit` asks for it
      taints: [{key: dedicated, effect: NoSchedule}]

Each entry has a machine, whose devices the drivers find, or slices; relative paths start at the file's folder. Unknown
keys are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.names import is_dns_subdomain
from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.api.resource import ObjectMeta, ResourceSlice, ResourceSliceSpec
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.slices.desired import desired_slices
from dranode.driver.machine.yaml_files import load_documents, read_yaml
from dranode.sim.scheduler.documents import NodeCapacityStatus, NodeTaint, SchedulingNode

Discover: TypeAlias = Callable[[str], Iterable[tuple[str, Inventory]]]
_TEMPLATE = "node"


class NodeKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry: nodes that differ by name alone.

    Attributes:
        name: what the nodes are called, or the beginning of it.
        machine: what `--machine` takes; empty if there are slices.
        slices: a file with the ResourceSlices of one such node; empty if there is a machine.
        count: how many.
        labels: of every node.
        allocatable: what pods may take of it; 110 pods unless it says otherwise.
        taints: of every node.
    """

    name: str
    machine: str = ""
    slices: str = ""
    count: int = 1
    labels: Mapping[str, str] = {}
    allocatable: Mapping[str, Quantity] = {}
    taints: tuple[NodeTaint, ...] = ()

    @property
    def origin(self) -> str:
        """The machine or the file of slices, for people."""
        return self.machine or self.slices

    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return (self.name,) if self.count == 1 else tuple(f"{self.name}-{number}" for number in range(self.count))


class _NodesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[NodeKind, ...]


def read_nodes(path: Path | str) -> tuple[NodeKind, ...]:
    """The entries of a `nodes.yaml`, with file names made absolute or relative to the working folder.

    Raises:
        DocumentError: the file cannot be read or does not have the form above; says where.
    """
    try:
        kinds = decode(_NodesFile, read_yaml(path)).nodes
        known: set[str] = set()
        for index, kind in enumerate(kinds):
            _check(kind, f"nodes[{index}]", known)
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error
    folder = Path(path).parent
    return tuple(msgspec.structs.replace(kind, **_located(kind, folder)) for kind in kinds)


def nodes_of(kinds: Iterable[NodeKind]) -> tuple[SchedulingNode, ...]:
    """The nodes, kind after kind."""
    return tuple(
        SchedulingNode(
            metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **kind.labels}),
            status=NodeCapacityStatus(allocatable=kind.allocatable),
        )
        for kind in kinds
        for name in kind.names()
    )


def slices_of(kinds: Iterable[NodeKind], discover: Discover) -> tuple[ResourceSlice, ...]:
    """Return what all nodes publish; `discover` gives drivers and what they find on a machine, once for each kind.

    Raises:
        DocumentError: a file of slices does not decode.
        MachineError: a machine cannot be read.
        UsageError: a machine or a node name is none.
    """
    return tuple(slice_ for kind in kinds for slice_ in _slices(kind, discover))


def _slices(kind: NodeKind, discover: Discover) -> Iterator[ResourceSlice]:
    return stamped(slice_templates(kind, discover), kind.names())


def stamped(templates: Iterable[ResourceSliceSpec], names: Iterable[str]) -> Iterator[ResourceSlice]:
    """The slices of nodes of these names, made from those of one node as `slice_templates` gives them.

    A slice is named `<node>-<driver>-<number>`. A pool that is not the node's own is named `<node>/<pool>`.
    """
    templates = tuple(templates)
    for name in names:
        for number, spec in enumerate(templates):
            pool = msgspec.structs.replace(
                spec.pool, name=name if spec.pool.name == _TEMPLATE else f"{name}/{spec.pool.name}"
            )
            yield ResourceSlice(
                api_version="resource.k8s.io/v1",
                kind="ResourceSlice",
                metadata=ObjectMeta(name=f"{name}-{spec.driver}-{number:03d}"),
                spec=msgspec.structs.replace(spec, node_name=name, pool=pool),
            )


def slice_templates(kind: NodeKind, discover: Discover) -> list[ResourceSliceSpec]:
    """The slices of one node of the kind, whose pool is called `node`.

    Raises:
        DocumentError: a file of slices does not decode.
        MachineError: the machine cannot be read.
    """
    if kind.machine:
        return [
            spec
            for driver, inventory in discover(kind.machine)
            for spec in desired_slices(driver, _TEMPLATE, inventory)
        ]
    made = []
    for source in load_documents([kind.slices]):
        if source.kind == "ResourceSlice":
            try:
                spec = decode(ResourceSlice, source.document).spec
            except DocumentError as error:
                raise DocumentError(f"{source.place}: {error}") from error
            made.append(slice_template(spec))
    return made


def slice_template(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    """A node's slice as a template for others like it: a pool that has the node's name is called `node`."""
    name = _TEMPLATE if spec.pool.name == spec.node_name else spec.pool.name
    return msgspec.structs.replace(spec, pool=msgspec.structs.replace(spec.pool, name=name))


def _check(kind: NodeKind, path: str, known: set[str]) -> None:
    if not is_dns_subdomain(kind.name, 240):
        raise DocumentError(f'"{kind.name}" is not the name of a node', f"{path}.name")
    if bool(kind.machine) == bool(kind.slices):
        raise DocumentError("an entry has either machine or slices", path)
    if kind.count < 1:
        raise DocumentError(f"{kind.count} nodes are too few; 1 is the least", f"{path}.count")
    for name in (kind.name, *kind.names()):
        if name in known:
            raise DocumentError(f'"{name}" stands there already', f"{path}.name")
    known.update((kind.name, *kind.names()))


def _located(kind: NodeKind, folder: Path) -> dict[str, str]:
    """The fields that name a file which is there, beside `nodes.yaml`."""
    named = {"machine": kind.machine, "slices": kind.slices}
    return {field: str(folder / name) for field, name in named.items() if name and _exists(folder / name)}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # a machine's description can be longer than any file's name
