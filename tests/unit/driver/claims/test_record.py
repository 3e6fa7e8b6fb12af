"""What is kept about a claim: its row in the ledger, and the copy of it in a CDI spec."""

import msgspec
import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.documents import decode_json, encode_json
from dranode.api.errors import DocumentError
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.cdi.rules import spec_problems
from dranode.cdi.spec import CDIDevice, ContainerEdits, DeviceNode, Mount, Spec
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import (
    ClaimState,
    Record,
    claim_spec,
    prepared_devices,
    record_in_spec,
    record_of,
    recovered,
)
from dranode.driver.node.ledger import encoded, matches

NODE = DeviceNode(path="/dev/lamp0", type="c", major=1, minor=2)
GIVEN = Record(
    uid="uid-g",
    namespace="default",
    name="g",
    grants=(Grant(request="r", pool="p", device="d", edits=ContainerEdits(env=("LAMP=d",)), state={"lit": True}),),
    edits=ContainerEdits(env=("WALL=ü\u2028",)),
    cpus=CPUSet.parse("0-1"),
    held=CPUSet.parse("0-3"),
)


def test_a_specs_copy_has_the_grants_and_nothing_that_is_read_again() -> None:
    pods = (ResourceClaimConsumerReference(resource="pods", name="pod", uid="pod-uid"),)
    record = msgspec.structs.replace(GIVEN, state=ClaimState.STARTED, pods=pods, pod_claim_name="lamp", fingerprint="f")
    grants = tuple(msgspec.structs.replace(each, edits=ContainerEdits(device_nodes=(NODE,))) for each in record.grants)
    spec = claim_spec("lamps.example.com/claim", msgspec.structs.replace(record, grants=grants), {}, record)
    assert record_in_spec("uid-g", spec) == GIVEN
    assert spec.cdi_version == "0.3.0"
    assert list(spec_problems(spec)) == []
    told = {name for device in prepared_devices(spec.kind, record, ()) for name in device.cdi}
    hidden = [device for device in spec.devices if f"{spec.kind}={device.name}" not in told]
    assert [device.name for device in hidden] == ["record-uid-g"]


def test_a_mount_is_added_to_a_devices_edits_or_gets_its_own_device() -> None:
    record = msgspec.structs.replace(GIVEN, grants=(*GIVEN.grants, Grant(request="s", pool="p", device="e")))
    mounts = {name: Mount(host_path=f"/host/{name}", container_path="/c") for name in ("claim-uid-g", "claim-uid-g-1")}
    spec = claim_spec("lamps.example.com/claim", record, mounts)
    edits = {device.name: device.container_edits for device in spec.devices}
    assert edits == {
        "claim-uid-g": ContainerEdits(env=("WALL=ü\u2028",), mounts=(mounts["claim-uid-g"],)),
        "claim-uid-g-0": ContainerEdits(env=("LAMP=d",)),
        "claim-uid-g-1": ContainerEdits(mounts=(mounts["claim-uid-g-1"],)),
    }
    first, second = (device.cdi for device in prepared_devices("k/c", record, mounts))
    assert first == ("k/c=claim-uid-g", "k/c=claim-uid-g-0")
    assert second == ("k/c=claim-uid-g", "k/c=claim-uid-g-1")
    assert prepared_devices("k/c", record, ())[1].cdi == ("k/c=claim-uid-g",)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("record-uid-b", 'DRANODE_RECORD={"uid":"uid-b"}'),
        ("claim-uid-a", 'DRANODE_RECORD={"uid":"uid-a"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":"uid-b"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":"uid-a","fingerprint":"f"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":"uid-a","held":"3-1"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":"uid-a","cpus":"x"}'),
        ("record-uid-a", 'DRANODE_RECORD={"uid":'),
        ("record-uid-a", "DRANODE_RECORD="),
        ("record-uid-a", 'RECORD={"uid":"uid-a"}'),
    ],
)
def test_a_copy_of_another_claim_or_an_incomplete_one_is_not_trusted(name: str, entry: str) -> None:
    device = CDIDevice(name=name, container_edits=ContainerEdits(env=(entry,)))
    assert record_in_spec("uid-a", Spec(cdi_version="0.3.0", kind="lamps.example.com/claim", devices=(device,))) is None


PODS = (ResourceClaimConsumerReference(resource="pods", name="p", uid="pod-p"),)
CLAIM = AllocatedClaim(ClaimRef("default", "a", "uid-a"), ())
GRANT = Grant(request="r", pool="node", device="cpudevnuma000")
EMPTY_AFTERWARDS = CPUSet((1,)) - CPUSet((1,))

# Rows of versions whose records had cpu-lists as text: devices, held, body and checksum.
ROWS = {
    "CPUs": (
        record_of(
            CLAIM,
            ClaimGrant((GRANT,), ContainerEdits(env=("DRA_CPUSET_uid-a=0-1",)), CPUSet((0, 1)), CPUSet((0, 1, 8, 9))),
            PODS,
            ClaimState.STARTED,
        ),
        b'["cpudevnuma000"]',
        "0-1,8-9",
        (
            b'{"uid":"uid-a","namespace":"default","name":"a","state":"started","grants":[{"request":"r","pool":"node",'
            b'"device":"cpudevnuma000"}],"edits":{"env":["DRA_CPUSET_uid-a=0-1"]},"cpus":"0-1","held":"0-1,8-9",'
            b'"pods":[{"resource":"pods","name":"p","uid":"pod-p"}],"fingerprint":"71857576257465c7"}'
        ),
        3238027080,
    ),
    "no CPUs": (
        record_of(CLAIM, ClaimGrant((GRANT,)), (), ClaimState.COMPLETED),
        b'["cpudevnuma000"]',
        "",
        (
            b'{"uid":"uid-a","namespace":"default","name":"a","grants":[{"request":"r","pool":"node",'
            b'"device":"cpudevnuma000"}],"fingerprint":"71857576257465c7"}'
        ),
        3556492149,
    ),
    "no CPUs any more": (
        record_of(CLAIM, ClaimGrant((GRANT,), cpus=EMPTY_AFTERWARDS, held=CPUSet.parse("")), (), ClaimState.COMPLETED),
        b'["cpudevnuma000"]',
        "",
        (
            b'{"uid":"uid-a","namespace":"default","name":"a","grants":[{"request":"r","pool":"node",'
            b'"device":"cpudevnuma000"}],"fingerprint":"71857576257465c7"}'
        ),
        3556492149,
    ),
    "recovered": (
        recovered("uid-a", ClaimGrant((), cpus=CPUSet((3,)), held=CPUSet((3, 4, 5)))),
        b"[]",
        "3-5",
        b'{"uid":"uid-a","cpus":"3","held":"3-5"}',
        875487737,
    ),
    "parts": (
        msgspec.structs.replace(
            record_of(CLAIM, ClaimGrant(()), PODS, ClaimState.STARTED),
            grants=(
                msgspec.structs.replace(GRANT, cpus=CPUSet((0, 1)), held=CPUSet(range(4))),
                msgspec.structs.replace(GRANT, cpus=EMPTY_AFTERWARDS, held=EMPTY_AFTERWARDS),
            ),
            edits=ContainerEdits(env=("DRA_CPUSET_uid-a=0-1",)),
            cpus=CPUSet((0, 1)),
            held=CPUSet((0, 1, 8, 9)),
        ),
        b'["cpudevnuma000","cpudevnuma000"]',
        "0-1,8-9",
        (
            b'{"uid":"uid-a","namespace":"default","name":"a","state":"started","grants":[{"request":"r","pool":"node",'
            b'"device":"cpudevnuma000","cpus":"0-1","held":"0-3"},{"request":"r","pool":"node","device":"cpudevnuma000",'
            b'"cpus":""}],"edits":{"env":["DRA_CPUSET_uid-a=0-1"]},"cpus":"0-1","held":"0-1,8-9",'
            b'"pods":[{"resource":"pods","name":"p","uid":"pod-p"}],"fingerprint":"71857576257465c7"}'
        ),
        3091298145,
    ),
}


@pytest.mark.parametrize(("record", "devices", "held", "body", "checksum"), ROWS.values(), ids=ROWS)
def test_rows_are_the_same_as_in_versions_with_cpu_lists_as_text(
    record: Record, devices: bytes, held: str, body: bytes, checksum: int
) -> None:
    assert encoded(record) == ("uid-a", devices, held, body, checksum)
    read = decode_json(Record, body)
    assert read == record
    assert encode_json(read) == body
    assert matches(read, body, checksum.to_bytes(5, signed=True))


def test_copies_in_specs_are_the_same_as_in_versions_with_cpu_lists_as_text() -> None:
    record, *_ = ROWS["parts"]
    spec = claim_spec("dra.k8s.io/cpu", record, {}, record)
    assert spec.devices[-1].container_edits.env == (
        (
            'DRANODE_RECORD={"uid":"uid-a","namespace":"default","name":"a","grants":[{"request":"r","pool":"node",'
            '"device":"cpudevnuma000","cpus":"0-1","held":"0-3"},{"request":"r","pool":"node","device":"cpudevnuma000",'
            '"cpus":""}],"edits":{"env":["DRA_CPUSET_uid-a=0-1"]},"cpus":"0-1","held":"0-1,8-9"}'
        ),
    )


@pytest.mark.parametrize(
    ("cpus", "sentence"),
    [
        ('"3-1"', "runs backwards"),
        ('"x"', "neither a CPU nor a range"),
        ("3", "is not a cpu-list"),
        ("null", "is not a cpu-list"),
    ],
)
@pytest.mark.parametrize("field", ["cpus", "held"])
def test_a_row_with_an_invalid_cpu_list_is_not_a_record(field: str, cpus: str, sentence: str) -> None:
    with pytest.raises(DocumentError, match=sentence):
        decode_json(Record, f'{{"uid":"uid-a","{field}":{cpus}}}')
