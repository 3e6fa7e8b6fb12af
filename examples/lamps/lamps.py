"""A complete node driver: lamps on a wall, a folder for each, found below `sys/class/lamps`."""

from __future__ import annotations

from collections.abc import Mapping

from dranode.cdi.spec import ContainerEdits
from dranode.driver.core.api.errors import ClaimError
from dranode.driver.core.api.resource import Device, DeviceAttribute
from dranode.driver.core.claims.configs import Config
from dranode.driver.core.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.core.claims.held import Held
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.machine.root import Root, read_text

LAMPS = "sys/class/lamps"


class Lamps(Plugin):
    """Publishes every lamp with its colour; a claim gets `LAMP=<name>` and may ask for a brightness."""

    driver = "lamps.example.com"

    def __init__(self, root: Root) -> None:
        """Find lamps below `root`."""
        self._root = root

    def discover(self) -> Inventory:
        """One device a lamp."""
        names = self._root.listdir(LAMPS) if self._root.exists(LAMPS) else []
        return Inventory(tuple(Device(name=name, attributes=self._attributes(name)) for name in names))

    def _attributes(self, name: str) -> Mapping[str, DeviceAttribute]:
        return {"colour": DeviceAttribute(string=read_text(self._root, f"{LAMPS}/{name}/colour"))}

    def parse_config(self, config: Config) -> str:
        """`{"brightness": "dim"}` or `{"brightness": "bright"}`."""
        if config.parameters not in ({"brightness": "dim"}, {"brightness": "bright"}):
            raise ClaimError(f'{config.path}: brightness is "dim" or "bright", not {config.parameters!r}')
        return str(config.parameters["brightness"])

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        """Every container with the request learns its lamp."""
        grants = []
        for each in claim.results:
            brightness = [f"LAMP_BRIGHTNESS={config.parameters}" for config in each.configs[-1:]]
            env = (f"LAMP={each.result.device}", *brightness)
            grants.append(Grant.of(each.result, edits=ContainerEdits(env=env)))
        return ClaimGrant(tuple(grants))


def plugin(root: Root, options: Mapping[str, object]) -> Plugin:
    """What the entry point `lamps` of the group `dranode.plugins` names."""
    return Lamps(root)
