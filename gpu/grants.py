"""Which GPUs a claim is given and how: a decision on values.

A `Grant` that is recorded says what was meant: its `state` is an `Intent`, its edits are the variables that follow from
the claim. Device nodes, group ids and libraries are the live machine's to tell: `dranode.gpu.edits` adds them just
before the CDI spec is written, on every Prepare, and they are never stored. Minors change from boot to boot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dranode.cdi.spec import ContainerEdits
from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.errors import ClaimConflictError, ClaimError
from dranode.driver.core.api.names import named_value
from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant, Grant
from dranode.driver.core.claims.held import ClaimRef, Held
from dranode.gpu.config import GPUMode, Settings, Strategy, Visibility, settings
from dranode.gpu.environment import GPUMemory, environment
from dranode.gpu.inventory import GPU, GPUInventory, GPUKind


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """A PCI function and where it goes after a virtual machine had it.

    Attributes:
        address: the function.
        driver: its driver; empty if it was bound to none, None if only the kernel knows.
    """

    address: str
    driver: str | None


class Intent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a grant means: `Grant.state` as a value.

    Attributes:
        address: the GPU's PCI address.
        vendor: `nvidia`, `amd`, `intel` or a PCI vendor.
        mode: which device nodes come with it.
        partition: which part of the GPU; None is all of it.
        homes: the functions that `vfio` takes from their drivers.
    """

    address: str
    vendor: str
    mode: GPUMode = GPUMode.COMPUTE
    partition: int | None = None
    homes: tuple[Home, ...] = ()

    @classmethod
    def of(cls, grant: Grant) -> Intent | None:
        """The intent of a grant on record; None in a grant that was recovered and has none."""
        return None if grant.state is None else decode(cls, grant.state)


@dataclass(frozen=True, slots=True)
class _Given:
    """One allocation result with its GPU and what its configurations come to."""

    allocated: AllocatedResult
    gpu: GPU
    settings: Settings

    @property
    def request(self) -> str:
        return self.allocated.result.request

    @property
    def where(self) -> str:
        return f'request "{self.request}" with device "{self.gpu.name}"'

    @property
    def memory(self) -> Quantity | None:
        """The bytes that the grant may use, if there is a limit: the configured one, else what the share was given."""
        return self.settings.memory_limit or consumed(self.allocated, "memory")


def grant_gpus(claim: AllocatedClaim, held: Held, inventory: GPUInventory) -> ClaimGrant:
    """Give the claim its GPUs; devices are in the inventory, the framework has seen to that.

    Raises:
        ClaimConflictError: another claim holds the GPU of which this is a part, or parts of this GPU.
        ClaimError: the configurations ask for what the GPU cannot do.
    """
    given = [_Given(each, inventory.by_name[each.result.device], settings(each.configs)) for each in claim.results]
    for one in given:
        _check_sharing(claim.ref, one)
        _check_mode(claim.ref, one, inventory)
        if not one.allocated.result.admin_access:
            _check_family(claim.ref, one, held, inventory)
    _check_parts(claim.ref, given, inventory)
    _check_visibility(claim.ref, given)
    return ClaimGrant(grants=tuple(_grant(one, given) for one in given))


def consumed(allocated: AllocatedResult, capacity: str) -> Quantity | None:
    """How much of a capacity the share was given; its name may stand with the driver's domain or without."""
    return named_value(allocated.result.consumed_capacity, capacity, allocated.result.driver)


def _grant(one: _Given, given: Sequence[_Given]) -> Grant:
    result = one.allocated.result
    admin = bool(result.admin_access)
    takes = one.settings.mode is GPUMode.VFIO and not admin
    intent = Intent(
        address=one.gpu.address,
        vendor=one.gpu.vendor,
        mode=one.settings.mode,
        partition=one.gpu.partition,
        homes=_homes(one.gpu) if takes else (),
    )
    peers = tuple(GPUMemory(each.gpu, each.memory) for each in given if each.request == one.request)
    return Grant(
        request=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        admin=admin,
        edits=ContainerEdits(env=environment(GPUMemory(one.gpu, one.memory), peers, one.settings, admin=admin)),
        state=msgspec.to_builtins(intent),
    )


def _homes(gpu: GPU) -> tuple[Home, ...]:
    """Where the functions go back to: nowhere if an administrator keeps them on `vfio-pci`."""
    if gpu.pinned and gpu.functions[0].passthrough:
        return ()
    return tuple(
        Home(address=function.address, driver=None if function.passthrough else function.driver or "")
        for function in gpu.functions
    )


def _check_sharing(claim: ClaimRef, one: _Given) -> None:
    share = one.allocated.result.share_id is not None
    if share and one.settings.strategy is Strategy.EXCLUSIVE:
        raise ClaimError(
            f"{one.where} of claim {claim} is to be exclusive, but the node offers shares of its GPUs; "
            "ask for a node with --gpu-sharing exclusive, or leave sharing.strategy out"
        )
    limit = one.settings.memory_limit
    if limit is None:
        return
    if one.gpu.vendor != "nvidia":
        raise ClaimError(
            f"{one.where} of claim {claim} has sharing.memoryLimit {limit}, but {one.gpu.vendor} GPUs have no variable "
            "that would keep it; leave it out"
        )
    ceiling = consumed(one.allocated, "memory") or (Quantity(one.gpu.memory) if one.gpu.memory is not None else None)
    if ceiling is not None and limit > ceiling:
        raise ClaimError(
            f"{one.where} of claim {claim} has sharing.memoryLimit {limit}, more than the {ceiling} that it was "
            "allocated; lower the limit or request more memory"
        )


def _check_mode(claim: ClaimRef, one: _Given, inventory: GPUInventory) -> None:
    if one.settings.mode is not GPUMode.VFIO:
        return
    obstacle = None
    if one.allocated.result.share_id is not None:
        obstacle = "is a share, and a virtual machine takes a GPU whole"
    elif one.gpu.kind is GPUKind.PARTITION:
        obstacle = "is a partition, and a virtual machine takes a PCI function whole"
    elif any(part.kind is GPUKind.VF for part in inventory.children.get(one.gpu.name, ())):
        obstacle = "has virtual functions, which would go with its driver"
    if obstacle is not None:
        raise ClaimError(f"{one.where} of claim {claim} has mode vfio but {obstacle}; choose another mode or device")


def _check_family(claim: ClaimRef, one: _Given, held: Held, inventory: GPUInventory) -> None:
    """The scheduler's counters keep a GPU and its parts apart; this is the guard for when they were bypassed."""
    for relative in sorted(inventory.family(one.gpu.name)):
        holders = held.device_holders(relative)
        if holders:
            raise ClaimConflictError(
                f'claim {claim} was allocated device "{one.gpu.name}", but claim {" and ".join(map(str, holders))} '
                f'holds "{relative}" of the same GPU; it can be prepared once that one is unprepared',
                frozenset(holder.uid for holder in holders),
            )


def _check_parts(claim: ClaimRef, given: Sequence[_Given], inventory: GPUInventory) -> None:
    mine = {one.gpu.name for one in given if not one.allocated.result.admin_access}
    for name in sorted(mine):
        both = sorted(inventory.family(name) & mine)
        if both:
            raise ClaimError(
                f'claim {claim} was allocated "{name}" and "{both[0]}", which are the same silicon; '
                "delete the claim so that it is allocated anew"
            )


def _check_visibility(claim: ClaimRef, given: Sequence[_Given]) -> None:
    """One list variable per vendor in a container: with GPUs of two requests it would name those of only one."""
    for vendor in sorted({one.gpu.vendor for one in given if one.settings.visibility is Visibility.VENDOR}):
        requests = sorted({one.request for one in given if one.gpu.vendor == vendor})
        if len(requests) > 1:
            raise ClaimError(
                f"claim {claim} has visibility vendor and {vendor} GPUs in requests {' and '.join(requests)}, but a "
                "container has room for the list of one request; use one request or visibility none"
            )
