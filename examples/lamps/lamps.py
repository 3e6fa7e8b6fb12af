"""A complete node driver: lamps on a wall, a folder for each, found below `sys/class/lamps`."""

from __future__ import annotations

from collections.abc import Mapping

from dranode.api import Device
from dranode.driver import (
    AllocatedClaim,
    ClaimError,
    ClaimGrant,
    Config,
    ContainerEdits,
    Grant,
    Held,
    Inventory,
    Plugin,
    Root,
    read_text,
)

LAMPS = "sys/class/lamps"


class Lamps(Plugin):
    """Publishes every lamp with its colour; a claim gets `LAMP_<NAME>=<brightness>` for each."""

    driver = "lamps.example.com"

    def __init__(self, root: Root) -> None:
        """Find lamps below `root`."""
        self._root = root

    def discover(self) -> Inventory:
        """One device a lamp."""
        names = self._root.listdir(LAMPS) if self._root.exists(LAMPS) else []
        lamps = {name: {"colour": read_text(self._root, f"{LAMPS}/{name}/colour")} for name in names}
        return Inventory(tuple(Device(name=name, attributes=lamps[name]) for name in lamps))

    def parse_config(self, config: Config) -> str:
        """`{"brightness": "dim"}` or `{"brightness": "bright"}`."""
        if config.parameters not in ({"brightness": "dim"}, {"brightness": "bright"}):
            raise ClaimError(f'{config.path}: brightness is "dim" or "bright", not {config.parameters!r}')
        return str(config.parameters["brightness"])

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        """Every container with the request learns its lamp."""
        grants = []
        for allocated in claim.results:
            brightness = str(allocated.configs[-1].parameters) if allocated.configs else "normal"
            variable = f"LAMP_{allocated.result.device.upper().replace('-', '_')}={brightness}"
            grants.append(Grant.of(allocated.result, edits=ContainerEdits(env=(variable,))))
        return ClaimGrant(tuple(grants))


def plugin(root: Root, options: Mapping[str, object]) -> Plugin:
    """Return what the entry point `lamps` of the group `dranode.plugins` names."""
    return Lamps(root)
