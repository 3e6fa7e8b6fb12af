"""Device metadata on disk: whole files with the right modes, nothing left, nobody else's touched, no claim failed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dranode.cdi.directory import replace_file
from dranode.driver.core.api.resource import Device, ResourceClaim
from dranode.driver.core.claims.answers import Prepared
from dranode.driver.core.claims.grant import Grant
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.record import Record
from dranode.driver.node import metadata_files
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.spec_watch import SpecWatch
from tests.fakes.drivers import Lamps, allocated_claim, reference

INVENTORY = Inventory(devices=(Device(name="lamp-0"), Device(name="lamp-1")))
OLD = Record(uid="uid-old", namespace="ns", name="c", grants=(Grant(request="r", pool="node", device="lamp-0"),))
NEW = msgspec.structs.replace(OLD, uid="uid-new")


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[DeviceMetadata]:
    (tmp_path / "data").mkdir()
    mask = os.umask(0o077)
    yield DeviceMetadata(Lamps.driver, tmp_path / "data" / "dra-device-metadata", tmp_path / "cdi")
    os.umask(mask)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def files(metadata: DeviceMetadata) -> list[Path]:
    """The metadata's files; folders may stay until they are swept."""
    return [path for folder in (metadata.folder, metadata.cdi) for path in folder.rglob("*") if path.is_file()]


def node(metadata: DeviceMetadata) -> NodeClaims:
    made = NodeClaims(Lamps(), metadata.folder.parent, metadata.cdi, metadata=metadata)
    made.open()
    return made


def prepare(node: NodeClaims, claim: ResourceClaim) -> list[tuple[str, ...]]:
    answer = node.prepare({reference(claim): claim})[claim.metadata.uid]
    assert isinstance(answer, Prepared), answer
    return [device.cdi for device in answer.devices]


def test_containers_of_any_user_can_read_it_whatever_the_mask(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    file = metadata.folder / "ns_c" / "r" / "metadata.json"
    modes = [oct(path.stat().st_mode & 0o777) for path in (metadata.folder, file.parents[1], file.parent, file)]
    assert modes == ["0o755", "0o755", "0o755", "0o644"]
    assert names(metadata.folder) == ["ns_c", "ns_c/r", "ns_c/r/metadata.json"]


def test_the_same_again_is_not_written_again(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    before = [(path, path.stat().st_ino) for path in (metadata.folder / "ns_c" / "r", metadata.cdi)]
    inodes = [path.stat().st_ino for path in metadata.spec_files(OLD)]
    metadata.write(OLD, INVENTORY)
    assert [(path, path.stat().st_ino) for path in (metadata.folder / "ns_c" / "r", metadata.cdi)] == before
    assert [path.stat().st_ino for path in metadata.spec_files(OLD)] == inodes


def test_nothing_is_left_after_removal_not_even_what_a_killed_driver_left(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    (metadata.folder / "ns_c" / "r" / "spec.abc.tmp").write_text("half")
    metadata.remove(OLD.ref, ("r",))
    assert files(metadata) == []
    metadata.sweep()
    assert names(metadata.folder) == []
    metadata.remove(OLD.ref, ("r",))


def test_a_claim_that_is_not_on_record_any_more_is_cleaned_up_by_its_name(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    metadata.remove(OLD.ref, ())
    assert files(metadata) == []


def test_a_claim_leaves_the_files_of_its_successor_of_the_same_name_alone(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    metadata.write(NEW, INVENTORY)
    metadata.remove(OLD.ref, ("r",))
    assert names(metadata.cdi) == [f"{Lamps.driver}_metadata_uid-new_r.json"]
    text = (metadata.folder / "ns_c" / "r" / "metadata.json").read_text()
    assert json.loads(text)["metadata"]["uid"] == "uid-new"


@pytest.mark.parametrize("indent", [None, 2, 4])
def test_whose_a_file_is_does_not_depend_on_how_its_documents_are_written(
    metadata: DeviceMetadata, indent: int | None
) -> None:
    metadata.write(NEW, INVENTORY)
    file = metadata.folder / "ns_c" / "r" / "metadata.json"
    document = json.loads(file.read_text())
    file.write_text(f"{json.dumps(document, indent=indent)}\n" * 2)
    metadata.remove(OLD.ref, ("r",))
    assert file.exists()
    metadata.remove(NEW.ref, ("r",))
    assert files(metadata) == []


def test_a_request_that_is_not_on_record_goes_with_those_that_are(metadata: DeviceMetadata) -> None:
    other = Grant(request="s", pool="node", device="lamp-1")
    metadata.write(msgspec.structs.replace(OLD, grants=(*OLD.grants, other)), INVENTORY)
    metadata.remove(OLD.ref, ("r",))
    assert files(metadata) == []


def test_a_uid_that_would_lead_elsewhere_removes_nothing(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    (metadata.cdi / f"{Lamps.driver}_metadata_..").mkdir()
    reachable = metadata.cdi / "x_r.json"
    reachable.write_text("somebody else's")
    metadata.remove(ClaimRef("ns", "c", "../x"), ("r",))
    assert reachable.exists()
    assert (metadata.folder / "ns_c" / "r" / "metadata.json").exists()


def test_kubelet_gets_metadata_at_the_first_device_of_each_request(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("a", Lamps.driver, {"r/sub": "lamp-0", "s": "lamp-1"})
    uid = claim.metadata.uid
    kinds = (f"{Lamps.driver}/claim=claim-{uid}", f"{Lamps.driver}/metadata={uid}")
    assert prepare(node(metadata), claim) == [
        (f"{kinds[0]}-0", f"{kinds[1]}_r"),
        (f"{kinds[0]}-1", f"{kinds[1]}_s"),
    ]


def test_metadata_that_was_lost_is_made_again_by_a_repeated_prepare_and_by_a_restart(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    first = node(metadata)
    answer = prepare(first, claim)
    written = names(metadata.folder) + names(metadata.cdi)
    for again in (lambda: prepare(first, claim), lambda: node(metadata)):
        for path in (*metadata.cdi.glob("*metadata*"), *metadata.folder.rglob("metadata.json")):
            path.unlink()
        again()
        assert names(metadata.folder) + names(metadata.cdi) == written
    assert prepare(first, claim) == answer


def test_metadata_that_cannot_be_written_fails_no_claim_and_is_not_named(
    metadata: DeviceMetadata, caplog: pytest.LogCaptureFixture
) -> None:
    metadata.folder.write_text("a file where the folder should be")
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    driver = node(metadata)
    told: list[tuple[ClaimRef, str]] = []
    driver.files.undescribed = lambda ref, reason: told.append((ref, reason))
    assert prepare(driver, claim) == [(f"{Lamps.driver}/claim=claim-{claim.metadata.uid}-0",)]
    assert "claim default/a gets no device metadata" in caplog.text
    assert 'request "r"' in caplog.text
    ((ref, reason),) = told
    assert ref == reference(claim)
    assert reason.startswith("claim default/a gets no device metadata")
    metadata.folder.unlink()
    assert driver.unprepare((reference(claim),)) == {claim.metadata.uid: None}


def test_a_claim_from_a_template_is_mounted_where_its_pod_looks(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("pod-lamp-x7k2p", Lamps.driver, ["lamp-0"])
    annotated = msgspec.structs.replace(
        claim,
        metadata=msgspec.structs.replace(claim.metadata, annotations={"resource.kubernetes.io/pod-claim-name": "lamp"}),
    )
    prepare(node(metadata), annotated)
    (spec,) = metadata.cdi.glob("*metadata*")
    (mount,) = json.loads(spec.read_bytes())["devices"][0]["containerEdits"]["mounts"]
    assert "/resourceclaimtemplates/lamp/r/" in mount["containerPath"]
    assert json.loads(Path(mount["hostPath"]).read_text())["podClaimName"] == "lamp"


def test_the_metadata_of_a_claim_whose_record_was_lost_goes_when_another_one_has_its_name(
    metadata: DeviceMetadata,
) -> None:
    lost = allocated_claim("a", Lamps.driver, {"r": "lamp-0", "s": "lamp-1"})
    prepare(node(metadata), lost)
    for path in (*metadata.folder.parent.glob("ledger.db*"), *metadata.cdi.glob(f"*claim-{lost.metadata.uid}*")):
        path.unlink()
    again = msgspec.structs.replace(lost, metadata=msgspec.structs.replace(lost.metadata, uid="uid-again"))
    driver = node(metadata)
    prepare(driver, again)
    assert [path.name for path in metadata.cdi.iterdir() if lost.metadata.uid in path.name] == []
    assert len(list(metadata.cdi.glob("*metadata_uid-again_*"))) == 2
    assert driver.unprepare((reference(again),)) == {"uid-again": None}
    assert files(metadata) == []
    driver.close()
    assert names(metadata.folder) == []


def test_the_metadata_of_a_claim_on_record_is_its_own_to_remove(metadata: DeviceMetadata) -> None:
    first = allocated_claim("a", Lamps.driver, ["lamp-0"])
    second = allocated_claim("a", Lamps.driver, ["lamp-1"])
    second = msgspec.structs.replace(second, metadata=msgspec.structs.replace(second.metadata, uid="uid-second"))
    driver = node(metadata)
    prepare(driver, first)
    prepare(driver, second)
    assert len(list(metadata.cdi.glob("*metadata*"))) == 2
    assert driver.unprepare((reference(first),)) == {first.metadata.uid: None}
    assert [path.name for path in metadata.cdi.glob("*metadata*")] == [f"{Lamps.driver}_metadata_uid-second_r.json"]


def test_a_sweep_takes_empty_folders_alone(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    metadata.write(msgspec.structs.replace(NEW, name="other"), INVENTORY)
    metadata.remove(OLD.ref, ("r",))
    metadata.remove(ClaimRef("ns", "other", "uid-third"), ("r",))
    metadata.sweep()
    assert names(metadata.folder) == ["ns_other", "ns_other/r", "ns_other/r/metadata.json"]


def test_folders_of_a_process_that_was_killed_before_it_swept_go_with_the_first_look(metadata: DeviceMetadata) -> None:
    claims = [allocated_claim(name, Lamps.driver, [f"lamp-{number}"]) for number, name in enumerate("ab")]
    killed = node(metadata)
    for claim in claims:
        prepare(killed, claim)
    killed.unprepare((reference(claims[0]),))
    assert (metadata.folder / "default_a" / "r").is_dir()
    again = DeviceMetadata(Lamps.driver, metadata.folder, metadata.cdi)
    watch = SpecWatch(node(again))
    watch.look()
    watch.stop()
    assert names(metadata.folder) == ["default_b", "default_b/r", "default_b/r/metadata.json"]


@pytest.mark.parametrize("gone", ["ns_c/r", "ns_c", ""])
def test_a_writer_whose_folder_is_swept_away_meanwhile_makes_it_again(
    metadata: DeviceMetadata, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    swept: list[Path] = []

    def replace(target: str, data: bytes) -> None:
        if not swept:
            swept.append(metadata.folder / gone)
            shutil.rmtree(swept[0])
        replace_file(target, data)

    monkeypatch.setattr(metadata_files, "replace_file", replace)
    metadata.write(OLD, INVENTORY)
    assert names(metadata.folder) == ["ns_c", "ns_c/r", "ns_c/r/metadata.json"]


def test_a_claim_that_is_prepared_again_before_a_sweep_keeps_its_files(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    metadata.remove(OLD.ref, ("r",))
    metadata.write(NEW, INVENTORY)
    metadata.sweep(everything=True)
    assert names(metadata.folder) == ["ns_c", "ns_c/r", "ns_c/r/metadata.json"]
