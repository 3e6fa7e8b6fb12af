"""PCI AER counters: `<function>/aer_dev_fatal` and `aer_dev_nonfatal`, a `<name> <count>` line each and a total."""

from __future__ import annotations

from dranode.api.errors import MachineError
from dranode.driver.machine.pci import PCI_DEVICES
from dranode.driver.machine.root import Root, attribute_if_there, integer
from dranode.gpu.health import AERCounts


def aer_counts(root: Root, address: str) -> AERCounts | None:
    """The function's totals; None if it has no AER.

    Raises:
        MachineError: it has, and its counters cannot be read.
    """
    fatal = _total(root, address, "aer_dev_fatal", "TOTAL_ERR_FATAL")
    nonfatal = _total(root, address, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL")
    return None if fatal is None or nonfatal is None else AERCounts(fatal, nonfatal)


def _total(root: Root, address: str, name: str, key: str) -> int | None:
    path = f"{PCI_DEVICES}/{address}/{name}"
    text = attribute_if_there(root, path)
    if text is None:
        return None
    for line in text.splitlines():
        label, _, count = line.partition(" ")
        if label == key and (errors := integer(count, 10)) is not None and errors >= 0:
            return errors
    raise MachineError(f"/{path} cannot be read: it has no {key}")
