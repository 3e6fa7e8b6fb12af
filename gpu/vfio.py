"""Mode `vfio`: binds a GPU to `vfio-pci` and back to its kernel driver (Documentation/driver-api/vfio.rst).

Both directions check the present driver of each function before they write. So either may be interrupted after any
write and be repeated, or be followed by the other. This module sets `driver_override` only while it binds a function,
and clears it afterwards; any other value was set by an administrator and is not changed. Neither is a function that was
on `vfio-pci` when the claim was granted.
"""

import errno
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextvars import copy_context
from threading import Thread
from typing import Final

from dranode.api.errors import ClaimError
from dranode.driver.claims.held import ClaimRef
from dranode.driver.machine.pci import PCI_DEVICES, PCI_DRIVERS
from dranode.driver.machine.root import Root, all_names, attribute_if_there, link_name, number, read_attribute
from dranode.gpu.grants import Home
from dranode.gpu.inventory import Function
from dranode.gpu.sysfs import pci_function

VFIO: Final = "vfio-pci"
_BRIDGE: Final = 0x06  # PCI base class; bridges stay with their driver
# The kernel waits as long as a program has a function open, and nothing can end its wait. Until Linux 7 it also keeps
# those waiting that read `driver_override` meanwhile.
_SECONDS: Final = 15.0
_STEPS: Final[dict[str, Future[None]]] = {}

log = logging.getLogger(__name__)


def take(root: Root, claim: ClaimRef, homes: Iterable[Home]) -> None:
    """Bind the functions to `vfio-pci`; functions that are bound to it or to a variant of it stay.

    Raises:
        ClaimError: the GPU has no IOMMU group or shares it with a function in use, `vfio-pci` is not loaded, an
            administrator has chosen another driver for a function, a program has one open, or the kernel refuses.
        MachineError: the functions of the group, or the driver of one, cannot be read.
    """
    if homes := tuple(homes):
        _in_turn(homes[0].address, _take, root, claim, homes)


def _take(root: Root, claim: ClaimRef, homes: tuple[Home, ...]) -> None:
    moved = any(not pci_function(root, home.address).passthrough for home in homes)
    if moved and not root.exists(f"{PCI_DRIVERS}/{VFIO}"):
        raise ClaimError(f"claim {claim} needs {VFIO} for GPU {homes[0].address}; run `modprobe {VFIO}` on the node")
    _check_group(root, claim, homes)
    _check_overrides(root, claim, homes)
    for home in homes:
        function = pci_function(root, home.address)
        if function.passthrough and _stays(home):
            continue
        try:
            if not function.passthrough:
                root.write(f"{PCI_DEVICES}/{home.address}/driver_override", VFIO)
                if function.driver is not None:
                    root.write(f"{PCI_DRIVERS}/{function.driver}/unbind", home.address)
                root.write(f"{PCI_DRIVERS}/{VFIO}/bind", home.address)
            _clear_override(root, home.address)
        except OSError as error:
            captured = error.errno == errno.EROFS
            advice = "run on the machine itself, or choose another mode" if captured else "see the node's kernel log"
            raise ClaimError(
                f"GPU function {home.address} of claim {claim} cannot be moved from {function.driver or 'no driver'} "
                f"to {VFIO}: {error.strerror}; {advice}"
            ) from error


def give_back(root: Root, homes: Iterable[Home]) -> None:
    """Bind the functions to their earlier drivers. A driver or function that is gone is a warning, not an error.

    Raises:
        ClaimError: the kernel is still unbinding a function, which would have no driver afterwards.
    """
    if homes := tuple(homes):
        _in_turn(homes[0].address, _give_all_back, root, homes)


def _give_all_back(root: Root, homes: tuple[Home, ...]) -> None:
    for home in homes:
        if _stays(home) or not root.exists(f"{PCI_DEVICES}/{home.address}"):
            continue
        try:
            _give_back(root, home)
        except OSError as error:
            log.warning(
                "function=%s driver=%s could not be bound again: %s", home.address, home.driver or "any", error.strerror
            )


def _stays(home: Home) -> bool:
    """Return whether an administrator bound the function for virtual machines, so that it stays as it is."""
    return Function(home.address, home.driver).passthrough


def _give_back(root: Root, home: Home) -> None:
    # It is set until the function is bound, so a process that has ended may have left the kernel unbinding it.
    taken = read_attribute(root, f"{PCI_DEVICES}/{home.address}/driver_override") == VFIO
    function = pci_function(root, home.address)
    if function.driver is not None:
        if not function.passthrough and not taken:
            return
        root.write(f"{PCI_DRIVERS}/{function.driver}/unbind", home.address)
    _clear_override(root, home.address)
    if home.driver is None:
        root.write("sys/bus/pci/drivers_probe", home.address)
    elif home.driver:
        if not root.exists(f"{PCI_DRIVERS}/{home.driver}"):
            raise OSError(errno.ENODEV, f"driver {home.driver} is not loaded")
        root.write(f"{PCI_DRIVERS}/{home.driver}/bind", home.address)


def _in_turn(address: str, step: Callable[..., None], *arguments: object) -> None:
    """Run a step in a thread, after the earlier one on this GPU: the kernel must not hold up other claims.

    Raises:
        ClaimError: the kernel still waits for a program that has the GPU open.
    """
    earlier = _STEPS.get(address)
    if earlier is None or wait((earlier,), _SECONDS).done:
        latest = _STEPS[address] = Future()
        # In the caller's context, so that what it logs has the operation's id.
        call = (_run, latest, step, arguments)
        Thread(target=copy_context().run, args=call, name=f"vfio-{address}", daemon=True).start()
        if wait((latest,), _SECONDS).done:
            latest.result()
            return
    raise ClaimError(
        f"GPU {address} cannot be unbound from its driver because a program still has it open; stop that program, "
        "which may be nvidia-persistenced"
    )


def _run(ended: Future[None], step: Callable[..., None], arguments: tuple[object, ...]) -> None:
    try:
        step(*arguments)
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        ended.set_exception(error)
    else:
        ended.set_result(None)


def _clear_override(root: Root, address: str) -> None:
    if read_attribute(root, f"{PCI_DEVICES}/{address}/driver_override") == VFIO:
        root.write(f"{PCI_DEVICES}/{address}/driver_override", "\n")


def _check_overrides(root: Root, claim: ClaimRef, homes: tuple[Home, ...]) -> None:
    for home in homes:
        override = attribute_if_there(root, f"{PCI_DEVICES}/{home.address}/driver_override")
        if override not in (None, "", "(null)", VFIO) and not pci_function(root, home.address).passthrough:
            raise ClaimError(
                f"claim {claim} cannot have GPU {homes[0].address} in mode vfio: an administrator has set "
                f"driver_override of function {home.address} to {override}; clear it, or choose another mode"
            )


def _check_group(root: Root, claim: ClaimRef, homes: tuple[Home, ...]) -> None:
    own = {home.address for home in homes}
    folder = f"{PCI_DEVICES}/{homes[0].address}/iommu_group"
    members = all_names(root, f"{folder}/devices")
    if not members:
        raise ClaimError(
            f"claim {claim} cannot have GPU {homes[0].address} in mode vfio: it is in no IOMMU group; "
            "turn on the IOMMU (intel_iommu=on, amd_iommu=on)"
        )
    for address in members:
        function = pci_function(root, address)
        bridge = (number(root, f"{PCI_DEVICES}/{address}/class", 16) or 0) >> 16 == _BRIDGE
        if address not in own and not bridge and function.driver is not None and not function.passthrough:
            raise ClaimError(
                f"claim {claim} cannot have GPU {homes[0].address} in mode vfio: function {address} of its IOMMU "
                f"group {link_name(root, folder)} is bound to {function.driver}; unbind it, or use another slot"
            )
