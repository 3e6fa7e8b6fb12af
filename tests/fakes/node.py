"""A driver of lamps on a node, and its folders: `data` with the ledger, `cdi` with the specs."""

import json
from pathlib import Path
from typing import Any

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.cdi.directory import read_spec, spec_files
from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.claims.plugin import Plugin
from dranode.driver.node.node import NodeClaims
from tests.fakes.drivers import Lamps, plain, reference

LAMPS = Lamps.driver


def opened(folder: Path, plugin: Plugin | None = None, **options: Any) -> NodeClaims:
    """A driver with these folders; `Lamps` unless another driver is given."""
    (folder / "data").mkdir(exist_ok=True)
    node = NodeClaims(plugin or Lamps(), folder / "data", folder / "cdi", **options)
    node.open()
    return node


def prepare(node: NodeClaims, *claims: ResourceClaim) -> dict[str, Any]:
    """Prepare claims in one call; returns the devices or the refusal of each by claim name."""
    answers = node.prepare({reference(claim): claim for claim in claims})
    named = {claim.metadata.name: answers[claim.metadata.uid] for claim in claims}
    return {name: answer.devices if isinstance(answer, Prepared) else answer for name, answer in named.items()}


def prepared_before(folder: Path, *claims: ResourceClaim, **options: Any) -> dict[str, Any]:
    """Prepare claims by a driver that has ended since; returns its answers."""
    node = opened(folder, **options)
    answers = prepare(node, *claims)
    node.close()
    return answers


def unprepare(node: NodeClaims, *claims: ResourceClaim) -> dict[str, Refused | None]:
    """Unprepare claims in one call; returns the refusals by UID."""
    return node.unprepare(tuple(map(reference, claims)))


def specs(folder: Path) -> dict[str, Any]:
    """The CDI specs on disk by file name."""
    return {path.name: json.loads(path.read_bytes()) for path in (folder / "cdi").iterdir()}


def given(spec: Any) -> list[list[str]]:
    """The variables that containers get from every CDI device that may be reported to kubelet."""
    return [each["containerEdits"]["env"] for each in spec["devices"] if each["name"].startswith("claim-")]


def spec_of(folder: Path, claim: ResourceClaim) -> Path:
    """The path of a claim's CDI spec."""
    return folder / "cdi" / f"{LAMPS}-claim_claim-{claim.metadata.uid}.json"


def missing_mounts(cdi: Path) -> list[str]:
    """Mounts of CDI specs whose source is missing; a runtime would not start a container with them."""
    edits = (device.container_edits for path in spec_files(cdi) for device in read_spec(path).devices)
    return [mount.host_path for each in edits for mount in each.mounts if not Path(mount.host_path).is_file()]


def in_pool(claim: ResourceClaim, pool: str) -> ResourceClaim:
    """The claim as if it were allocated from another pool."""
    document = plain(claim)
    for result in document["status"]["allocation"]["devices"]["results"]:
        result["pool"] = pool
    return decode(ResourceClaim, document)
