"""The examples of KEP-4816 on nodes with different GPUs: which alternative is taken, and what its driver is told."""

from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import DeviceClass, Node, ObjectMeta, ResourceClaim, ResourceSlice
from dranode.driver.machine.yaml_files import load_documents
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.requests import Outcome
from dranode.sim.allocator.state import Allocated

EXAMPLES = Path(__file__).parents[3] / "vectors" / "kep-4816.yaml"
ACME, NIC = "gpu.acme.example.com", "nic.example.com"


def gpu(name: str, kind: str, root: str) -> dict[str, Any]:
    return {"name": name, "attributes": {"kind": {"string": kind}, "dra.k8s.io/pcieRoot": {"string": root}}}


def outcome(claim: str, *gpus: dict[str, Any]) -> Outcome:
    nics = [{"name": "eth0", "attributes": {"dra.k8s.io/pcieRoot": {"string": "pci0"}}}]
    slices = [
        {
            "metadata": {"name": driver},
            "spec": {
                "driver": driver,
                "nodeName": "n",
                "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
        for driver, devices in ((ACME, list(gpus)), (NIC, nics))
    ]
    acme = f'device.driver == "{ACME}" && device.attributes["{ACME}"].kind'
    expressions = {"rdma-nic": f'device.driver == "{NIC}"'}
    expressions |= {f"{kind}-gpu": f'{acme} == "{kind}"' for kind in ("big", "mid", "small")}
    classes = [
        decode(DeviceClass, {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
        for name, expression in expressions.items()
    ]
    allocator = Allocator([decode(ResourceSlice, one) for one in slices], classes, Features(), new_share_id=lambda: "s")
    wanted = next(source for source in load_documents([EXAMPLES]) if source.name == claim)
    node = Node(metadata=ObjectMeta(name="n"))
    (made,) = allocator.allocate([decode(ResourceClaim, wanted.document)], node, Allocated())
    return made


def taken(made: Outcome) -> list[tuple[str, str]]:
    assert made.allocation is not None, made.error
    return [(result.request, result.device) for result in made.allocation.devices.results]


@pytest.mark.parametrize("claim", ["list-v1beta1", "list-v1beta2"])
def test_the_best_alternative_beside_the_nic_is_taken(claim: str) -> None:
    aligned = [gpu("b", "big", "pci1"), gpu("m", "mid", "pci0"), gpu("s", "small", "pci0")]
    assert taken(outcome(claim, *aligned)) == [("nic", "eth0"), ("gpu/mid-gpu", "m")]
    assert taken(outcome(claim, gpu("b", "big", "pci0"), *aligned[1:])) == [("nic", "eth0"), ("gpu/big-gpu", "b")]


@pytest.mark.parametrize("claim", ["list-v1beta1", "list-v1beta2"])
def test_the_configuration_of_an_alternative_comes_with_that_alternative_alone(claim: str) -> None:
    small = outcome(claim, gpu("s0", "small", "pci0"), gpu("s1", "small", "pci1"), gpu("s2", "small", "pci0"))
    assert taken(small) == [("nic", "eth0"), ("gpu/small-gpu", "s0"), ("gpu/small-gpu", "s2")]
    assert small.allocation is not None
    (config,) = small.allocation.devices.config
    assert (config.source, config.requests) == ("FromClaim", ("gpu/small-gpu",))
    assert config.opaque is not None
    assert config.opaque.parameters["mode"] == "multipleGPUs"
    big = outcome(claim, gpu("b", "big", "pci0"))
    assert big.allocation is not None
    assert not big.allocation.devices.config


def test_an_exact_request_of_v1beta2_is_an_exact_request() -> None:
    assert taken(outcome("exactly-v1beta2", gpu("b", "big", "pci0"))) == [("gpu", "b")]


def test_no_alternative_beside_the_nic_is_reported_as_the_constraint() -> None:
    made = outcome("list-v1beta2", gpu("b", "big", "pci1"))
    assert made.allocation is None
    assert "no value of dra.k8s.io/pcieRoot" in str(made.error)
