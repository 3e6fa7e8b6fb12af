"""A folder in place of a cluster: claims are read from it, and slices are written to it with the same plan."""

import random
import uuid
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceClaim, ResourceSlice
from dranode.driver.claims.events import Occurrence
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Inventory
from dranode.driver.local.store import Store
from dranode.driver.node.node import NodeClaims
from dranode.driver.slices.desired import desired_slices
from dranode.driver.slices.plan import CreateSlice, DeleteSlice, PublisherStatus, UpdateSlice, plan

# The API server's alphabet for generated names, which has no vowels, so that they form no words (apimachinery,
# util/rand).
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


class FolderCluster:
    """The cluster of one node. Its folder has no place for status and Events, so these are only in the log.

    Attributes:
        store: the folder.
        node_name: the node.
    """

    def __init__(self, store: Store, node_name: str) -> None:
        self.store, self.node_name = store, node_name
        # With a fixed seed, so that a run can be repeated.
        self._random = random.Random(0)  # noqa: S311 - names, not secrets
        self._statuses: dict[str, PublisherStatus] = {}

    def publish(self, driver: str, inventory: Inventory) -> None:
        """Make the slices in the folder those of the driver's inventory.

        Raises:
            DranodeError: the store cannot be written.
        """
        status = self.status(driver)
        desired = desired_slices(driver, self.node_name, inventory)
        for change in plan(desired, self.store.list(ResourceSlice)):
            match change:
                case DeleteSlice(name=name):
                    status = replace(status, deleted=status.deleted + 1)
                    self.store.remove(ResourceSlice, "", name)
                case UpdateSlice(slice=changed):
                    status = replace(status, updated=status.updated + 1)
                    self.store.put(changed)
                case CreateSlice(slice=new):
                    status = replace(status, created=status.created + 1)
                    # `plan` gives new slices only a `generateName`; the API server would complete it.
                    suffix = "".join(self._random.choices(_ALPHABET, k=5))
                    name = f"{new.metadata.generate_name}{suffix}"
                    metadata = msgspec.structs.replace(new.metadata, name=name, uid=str(uuid.uuid4()))
                    self.store.put(msgspec.structs.replace(new, metadata=metadata))
        self._statuses[driver] = replace(status, published=True)

    def status(self, driver: str) -> PublisherStatus:
        """Return the state of the driver's slices."""
        return self._statuses.get(driver, PublisherStatus())

    def pause(self, driver: str) -> None:
        """Note that another instance publishes the driver's slices until the next `publish`."""
        self._statuses[driver] = replace(self.status(driver), published=False)

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Return each claim as it is now, or the error of reading it."""
        return self.store.get(refs)

    def notify(self, driver: str, occurrence: Occurrence) -> None:
        """Do nothing: the occurrence is in the log already."""

    def reporter(self, node: NodeClaims) -> None:
        """Report nothing: only kubelet gets answers."""
