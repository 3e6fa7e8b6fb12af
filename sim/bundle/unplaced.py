"""Says which devices do not say where they are, so that nothing can be said to be aligned with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dranode.sim.bundle.groups import NUMA_NODE, PCIE_ROOT, BundledDevice
from dranode.sim.bundle.kinds import DeviceKind

_PCI_ADDRESS: Final = "pciBusID"
# So many devices of a kind are named, the others counted.
_MOST_NAMED: Final = 4


def unplaced_notes(devices: Mapping[str, Sequence[BundledDevice]], single: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for the devices of each kind that are in no bundle, since they do not say where they are.

    Args:
        devices: those of each node.
        single: the nodes that have one NUMA node only, where nothing can be far from anything.
    """
    doubtful: dict[DeviceKind, list[str]] = {}
    near: dict[DeviceKind, list[str]] = {}
    rootless: dict[DeviceKind, list[str]] = {}
    for node, its in devices.items():
        for each in its:
            name = f"{node}/{each.device.name}"
            if not each.values(NUMA_NODE):
                (near if node in single else doubtful).setdefault(each.kind, []).append(name)
            if _on_pci(each) and not each.values(PCIE_ROOT):
                rootless.setdefault(each.kind, []).append(name)
    for kind, names in sorted(doubtful.items()):
        words = _Words.of(names, kind)
        yield (
            f"{words.subject} not say {words.their} NUMA node, so nothing is known to be aligned with {words.them}: "
            f"{words.they} in no bundle of one, no template gives {words.them}, and what is shown of each NUMA node "
            f"may lack {words.them}"
        )
    for kind, names in sorted(near.items()):
        words = _Words.of(names, kind)
        yield (
            f"{words.subject} not say {words.their} NUMA node; there is one only, so {words.they} near everything, but "
            f"constraints by NUMA node refuse {words.them}: {words.they} in no bundle of one and in no template, ask "
            f"for {words.them} without such a constraint"
        )
    for kind, names in sorted(rootless.items()):
        words = _Words.of(names, kind)
        yield (
            f"{words.subject} not say {words.their} PCIe root, so nothing is known to be below one root with "
            f"{words.them}: {words.they} in no bundle of one"
        )


@dataclass(frozen=True, slots=True)
class _Words:
    """The words for one device or several."""

    subject: str
    their: str
    them: str
    they: str

    @classmethod
    def of(cls, names: Sequence[str], kind: DeviceKind) -> _Words:
        named = ", ".join(names[:_MOST_NAMED])
        rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        if len(names) == 1:
            return cls(f"1 device of {kind.name} ({named}) does", "its", "it", "it is")
        return cls(f"{len(names)} devices of {kind.name} ({named}{rest}) do", "their", "them", "they are")


def _on_pci(device: BundledDevice) -> bool:
    return any(name.rpartition("/")[2] == _PCI_ADDRESS for name in device.device.attributes)
