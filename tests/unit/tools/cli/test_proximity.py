"""What is between two PCI devices, in the words of nvidia-smi."""

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.machine.pci import PCIFunction
from dranode.tools.cli.topology import MEANINGS, Proximity, proximity

ROOT = "pci0000:16"
UP = "0000:17:00.0"


def device(address: str, *bridges: str, numa: int | None = 0) -> PCIFunction:
    return PCIFunction(address, bridges, numa, CPUSet(), (None, None), (None, None))


@pytest.mark.parametrize(
    ("one", "other", "between"),
    [
        (device("a", ROOT, "p"), device("a", ROOT, "p"), Proximity.SELF),
        (device("a.0", ROOT, "p"), device("a.1", ROOT, "p"), Proximity.SWITCH),
        (device("a", ROOT, "p", UP, "d0"), device("b", ROOT, "p", UP, "d1"), Proximity.SWITCH),
        (device("a", ROOT, "p", UP, "d0"), device("b", ROOT, "p", UP, "d1", "u2", "d2"), Proximity.SWITCHES),
        (device("a", ROOT, "p0"), device("b", ROOT, "p1"), Proximity.ROOT),
        (device("a", ROOT), device("b", ROOT), Proximity.ROOT),
        (device("a", ROOT, "p0"), device("b", "pci0000:30", "p0"), Proximity.NODE),
        (device("a", ROOT, "p0"), device("b", "pci0000:30", "p0", numa=1), Proximity.SYSTEM),
        (device("a"), device("b"), Proximity.WITHIN_NODE),
        (device("a"), device("b", ROOT, "p"), Proximity.WITHIN_NODE),
        (device("a"), device("b", numa=1), Proximity.SYSTEM),
        (device("a", numa=None), device("b", ROOT, "p"), Proximity.UNKNOWN),
        (device("a", ROOT, "p0", numa=None), device("b", ROOT, "p1", numa=None), Proximity.ROOT),
    ],
)
def test_what_is_between_two_devices(one: PCIFunction, other: PCIFunction, between: Proximity) -> None:
    assert (proximity(one, other), proximity(other, one)) == (between, between)


def test_every_word_is_explained_and_sorted_from_near_to_far() -> None:
    assert list(MEANINGS) == list(Proximity)
