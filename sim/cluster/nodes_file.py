"""`nodes.yaml`: the machines of an imagined fleet, and how many of each.

    nodes:
    - name: big                                    # big-0, big-1 ...; with a count of 1, just big
      machine: sockets=2,numa=2,l3=4,cores=4,threads=2   # any value of --machine
      count: 100                                   # default 1
      labels: {topology.kubernetes.io/zone: a}     # in addition to kubernetes.io/hostname
    - name: gpu
      slices: gpu-node.yaml                        # ResourceSlices of one node, dumped or handwritten
      count: 20
    - name: cpu
      machine: cores=32
      allocatable: {cpu: "30", memory: 120Gi}      # allocatable amounts of one node
      taints: [{key: dedicated, effect: NoSchedule}]

Each entry has either a machine, whose devices the drivers discover, or slices. Paths are relative to the file's folder.
Unknown keys are refused.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec

from dranode.api.documents import decode
from dranode.api.errors import DocumentError, MachineError, UsageError
from dranode.api.resource import ResourceSlice, ResourceSliceSpec
from dranode.driver.claims.plugin import Inventory
from dranode.driver.machine.yaml_files import load_documents, read_yaml
from dranode.driver.slices.desired import desired_slices
from dranode.sim.cluster.node_kinds import TEMPLATE_POOL, NodeKind, check_node_kinds, slice_template, stamped

Discover: TypeAlias = Callable[[str], Iterable[tuple[str, Inventory]]]


class _NodesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[NodeKind, ...]


def read_nodes(path: Path | str) -> tuple[NodeKind, ...]:
    """Return the entries of a `nodes.yaml`; paths in them are prefixed with the file's folder.

    Raises:
        DocumentError: the file cannot be read, or is invalid; names the place.
    """
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise DocumentError(f"{path} has no nodes; list them under nodes:")
    try:
        kinds = decode(_NodesFile, document).nodes
        check_node_kinds(kinds)
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error
    folder = Path(path).parent
    return tuple(msgspec.structs.replace(kind, **_located(kind, folder)) for kind in kinds)


def slices_of(kinds: Iterable[NodeKind], discover: Discover) -> tuple[ResourceSlice, ...]:
    """Return the slices of all nodes; `discover` returns the drivers with their devices on a machine.

    Raises:
        DocumentError: a file of slices does not decode, or a machine is invalid or cannot be read.
    """
    return tuple(slice_ for kind in kinds for slice_ in stamped(slice_templates(kind, discover), kind.names()))


def slice_templates(kind: NodeKind, discover: Discover) -> list[ResourceSliceSpec]:
    """Return the slices of one node of the kind, with a pool called `node`.

    Raises:
        DocumentError: a file of slices does not decode, or the machine is invalid or cannot be read.
    """
    if kind.machine:
        try:
            return [
                spec
                for driver, inventory in discover(kind.machine)
                for spec in desired_slices(driver, TEMPLATE_POOL, inventory)
            ]
        except (MachineError, UsageError) as error:
            raise DocumentError(f"the machine of the nodes {kind.name}: {error}") from error
    made = []
    for source in load_documents([kind.slices]):
        if source.kind == "ResourceSlice":
            with source.names_errors():
                made.append(slice_template(decode(ResourceSlice, source.document).spec))
    return made


def _located(kind: NodeKind, folder: Path) -> dict[str, str]:
    """Return the fields that name an existing file, with the folder of `nodes.yaml`."""
    named = {"machine": kind.machine, "slices": kind.slices}
    return {field: str(folder / name) for field, name in named.items() if name and _exists(folder / name)}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # a machine's description can be longer than any file's name
