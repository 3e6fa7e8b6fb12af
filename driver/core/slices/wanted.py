"""What a driver wants published, given what the API server was found to drop: pure.

Fields of feature gates that are off disappear without a word. What is stored is wanted from then on, since wanting
more would update for ever. One loss changes what a device is: without `allowMultipleAllocations` a group of CPUs would
be given whole to whoever asks for one of them. Such devices are withdrawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from dranode.driver.core.api.resource import ResourceSliceSpec
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.slices.desired import desired_slices

CONSUMABLE: Final = "DRAConsumableCapacity"


@dataclass(frozen=True, slots=True)
class DesiredSlices:
    """The slices that a driver wants on its node.

    Attributes:
        driver: whose they are.
        node_name: the node.
        inventory: what the driver found.
        dropped: the feature gates whose fields the server drops.
        stored: what the server made of the slice of an index, where that is less than was sent.
    """

    driver: str
    node_name: str
    inventory: Inventory
    dropped: frozenset[str] = frozenset()
    stored: Mapping[int, ResourceSliceSpec] = field(default_factory=dict)

    @property
    def withdrawn(self) -> bool:
        """Whether devices are held back because the server cannot keep them shared."""
        return CONSUMABLE in self.dropped and any(map(_shared, self.inventory.devices))

    @property
    def problem(self) -> str | None:
        """Why not all is published; None if it is."""
        if not self.withdrawn:
            return None
        count = sum(map(_shared, self.inventory.devices))
        return (
            f"the API server drops allowMultipleAllocations, so the devices of {self.driver} that several claims share "
            f"are withdrawn ({count}); turn the feature gate {CONSUMABLE} on in API server and scheduler (on from "
            "Kubernetes 1.36), or have the driver publish devices that are not shared (dranode doctor names the option)"
        )

    def specs(self) -> tuple[ResourceSliceSpec, ...]:
        """The slices to publish.

        Raises:
            UsageError: the driver's or the node's name is not one for the API.
        """
        inventory = self.inventory
        if self.withdrawn:
            inventory = replace(inventory, devices=tuple(one for one in inventory.devices if not _shared(one)))
        specs = desired_slices(self.driver, self.node_name, inventory)
        return tuple(
            msgspec.structs.replace(self.stored.get(index, spec), pool=spec.pool) for index, spec in enumerate(specs)
        )

    def after_drop(self, index: int, returned: ResourceSliceSpec, gates: tuple[str, ...]) -> DesiredSlices:
        """What is wanted once the server has dropped fields of these gates from slice number `index`."""
        wanted = replace(self, dropped=self.dropped | frozenset(gates))
        # Other devices make other slices: what is known of their indices does not apply to these.
        return replace(wanted, stored={} if wanted.withdrawn else {**self.stored, index: returned})

    def again(self) -> DesiredSlices:
        """The same without what is known of the server: its feature gates may be other ones now."""
        return DesiredSlices(self.driver, self.node_name, self.inventory)

    def of(self, inventory: Inventory) -> DesiredSlices:
        """The same for another inventory. What must not be published for a moment stays held back."""
        return DesiredSlices(self.driver, self.node_name, inventory, self.dropped & {CONSUMABLE})


def _shared(device: object) -> bool:
    return bool(getattr(device, "allow_multiple_allocations", False))
