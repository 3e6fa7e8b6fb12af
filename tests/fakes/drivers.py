"""Fakes with behavior that several tests share."""

import contextlib
import copy
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dranode.api.documents import decode, encode
from dranode.api.errors import ClaimError
from dranode.api.resource import Device, ResourceClaim
from dranode.cdi.spec import ContainerEdits
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Config, Grant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.hooks import Configures
from dranode.driver.claims.plugin import Inventory, Plugin


class Lamps(Plugin):
    """A driver of lamps: each device is one lamp; a configuration may set its colour."""

    driver = "lamps.example.com"

    def __init__(self, count: int = 4) -> None:
        self.count = count

    def discover(self) -> Inventory:
        return Inventory(devices=tuple(Device(name=f"lamp-{index}") for index in range(self.count)))

    def parse_config(self, config: Config) -> str:
        match config.parameters:
            case {"colour": str(colour)}:
                return colour
        raise ClaimError(f"{config.path}: a lamp's configuration is a colour, not {config.parameters!r}")

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        del held, inventory
        return ClaimGrant(
            tuple(
                Grant.of(
                    each.result,
                    edits=ContainerEdits(
                        env=(
                            f"LAMP={each.result.device}",
                            *(f"COLOR={config.parameters}" for config in each.configs[-1:]),
                        )
                    ),
                )
                for each in claim.results
            )
        )


@dataclass
class Board:
    """The hardware of `WiredLamps`: which lamps are on, and every operation so far."""

    lit: set[str] = field(default_factory=set)
    actions: list[str] = field(default_factory=list)


class WiredLamps(Lamps, Configures):
    """Lamps that must be switched on and off."""

    driver = "wired.example.com"

    def __init__(self, board: Board, count: int = 4) -> None:
        super().__init__(count)
        self.board = board

    def configures(self, grants: tuple[Grant, ...]) -> bool:
        return bool(grants)

    def configure(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        self.board.actions.append(f"configure {claim.name}")
        self.board.lit |= {grant.device for grant in grants}

    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        self.board.actions.append(f"restore {claim.name}")
        self.board.lit -= {grant.device for grant in grants}


def allocated_claim(
    name: str,
    driver: str,
    devices: Mapping[str, str] | Iterable[str],
    *,
    uid: str | None = None,
    config: Iterable[Mapping[str, Any]] = (),
    **result: Any,
) -> ResourceClaim:
    """A claim in namespace `default` with allocated devices (request -> device, or devices for request `r`)."""
    pairs = devices.items() if isinstance(devices, Mapping) else [("r", device) for device in devices]
    results = [
        {"request": request, "driver": driver, "pool": "node", "device": device, **copy.deepcopy(result)}
        for request, device in pairs
    ]
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": name, "uid": uid or str(uuid.uuid5(uuid.NAMESPACE_DNS, name))},
            "status": {
                "allocation": {"devices": {"results": results, "config": list(config)}},
                "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-uid-{name}"}],
            },
        },
    )


def reference(claim: ResourceClaim) -> ClaimRef:
    """The claim's identity as kubelet sends it."""
    return ClaimRef.of(claim)


def plain(claim: ResourceClaim) -> Any:
    """The claim as a plain document."""
    return encode(claim)


def damage_rows(folder: Path) -> None:
    """Make every row of the ledger in `folder/data` fail its checksum, and empty its copy."""
    with contextlib.closing(sqlite3.connect(folder / "data" / "ledger.db")) as db, db:
        db.execute("UPDATE claims SET checksum = 0")
    lose_copy(folder)


def lose_copy(folder: Path) -> None:
    """Remove the copy of the ledger in `folder/data`."""
    (folder / "data" / "ledger.db-copy").unlink()


def damage_ledger(folder: Path) -> None:
    """Overwrite the whole ledger in `folder/data`."""
    for path in (folder / "data").glob("ledger.db*"):
        path.write_bytes(b"garbage " * 1000)


DAMAGES: Final[tuple[Callable[[Path], None], ...]] = (damage_rows, damage_ledger)
