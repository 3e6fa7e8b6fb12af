"""Device metadata on disk: whole files with the right modes, complete removal, and no failed claims."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from dranode.api.resource import Device, ResourceClaim
from dranode.cdi.directory import encode_spec, read_spec, write_spec
from dranode.cdi.rules import validate
from dranode.cdi.spec import CDIDevice, ContainerEdits, Mount, Spec
from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.hooks import Recovers
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.reconcile import Attestation
from dranode.driver.claims.record import Record
from dranode.driver.node import metadata_files
from dranode.driver.node.metadata_files import DeviceMetadata, MetadataError
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.orphans import put_on_record
from dranode.driver.serve.spec_watch import SpecWatch
from tests.fakes.drivers import Lamps, allocated_claim, reference

INVENTORY = Inventory(devices=(Device(name="lamp-0"), Device(name="lamp-1")))
OLD = Record(uid="uid-old", namespace="ns", name="c", grants=(Grant(request="r", pool="node", device="lamp-0"),))
NEW = msgspec.structs.replace(OLD, uid="uid-new")


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[DeviceMetadata]:
    (tmp_path / "data").mkdir()
    mask = os.umask(0o077)
    yield DeviceMetadata(Lamps.driver, tmp_path / "data" / "metadata", tmp_path / "cdi", tmp_path / "data" / "older")
    os.umask(mask)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def files(metadata: DeviceMetadata) -> list[str]:
    """The names of the metadata files and of the CDI specs."""
    return [name for folder in (metadata.folder, metadata.cdi) for name in names(folder)]


def mounts(metadata: DeviceMetadata, claim: ResourceClaim) -> dict[str, str]:
    """The files on the host that the claim's CDI spec mounts, by CDI id."""
    spec = read_spec(metadata.cdi / f"{Lamps.driver}-claim_claim-{claim.metadata.uid}.json")
    pairs = ((device.name, mount) for device in spec.devices for mount in device.container_edits.mounts)
    return {f"{spec.kind}={name}": mount.host_path for name, mount in pairs}


def swept(metadata: DeviceMetadata) -> NodeClaims:
    """A driver after its first sweep of the existing files."""
    made = node(metadata)
    watch = SpecWatch(made)
    watch.check()
    watch.stop()
    return made


def node(metadata: DeviceMetadata, plugin: Plugin | None = None) -> NodeClaims:
    made = NodeClaims(plugin or Lamps(), metadata.folder.parent, metadata.cdi, metadata=metadata)
    made.open()
    return made


def from_template(claim: ResourceClaim, name: str) -> ResourceClaim:
    """The claim as if it was created from a pod's template under this name."""
    annotations = {"resource.kubernetes.io/pod-claim-name": name}
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, annotations=annotations))


def prepare(node: NodeClaims, claim: ResourceClaim) -> list[tuple[str, ...]]:
    answer = node.prepare({reference(claim): claim})[claim.metadata.uid]
    assert isinstance(answer, Prepared), answer
    return [device.cdi for device in answer.devices]


def test_any_user_can_read_metadata_whatever_the_umask(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    modes = [oct(path.stat().st_mode & 0o777) for path in (metadata.folder, metadata.folder / "uid-old_r")]
    assert modes == ["0o755", "0o644"]
    assert names(metadata.folder) == ["uid-old_r"]


def test_unchanged_metadata_is_not_written_again(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    before = (metadata.folder / "uid-old_r").stat().st_ino
    metadata.write(OLD, INVENTORY)
    assert (metadata.folder / "uid-old_r").stat().st_ino == before


def test_a_killed_drivers_half_written_file_is_replaced(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    file = metadata.folder / "uid-old_r"
    whole = file.read_bytes()
    file.write_bytes(whole[:10])
    with file.open("rb") as reader:
        metadata.write(OLD, INVENTORY)
        assert reader.read() == whole[:10]
    assert file.read_bytes() == whole
    assert names(metadata.folder) == ["uid-old_r"]


def test_nothing_is_left_after_removal(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    metadata.remove(OLD.ref, ("r",))
    assert files(metadata) == []
    metadata.remove(OLD.ref, ("r",))


def test_all_files_of_a_claim_without_a_record_are_removed(metadata: DeviceMetadata) -> None:
    longer = msgspec.structs.replace(OLD, uid=f"{OLD.uid}_s")
    other = Grant(request="s", pool="node", device="lamp-1")
    for record in (msgspec.structs.replace(OLD, grants=(*OLD.grants, other)), longer):
        metadata.write(record, INVENTORY)
    (metadata.folder / "uid-old_s").unlink()
    metadata.remove(OLD.ref, ())
    assert files(metadata) == ["uid-old_s_r"]


def test_files_of_a_successor_with_the_same_name_stay(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    metadata.write(NEW, INVENTORY)
    metadata.remove(OLD.ref, ("r",))
    assert files(metadata) == ["uid-new_r"]


def test_files_that_cannot_be_removed_are_named_until_they_are_gone(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-1"])
    lamps = node(metadata)
    prepare(lamps, claim)
    (file,) = metadata.folder.iterdir()
    file.unlink()
    file.mkdir()
    ref = reference(claim)
    refused = lamps.unprepare((ref,))[ref.uid]
    assert refused is not None
    assert f"{file}: Is a directory; remove it by hand" in refused.reason
    file.rmdir()
    assert lamps.unprepare((ref,)) == {ref.uid: None}


def test_a_uid_that_leads_to_another_folder_removes_nothing(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    reachable = metadata.folder.parent / "x_r"
    reachable.write_text("somebody else's")
    metadata.remove(ClaimRef("ns", "c", "../x"), ("r",))
    assert reachable.exists()
    assert names(metadata.folder) == ["uid-old_r"]


def test_only_containers_of_a_request_get_its_metadata(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("a", Lamps.driver, {"r/sub": "lamp-0", "s": "lamp-1"})
    uid = claim.metadata.uid
    device = f"{Lamps.driver}/claim=claim-{uid}"
    assert prepare(node(metadata), claim) == [(f"{device}-0",), (f"{device}-1",)]
    assert mounts(metadata, claim) == {
        f"{device}-0": f"{metadata.folder}/{uid}_r",
        f"{device}-1": f"{metadata.folder}/{uid}_s",
    }


def test_every_container_with_a_claim_of_one_request_gets_its_metadata_once(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0", "lamp-1"])
    device = f"{Lamps.driver}/claim=claim-{claim.metadata.uid}"
    assert prepare(node(metadata), claim) == [(device, f"{device}-0"), (device, f"{device}-1")]
    assert mounts(metadata, claim) == {device: f"{metadata.folder}/{claim.metadata.uid}_r"}


def test_a_prepare_writes_one_spec_for_each_claim_which_every_runtime_loads(metadata: DeviceMetadata) -> None:
    prepare(node(metadata), allocated_claim("a", Lamps.driver, {"r": "lamp-0", "s": "lamp-1"}))
    (spec,) = metadata.cdi.iterdir()
    verdict = validate(spec.read_bytes())
    assert verdict.ok
    assert read_spec(spec).cdi_version == "0.3.0"


def test_lost_metadata_is_written_again_by_a_repeated_prepare_and_by_a_restart(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    first = node(metadata)
    answer = prepare(first, claim)
    written = names(metadata.folder) + names(metadata.cdi)
    for again in (lambda: prepare(first, claim), lambda: node(metadata)):
        for path in (*metadata.cdi.iterdir(), *metadata.folder.iterdir()):
            path.unlink()
        again()
        assert names(metadata.folder) + names(metadata.cdi) == written
    assert prepare(first, claim) == answer


def test_unwritable_metadata_fails_no_claim_and_is_not_mounted(
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
    assert mounts(metadata, claim) == {}
    ((ref, reason),) = told
    assert ref == reference(claim)
    assert reason.startswith("claim default/a gets no device metadata")
    metadata.folder.unlink()
    assert len(prepare(driver, claim)[0]) == len(mounts(metadata, claim)) + 1 == 2
    assert driver.unprepare((reference(claim),)) == {claim.metadata.uid: None}
    assert files(metadata) == []


@pytest.mark.parametrize("stays", [True, False])
def test_a_file_that_cannot_be_rewritten_is_still_mounted(
    metadata: DeviceMetadata,
    monkeypatch: pytest.MonkeyPatch,
    stays: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    driver = node(metadata)
    told = prepare(driver, claim)
    if not stays:
        (metadata.folder / f"{claim.metadata.uid}_r").unlink()
    monkeypatch.setattr(metadata_files, "make_file", full)
    assert (prepare(driver, claim) == told) is stays
    assert len(mounts(metadata, claim)) == stays


class OwnForm(Lamps, Recovers):
    """A driver of one lamp whose CDI specs name the granted device, but neither the claim nor its pod."""

    EDITS: Final = ContainerEdits(env=("LAMP=given",))

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        grants = super().grant(claim, held, inventory).grants
        return ClaimGrant(tuple(msgspec.structs.replace(grant, edits=None) for grant in grants), self.EDITS)

    def recover(self, uid: str, spec: Spec) -> ClaimGrant | None:
        own = any(uid in device.name and device.container_edits for device in spec.devices)
        return ClaimGrant((Grant(request="r", pool="node", device="lamp-0"),), self.EDITS) if own else None


@pytest.mark.parametrize("driver", [Lamps, OwnForm])
def test_metadata_of_a_recovered_claim_stays_mounted_where_its_pod_expects_it(
    metadata: DeviceMetadata, driver: type[Lamps]
) -> None:
    first = node(metadata, driver())
    prepare(first, from_template(allocated_claim("pod-lamp-x7k2p", Lamps.driver, ["lamp-0"]), "lamp"))
    (spec,) = metadata.cdi.iterdir()
    told = [device.container_edits.mounts for device in read_spec(spec).devices]
    first.close()
    for path in metadata.folder.parent.glob("ledger.db*"):
        path.unlink()
    again = node(metadata, driver())
    put_on_record(again, again.unfinished(), Attestation())
    assert [device.container_edits.mounts for device in read_spec(spec).devices] == told


def test_the_requests_of_a_recovered_claim_keep_their_cdi_devices(metadata: DeviceMetadata) -> None:
    first = node(metadata, OwnForm())
    claim = allocated_claim("a", Lamps.driver, {"r": "lamp-0", "s": "lamp-1"})
    prepare(first, claim)
    told = mounts(metadata, claim)
    assert len(told) == 2
    first.close()
    for path in metadata.folder.parent.glob("ledger.db*"):
        path.unlink()
    again = node(metadata, OwnForm())
    put_on_record(again, again.unfinished(), Attestation())
    assert mounts(metadata, claim) == told


def test_metadata_of_an_unknown_claim_is_removed_by_the_first_sweep(metadata: DeviceMetadata) -> None:
    lost = allocated_claim("a", Lamps.driver, {"r": "lamp-0", "s": "lamp-1"})
    prepare(node(metadata), lost)
    for path in (*metadata.folder.parent.glob("ledger.db*"), *metadata.cdi.glob(f"*claim-{lost.metadata.uid}*")):
        path.unlink()
    again = msgspec.structs.replace(lost, metadata=msgspec.structs.replace(lost.metadata, uid="uid-again"))
    prepare(node(metadata), again)
    driver = swept(metadata)
    assert [name for name in files(metadata) if lost.metadata.uid in name] == []
    assert names(metadata.folder) == ["uid-again_r", "uid-again_s"]
    assert driver.unprepare((reference(again),)) == {"uid-again": None}
    assert files(metadata) == []


def test_metadata_stays_while_the_ledger_may_lack_claims(metadata: DeviceMetadata) -> None:
    claims = [allocated_claim(name, Lamps.driver, [f"lamp-{number}"]) for number, name in enumerate("ab")]
    first = node(metadata)
    for claim in claims:
        prepare(first, claim)
    first.store.recovery.loss = "there was a power cut"
    for path in metadata.cdi.glob(f"*claim-{claims[0].metadata.uid}*"):
        path.unlink()
    first.store.book.forget(claims[0].metadata.uid)
    first.sweep()
    assert len(names(metadata.folder)) == 2
    first.store.recovery.loss = ""
    first.sweep()
    assert names(metadata.folder) == [f"{claims[1].metadata.uid}_r"]


def test_a_removed_metadata_folder_is_created_again(metadata: DeviceMetadata) -> None:
    metadata.write(OLD, INVENTORY)
    metadata.remove(OLD.ref, ("r",))
    metadata.folder.rmdir()
    metadata.write(NEW, INVENTORY)
    assert names(metadata.folder) == ["uid-new_r"]


# --- what earlier versions wrote ---


def older_spec(metadata: DeviceMetadata, claim: ResourceClaim, file: Path) -> Path:
    """A CDI spec that mounts a file as earlier versions and dra-driver-cpu did it."""
    uid = claim.metadata.uid
    mount = Mount(host_path=str(file), container_path="/metadata.json", options=("ro", "bind"))
    device = CDIDevice(name=f"{uid}_r", container_edits=ContainerEdits(mounts=(mount,)))
    name = f"{Lamps.driver}_metadata_{uid}_r.json"
    write_spec(metadata.cdi, name, Spec(cdi_version="0.5.0", kind=f"{Lamps.driver}/metadata", devices=(device,)))
    return metadata.cdi / name


def laid_out_as_before(metadata: DeviceMetadata, claim: ResourceClaim) -> Path:
    """Prepare a claim, and move its metadata into a folder of its own, as the first versions had it."""
    prepare(node(metadata), claim)
    assert metadata.older is not None
    file = metadata.older / f"default_{claim.metadata.name}" / "r" / "metadata.json"
    file.parent.mkdir(parents=True)
    (metadata.folder / f"{claim.metadata.uid}_r").rename(file)
    older_spec(metadata, claim, file)
    return file


def test_a_spec_of_an_earlier_version_stays_until_its_claim_is_unprepared(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    prepare(node(metadata), claim)
    (own,) = metadata.cdi.iterdir()
    file = metadata.folder / f"{claim.metadata.uid}_r"
    own.write_bytes(encode_spec(without_mounts(read_spec(own))))
    spec = older_spec(metadata, claim, file)
    said = spec.read_bytes()
    driver = swept(metadata)
    assert mounts(metadata, claim) == {f"{Lamps.driver}/claim=claim-{claim.metadata.uid}": str(file)}
    assert (spec.read_bytes(), file.exists()) == (said, True)
    assert driver.unprepare((reference(claim),)) == {claim.metadata.uid: None}
    assert files(metadata) == []


def without_mounts(spec: Spec) -> Spec:
    devices = (device for device in spec.devices if not device.container_edits.mounts)
    return msgspec.structs.replace(spec, devices=tuple(devices))


def test_files_of_the_first_versions_are_removed_when_no_spec_mounts_them(metadata: DeviceMetadata) -> None:
    claims = [allocated_claim(name, Lamps.driver, [f"lamp-{number}"]) for number, name in enumerate("ab")]
    kept, last = (laid_out_as_before(metadata, claim) for claim in claims)
    (last.parent / "spec.0123456789abcdef.tmp").write_text("half")
    driver = node(metadata)
    assert driver.unprepare((reference(claims[1]),)) == {claims[1].metadata.uid: None}
    swept(metadata)
    assert metadata.older is not None
    assert names(metadata.older) == ["default_a", "default_a/r", "default_a/r/metadata.json"]
    assert kept.exists()
    # A container that starts now gets the current file.
    assert [Path(path).parent for path in mounts(metadata, claims[0]).values()] == [metadata.folder]
    assert driver.unprepare((reference(claims[0]),)) == {claims[0].metadata.uid: None}
    swept(metadata)
    assert not metadata.older.exists()
    assert files(metadata) == []


def test_files_of_other_programs_in_the_folder_are_kept(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    theirs = laid_out_as_before(metadata, claim).with_name("theirs")
    theirs.write_text("another program's")
    driver = node(metadata)
    assert driver.unprepare((reference(claim),)) == {claim.metadata.uid: None}
    driver.sweep()
    assert metadata.older is not None
    assert [path for path in metadata.older.rglob("*") if path.is_file()] == [theirs]


def test_files_of_earlier_versions_stay_while_a_spec_cannot_be_read(metadata: DeviceMetadata) -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"])
    file = laid_out_as_before(metadata, claim)
    (spec,) = metadata.cdi.glob("*metadata*")
    spec.write_text("{")
    with pytest.raises(MetadataError, match="of an earlier version cannot be removed"):
        node(metadata).sweep()
    assert file.exists()


def test_files_in_a_forbidden_folder_are_not_taken_for_missing(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    metadata = DeviceMetadata("d.example.com", loop, loop, loop / "older")
    for look, cannot in ((metadata.uids, "listed"), (metadata.has_older, "accessed")):
        with pytest.raises(MetadataError, match=rf"loop.* cannot be {cannot}: Too many levels of symbolic links"):
            look()
