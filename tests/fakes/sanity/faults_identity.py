"""Drivers that confuse claims, or change parts of a claim that belong to others."""

import contextlib
import copy
import threading
from typing import Any, Final

from tests.fakes.sanity.driver import NAME, Document, Instance, RightDriver
from tests.fakes.sanity.fault import fault
from tests.fakes.sanity.files import Files

_SHORT: Final = 8


class Renaming(RightDriver):
    """Keeps records and files under a name of its own."""

    def key(self, claim: Any) -> str:
        return str(claim.uid)

    def prepare(self, claim: Any) -> list[Document]:
        key = self.key(claim)
        record = self.records().get(key)
        if record is None:
            document = copy.deepcopy(self.checked(claim, self.claim(claim)))
            document["metadata"]["uid"] = key
            record = {"claim": document, "devices": self.grant(document)}
            self.save({**self.records(), key: record})
        self.write(record)
        return list(record["devices"])

    def unprepare(self, claim: Any) -> None:
        key = self.key(claim)
        self.files.remove(key)
        records = self.records()
        if records.pop(key, None) is not None:
            self.save(records)


@fault("prepare-namesakes", "claim two/same")
class GoesByNames(Renaming):
    def key(self, claim: Any) -> str:
        return f"{claim.name}-of-that-name"


@fault("prepare-similar-uids", "got node/")
class CutsUIDs(Renaming):
    def key(self, claim: Any) -> str:
        return str(claim.uid)[:_SHORT]


@fault("prepare-similar-uids", "got node/")
class CutsBeginnings(Renaming):
    def key(self, claim: Any) -> str:
        return str(claim.uid)[-_SHORT:]


class RemovesByPattern(Files):
    """Removes every file that begins with the claim's name."""

    def remove(self, uid: str) -> None:
        for path in self.cdi.glob(f"light_{uid}*.json"):
            path.unlink()


@fault("unprepare-similar-names", "is in no spec")
class RemovesByName(Renaming):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.files = RemovesByPattern(self.folder)

    def key(self, claim: Any) -> str:
        return f"{claim.namespace}-{claim.name}"


@fault("prepare-count", "the allocation")
class AnswersOneDeviceOfARequest(RightDriver):
    def grant(self, document: Document) -> list[Document]:
        granted = {device["request"]: device for device in super().grant(document)}
        return list(granted.values())


@fault("prepare-claim-untouched", "other drivers' status.devices")
class OwnsTheStatus(RightDriver):
    """Overwrites the whole status with its own devices."""

    def prepare(self, claim: Any) -> list[Document]:
        devices = super().prepare(claim)
        document = self.claim(claim)
        document["status"]["devices"] = [
            {"driver": NAME, "pool": device["pool"], "device": device["device"]} for device in devices
        ]
        self.request("PUT", f"namespaces/{claim.namespace}/resourceclaims/{claim.name}/status", document)
        return devices


@fault("prepare-claims-got", "was listed or watched")
class ListsAllClaims(RightDriver):
    def claim(self, claim: Any) -> Document:
        self.get("resourceclaims")
        return super().claim(claim)


@fault("prepare-being-deleted", "is in no spec")
class LooksAfterDeletedClaims(RightDriver):
    """Unprepares claims that are being deleted, without being asked."""

    def start(self, instance: str = "") -> None:
        super().start(instance)
        threading.Thread(target=self.look_after, args=(self.instances[instance],), daemon=True).start()

    def look_after(self, running: Instance) -> None:
        while not running.stopped.wait(0.02):
            with self.lock, contextlib.suppress(OSError):
                for uid, record in self.records().items():
                    metadata = record["claim"]["metadata"]
                    path = f"namespaces/{metadata['namespace']}/resourceclaims/{metadata['name']}"
                    if "deletionTimestamp" in self.get(path)["metadata"]:
                        self.files.remove(uid)
