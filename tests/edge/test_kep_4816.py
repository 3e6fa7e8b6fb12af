"""KEP-4816's examples (prioritized list) through the whole local run, with two small third-party drivers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dranode.api.errors import ClaimError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import Device, DeviceAttribute
from dranode.cdi.spec import ContainerEdits
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Config, Grant
from dranode.driver.claims.held import Held
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.machine.yaml_files import load_documents
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.workload import read_workload
from dranode.sim.local.run import ClaimResult, local_run

VECTOR = Path(__file__).parents[1] / "vectors" / "kep-4816.yaml"
PROGRAM = Path(sys.executable).with_name("dranode")


class Acme(Plugin):
    """GPUs of three sizes; a configuration tells a small one that it is one of several."""

    driver = "gpu.acme.example.com"

    def __init__(self, *sizes: str) -> None:
        self.sizes = sizes

    def discover(self) -> Inventory:
        return Inventory(tuple(self._device(number, size) for number, size in enumerate(self.sizes)))

    @staticmethod
    def _device(number: int, size: str) -> Device:
        root = DeviceAttribute(string=f"pci0000:{number % 2:02d}")
        return Device(
            name=f"gpu-{number}", attributes={"size": DeviceAttribute(string=size), "dra.k8s.io/pcieRoot": root}
        )

    def parse_config(self, config: Config) -> str:
        if config.parameters.get("kind") != "GPUConfig":
            raise ClaimError(f"{config.path}: not a GPUConfig")
        return str(config.parameters["mode"])

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        del held, inventory
        return ClaimGrant(
            tuple(
                Grant.of(
                    each.result,
                    edits=ContainerEdits(
                        env=(f"DEVICE={each.result.device}", *(f"MODE={c.parameters}" for c in each.configs))
                    ),
                )
                for each in claim.results
            )
        )


class NICs(Acme):
    """Network cards, one for each PCIe root."""

    driver = "nic.acme.example.com"


def device_class(name: str, expression: str) -> SourceDocument:
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    return SourceDocument("classes", 0, document)


CLASSES = [
    device_class("rdma-nic", 'device.driver == "nic.acme.example.com"'),
    *(
        device_class(
            f"{size}-gpu",
            f'device.driver == "gpu.acme.example.com" && device.attributes["gpu.acme.example.com"].size == "{size}"',
        )
        for size in ("big", "mid", "small")
    ),
]


def run(name: str, *sizes: str) -> tuple[ClaimResult, list[dict[str, Any]]]:
    documents = [
        source for source in load_documents([VECTOR]) if source.kind == "ResourceClaim" and source.name == name
    ]
    workload = read_workload([*CLASSES, *documents], Features())
    with local_run([Acme(*sizes), NICs("nic", "nic")], "node", None, Features(), lambda _: None) as node:
        (result,) = node.run(workload, lambda _: None)
        specs = [json.loads(Path(file).read_text()) for file in result.cdi_files]
        assert node.unprepare() == ()
    return result, specs


def requests(result: ClaimResult) -> list[str]:
    assert result.allocation is not None, result.error
    return [one.request for one in result.allocation.devices.results]


@pytest.mark.parametrize("name", ["list-v1beta2", "list-v1beta1"])
@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        (("big", "small", "mid"), ["nic", "gpu/big-gpu"]),
        # The scheduler tries every alternative with the first card before it tries the second card.
        (("small", "big", "mid"), ["nic", "gpu/mid-gpu"]),
        (("small", "small", "mid"), ["nic", "gpu/mid-gpu"]),
        (("small", "small", "small"), ["nic", "gpu/small-gpu", "gpu/small-gpu"]),
    ],
)
def test_the_first_alternative_that_fits_the_cards_root_is_prepared(
    name: str, sizes: tuple[str, ...], taken: list[str]
) -> None:
    result, _ = run(name, *sizes)
    assert result.error is None
    assert requests(result) == taken
    assert {device.request for device in result.devices} == {"nic", "gpu"}


def test_a_configuration_applies_only_to_its_alternative() -> None:
    small, small_specs = run("list-v1beta2", "small", "mid-size", "small")
    big, big_specs = run("list-v1beta2", "big")
    assert requests(small)[1] == "gpu/small-gpu"
    assert requests(big)[1] == "gpu/big-gpu"

    def variables(specs: list[dict[str, Any]]) -> list[str]:
        return [
            entry for spec in specs for device in spec["devices"] for entry in device["containerEdits"].get("env", ())
        ]

    assert variables(small_specs).count("MODE=multipleGPUs") == 2
    assert not any(entry.startswith("MODE") for entry in variables(big_specs))


def test_an_alternative_that_breaks_the_constraint_is_skipped() -> None:
    # Two small GPUs on different roots cannot both be on the card's root.
    result, _ = run("list-v1beta2", "small", "small")
    assert result.allocation is None
    assert result.error


def test_a_request_for_exactly_a_big_gpu_gets_one() -> None:
    result, _ = run("exactly-v1beta2", "mid", "big")
    assert [device.device for device in result.devices] == ["gpu-1"]


def test_the_machine_grouping_proposal_gets_its_exact_cpus(tmp_path: Path) -> None:
    documents = VECTOR.read_text().split("\n---\n")
    (tmp_path / "claim.yaml").write_text(next(text for text in documents if "claim-cpu-10" in text))
    done = subprocess.run(
        [PROGRAM, "local", "--machine", "cores=16", "--group-by", "machine", "claim.yaml", "-o", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (claim,) = json.loads(done.stdout)["claims"]
    assert claim["cpus"] == "2-11"
