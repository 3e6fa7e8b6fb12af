"""Device metadata as values: what a workload reads, where, and which CDI device mounts it."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dranode.api.errors import DranodeError
from dranode.api.resource import Device, DeviceAttribute
from dranode.cdi.spec import Mount
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.metadata import MAX_ATTRIBUTES, RequestMetadata, device_metadata
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record

DRIVER = "lamps.example.com"
UID = "7f0c1f0e-0000-4000-8000-000000000001"
INVENTORY = Inventory(
    devices=(
        Device(name="lamp-0", attributes={"watts": DeviceAttribute(int_=40), "colour": DeviceAttribute(string="red")}),
        Device(name="lamp-1"),
    )
)


def grant(request: str, device: str, **attributes: DeviceAttribute) -> Grant:
    return Grant(request=request, pool="node", device=device, attributes=attributes)


def record(*grants: Grant, **fields: Any) -> Record:
    return msgspec.structs.replace(Record(uid=UID, namespace="ns", name="c", grants=grants), **fields)


def made(claim: Record) -> tuple[RequestMetadata, ...]:
    return device_metadata(DRIVER, "/data/metadata", claim, INVENTORY)


def documents(file: RequestMetadata) -> Iterator[dict[str, Any]]:
    """The documents of the stream, as Go's `json.Decoder` reads them: one after the other."""
    text, decoder = file.text.decode(), json.JSONDecoder()
    while text:
        document, end = decoder.raw_decode(text)
        yield document
        text = text[end:].lstrip()


def read(file: RequestMetadata) -> dict[str, Any]:
    """What a reader uses: the first document whose version it knows."""
    return next(documents(file))


def test_a_file_has_the_same_content_in_each_known_version_newest_first() -> None:
    (only,) = made(record(grant("r", "lamp-0"), pod_claim_name="lamp"))
    newest, oldest = documents(only)
    assert newest.pop("apiVersion") == "metadata.resource.k8s.io/v1beta1"
    assert oldest.pop("apiVersion") == "metadata.resource.k8s.io/v1alpha1"
    assert newest == oldest


def test_a_file_names_claim_requests_and_devices_with_their_attributes() -> None:
    (only,) = made(record(grant("r", "lamp-0")))
    assert read(only) == {
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "kind": "DeviceMetadata",
        "metadata": {"name": "c", "namespace": "ns", "uid": UID, "generation": 1},
        "requests": [
            {
                "name": "r",
                "devices": [
                    {
                        "driver": DRIVER,
                        "pool": "node",
                        "name": "lamp-0",
                        "attributes": {"watts": {"int": 40}, "colour": {"string": "red"}},
                    }
                ],
            }
        ],
    }
    assert b'\n  "kind": "DeviceMetadata"' in only.text


def test_the_path_in_containers_is_the_one_that_other_drivers_and_readers_use() -> None:
    (only,) = made(record(grant("r", "lamp-0")))
    assert only.file == f"{UID}_r"
    assert only.mount == Mount(
        host_path=f"/data/metadata/{UID}_r",
        container_path=f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/r/{DRIVER}-metadata.json",
        options=("ro", "bind"),
    )


def test_a_single_request_uses_the_claims_device_and_several_use_their_first_results() -> None:
    one = made(record(grant("r/big", "lamp-0"), grant("r/big", "lamp-1")))
    assert [(each.request, each.device) for each in one] == [("r", f"claim-{UID}")]
    several = made(record(grant("r", "lamp-0"), grant("r", "lamp-1"), grant("s", "lamp-2")))
    assert [(each.request, each.device) for each in several] == [("r", f"claim-{UID}-0"), ("s", f"claim-{UID}-2")]


def test_a_claim_from_a_template_is_found_under_its_name_in_the_pod() -> None:
    (only,) = made(record(grant("r", "lamp-0"), name="pod-lamp-x7k2p", pod_claim_name="lamp"))
    assert read(only)["podClaimName"] == "lamp"
    assert only.mount.container_path.endswith("/resourceclaimtemplates/lamp/r/lamps.example.com-metadata.json")
    assert only.mount.host_path == f"/data/metadata/{UID}_r"


def test_a_request_has_one_file_and_names_the_chosen_alternative() -> None:
    first, second = made(record(grant("a/big", "lamp-0"), grant("b", "lamp-1"), grant("a/big", "lamp-1")))
    assert [first.request, second.request] == ["a", "b"]
    (request,) = read(first)["requests"]
    assert request["name"] == "a/big"
    assert [device["name"] for device in request["devices"]] == ["lamp-0", "lamp-1"]
    assert "attributes" not in request["devices"][1]
    assert first.file == f"{UID}_a"


def test_granted_attributes_override_published_ones_and_are_never_left_out() -> None:
    many = {f"a{number}": DeviceAttribute(int_=number) for number in range(MAX_ATTRIBUTES)}
    inventory = Inventory(devices=(Device(name="lamp-0", attributes={**many, "x": DeviceAttribute(int_=1)}),))
    claim = record(grant("r", "lamp-0", x=DeviceAttribute(int_=2), cpuset=DeviceAttribute(string="0-3")))
    (only,) = device_metadata(DRIVER, "/data", claim, inventory)
    told = read(only)["requests"][0]["devices"][0]["attributes"]
    assert (told["x"], told["cpuset"]) == ({"int": 2}, {"string": "0-3"})
    assert len(told) == MAX_ATTRIBUTES


def test_a_removed_device_is_still_named_with_its_granted_attributes() -> None:
    (only,) = made(record(grant("r", "gone", cpuset=DeviceAttribute(string="1"))))
    (device,) = read(only)["requests"][0]["devices"]
    assert (device["name"], device["attributes"]) == ("gone", {"cpuset": {"string": "1"}})


def test_a_claim_without_a_known_name_has_no_metadata() -> None:
    assert made(record(grant("r", "lamp-0"), name="", namespace="")) == ()


@pytest.mark.parametrize("fields", [{"uid": "../a"}, {"name": "a/../../b"}, {"pod_claim_name": ".."}])
def test_a_claim_name_that_leads_to_another_folder_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(DranodeError, match="cannot be part of the path"):
        made(record(grant("r", "lamp-0"), **fields))


def test_a_request_name_that_leads_to_another_folder_is_refused() -> None:
    with pytest.raises(DranodeError, match="cannot be part of the path"):
        made(record(grant("..", "lamp-0")))
