"""Drivers that change, remove or leave behind what others read: edits of prepared claims, specs, slices, metadata."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from tests.fakes.sanity.driver import Document, Instance, RightDriver
from tests.fakes.sanity.fault import fault
from tests.fakes.sanity.faults_cdi import Spec
from tests.fakes.sanity.faults_files import Metadata
from tests.fakes.sanity.faults_identity import LooksAfterDeletedClaims
from tests.fakes.sanity.faults_life import Locking, Numbers, _View
from tests.fakes.sanity.faults_slices import Once
from tests.fakes.sanity.files import Files
from tests.fakes.sanity.publisher import Publisher

# --- edits ---


class Turning(Spec):
    """Writes a number into every spec, and rewrites all specs when the number grows."""

    turn = 0

    def change(self, spec: Document) -> None:
        for device in spec["devices"]:
            device["containerEdits"]["env"].append(f"TURN={self.turn}")

    def next_turn(self) -> None:
        self.turn += 1
        for record in self.records().values():
            self.write(record)


@fault("prepare-share-kept", "the other claim's edits have changed")
@fault("prepare-similar-uids", "has the edits")
@fault("unprepare-other-uid", "the claim's CDI edits have changed")
class RewritesWithAnUnprepare(Turning):
    def unprepare(self, claim: Any) -> None:
        super().unprepare(claim)
        self.next_turn()


@fault("restart-keeps-specs", "the edits are")
class RewritesAtStart(Numbers):
    def start(self, instance: str = "") -> None:
        super().start(instance)
        for record in self.records().values():
            self.write(record)


@fault("shutdown-keeps-claims", "the edits are")
class RewritesAtTheEnd(Turning):
    def terminate(self, seconds: float, instance: str = "") -> int | None:
        self.next_turn()
        return super().terminate(seconds, instance)


@fault("cdi-repaired", "the edits are")
class RepairsByHalf(Spec):
    """Rewrites a missing spec without the claim's configuration."""

    gone = False

    def write(self, record: Document) -> None:
        uid = record["claim"]["metadata"]["uid"]
        self.gone = uid in self.written and not (self.folder / "cdi" / f"light_{uid}.json").exists()
        super().write(record)
        self.written.add(uid)

    def change(self, spec: Document) -> None:
        if self.gone:
            self.edit(spec, env=["LIGHT=repaired"])

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.written: set[str] = set()


@fault("prepare-being-deleted", "the edits are")
class SwitchesDeletedClaimsOff(LooksAfterDeletedClaims):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.files = SwitchingOff(self.folder)


class SwitchingOff(Files):
    """Empties a spec's edits instead of removing the spec."""

    def remove(self, uid: str) -> None:
        for path in self.cdi.glob(f"light_{uid}.json"):
            spec = json.loads(path.read_text())
            for device in spec["devices"]:
                device["containerEdits"] = {"env": ["LIGHT=off"]}
            self.put(path, json.dumps(spec))


# --- CDI ids and files ---


@fault("cdi-resolves", "CDI id ")
class OddIds(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        return [{**device, "cdi": [f"light={claim.uid}"]} for device in super().prepare(claim)]


@fault("cdi-resolves", "so runtimes accept neither")
class WritesTwice(RightDriver):
    def write(self, record: Document) -> None:
        super().write(record)
        uid = record["claim"]["metadata"]["uid"]
        (self.folder / "cdi" / f"copy_{uid}.json").write_text(json.dumps(self.spec(record)))


@fault("cdi-foreign", "was changed while a claim came and went")
class RewritesAllSpecs(RightDriver):
    def unprepare(self, claim: Any) -> None:
        super().unprepare(claim)
        for path in (self.folder / "cdi").glob("*.json"):
            self.files.put(path, json.dumps({**json.loads(path.read_text()), "cdiVersion": "0.6.0"}))


@fault("restart-during-unprepare", "is left")
class DropsTheRecordFirst(Locking):
    """Treats a claim without a record as if nothing of it were left."""

    def unprepare(self, claim: Any) -> None:
        records, kills = self.records(), self.kills
        if records.pop(claim.uid, None) is None:
            return
        self.save(records)
        time.sleep(0.03)
        if self.kills == kills:
            self.files.remove(claim.uid)


class _OwnFiles(_View):
    """An instance that shares the records but removes only the files that it has written itself."""

    def __init__(self, driver: RightDriver, book: str) -> None:
        super().__init__(driver, book)
        self.wrote: set[str] = set()

    def records(self) -> dict[str, Document]:
        return RightDriver.records(self)

    def save(self, records: dict[str, Document]) -> None:
        RightDriver.save(self, records)

    def write(self, record: Document) -> None:
        super().write(record)
        self.wrote.add(record["claim"]["metadata"]["uid"])

    def unprepare(self, claim: Any) -> None:
        if claim.uid in self.wrote:
            super().unprepare(claim)
            return
        records = self.records()
        records.pop(claim.uid, None)
        self.save(records)


@fault("rolling-hand-over", "is left")
class RemovesItsOwnFiles(RightDriver):
    def serve(self, instance: Instance) -> list[grpc.Server]:
        name = instance.endpoint.stem
        return _OwnFiles(self, name).serve(instance) if name != "dra" else super().serve(instance)


@fault("rolling-old-leaves", "of 3 slices are left")
class TakesSlicesForGood(RightDriver):
    """Deletes the slices when one instance ends, and the other one does not check them again."""

    def publishes(self, stopped: threading.Event) -> Publisher:
        return Once(self, stopped)

    def terminate(self, seconds: float, instance: str = "") -> int | None:
        publisher = self.instances[instance].publisher
        status = super().terminate(seconds, instance)
        for item in publisher.listed()[1]:
            publisher.delete(item)
        return status


@fault("slices-v1beta2", "5 changed, the first is node/dev-0 (attributes)")
class PublishesLessToOlderServers(RightDriver):
    """Leaves attributes out for a server without v1."""

    def pieces(self) -> list[Document]:
        pieces = super().pieces()
        versions = {running.publisher.version for running in self.instances.values()}
        if versions <= {"v1"}:
            return pieces
        return [
            {**piece, "devices": [{**device, "attributes": {}} for device in piece["devices"]]}
            if "attributes" in piece.get("devices", [{}])[0]
            else piece
            for piece in pieces
        ]


# --- who may write what is kept ---


@fault("restart-state-not-writable", "claims/state has the mode 0666")
class ClosesAFolderBesideIt(RightDriver):
    """Has a folder that only the owner can enter, and world-writable files in another one."""

    def save(self, records: dict[str, Document]) -> None:
        super().save(records)
        for name, mode in (("closed", 0o700), ("claims", 0o755)):
            folder = self.folder / "plugins" / name
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
            (folder / "state").touch()
            (folder / "state").chmod(0o666)


# --- metadata ---


@fault("metadata-generation", "the generations are [5")
class BeginsWithFive(Metadata):
    def change(self, document: Document) -> None:
        document["metadata"]["generation"] = 5


@fault("metadata-attributes", "33 attributes")
class ManyAttributes(Metadata):
    def change(self, document: Document) -> None:
        for request in document["requests"]:
            request["devices"][0]["attributes"] = {f"n{number}": {"int": number} for number in range(33)}


class SpoiltFiles(Files):
    """Damages each metadata file after it was written."""

    def spoil(self, path: Path) -> None:
        raise NotImplementedError

    def put(self, path: Path, content: str) -> None:
        super().put(path, content)
        if path.name == "metadata.json":
            self.spoil(path)


class MissingFiles(SpoiltFiles):
    def spoil(self, path: Path) -> None:
        path.unlink()


class EmptyFiles(SpoiltFiles):
    def spoil(self, path: Path) -> None:
        path.write_text("")


class CutFiles(SpoiltFiles):
    def spoil(self, path: Path) -> None:
        path.write_text(path.read_text()[:-10])


class SpoilingMetadata(RightDriver):
    kind: type[Files] = Files

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.files = self.kind(self.folder)


@fault("metadata-documents", "cannot be read: No such file or directory")
class MountsNothing(SpoilingMetadata):
    kind = MissingFiles


@fault("metadata-documents", "metadata.json is empty")
class MountsAnEmptyFile(SpoilingMetadata):
    kind = EmptyFiles


@fault("metadata-documents", "is not a stream of JSON documents")
class MountsHalfAFile(SpoilingMetadata):
    kind = CutFiles
