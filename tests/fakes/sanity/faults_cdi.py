"""Drivers that write CDI specs wrongly."""

import itertools
import json
from typing import Any

from tests.fakes.sanity.driver import KIND, Document, RightDriver
from tests.fakes.sanity.fault import fault


class Spec(RightDriver):
    """Changes the spec of a claim."""

    def change(self, spec: Document) -> None:
        raise NotImplementedError

    def spec(self, record: Document) -> Document:
        spec = super().spec(record)
        self.change(spec)
        return spec

    @staticmethod
    def edit(spec: Document, **edits: Any) -> None:
        for device in spec["devices"]:
            device["containerEdits"].update(edits)


@fault("cdi-resolves", "is in no spec")
class OtherNames(Spec):
    def change(self, spec: Document) -> None:
        for device in spec["devices"]:
            device["name"] += "-x"


@fault("cdi-loads", "cdiVersion")
class UnknownVersion(Spec):
    def change(self, spec: Document) -> None:
        spec["cdiVersion"] = "0.5"


@fault("cdi-older-runtimes", "older.json")
class OlderRuntimes(RightDriver):
    def write(self, record: Document) -> None:
        super().write(record)
        rdt = {"name": "a", "containerEdits": {"intelRdt": {"closID": "/"}}}
        spec = {"cdiVersion": "0.7.0", "kind": KIND, "devices": [rdt]}
        (self.folder / "cdi" / "older.json").write_text(json.dumps(spec))


@fault("cdi-version", "declares 1.0.0, although 0.5.0 covers")
class HighVersion(Spec):
    def change(self, spec: Document) -> None:
        spec["cdiVersion"] = "1.0.0"


class OtherKind(RightDriver):
    kind = ""

    def grant(self, document: Document) -> list[Document]:
        granted = super().grant(document)
        for device in granted:
            device["cdi"][0] = device["cdi"][0].replace(KIND, self.kind)
        return granted

    def spec(self, record: Document) -> Document:
        return {**super().spec(record), "kind": self.kind}


@fault("cdi-kind", "is not a DNS subdomain")
class UpperCase(OtherKind):
    kind = "Example.com/light"


@fault("cdi-vendor", "is k8s.io")
class KubernetesVendor(OtherKind):
    kind = "k8s.io/light"


@fault("cdi-unique", "all.json")
class SpecOfAll(RightDriver):
    def write(self, record: Document) -> None:
        super().write(record)
        (self.folder / "cdi" / "all.json").write_text(json.dumps(self.spec(record)))


@fault("cdi-names-not-reused", "had the edits")
class NamesByDevice(RightDriver):
    def grant(self, document: Document) -> list[Document]:
        granted = super().grant(document)
        for device in granted:
            device["cdi"][0] = f"{KIND}={device['device']}"
        return granted

    def spec(self, record: Document) -> Document:
        spec = super().spec(record)
        for device in spec["devices"]:
            device["containerEdits"]["env"].append(f"CLAIM={record['claim']['metadata']['uid']}")
        return spec


@fault("cdi-nothing-left", "is left in")
class Leaves(RightDriver):
    def unprepare(self, claim: Any) -> None:
        content = {path: path.read_bytes() for path in (self.folder / "cdi").glob(f"light_{claim.uid}*")}
        super().unprepare(claim)
        for path, data in content.items():
            path.write_bytes(data)


@fault("cdi-repeated", "changed")
class CountsPrepares(Spec):
    numbers = itertools.count()

    def change(self, spec: Document) -> None:
        for device in spec["devices"]:
            device["containerEdits"]["env"].append(f"TIMES={next(self.numbers)}")


@fault("cdi-repaired", "is in no spec")
class WritesOnce(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.written: set[str] = set()

    def write(self, record: Document) -> None:
        uid = record["claim"]["metadata"]["uid"]
        if uid not in self.written:
            super().write(record)
        self.written.add(uid)


@fault("cdi-own-files", "light.lock is in")
class LockInFolder(RightDriver):
    def write(self, record: Document) -> None:
        super().write(record)
        (self.folder / "cdi" / "light.lock").touch()

    def unprepare(self, claim: Any) -> None:
        super().unprepare(claim)
        (self.folder / "cdi" / "light.lock").unlink(missing_ok=True)


@fault("cdi-device-nodes", "/dev/no-such-lamp does not exist")
class MissingNode(Spec):
    def change(self, spec: Document) -> None:
        self.edit(spec, deviceNodes=[{"path": "/dev/no-such-lamp"}])


@fault("cdi-mounts", "/no/such/library does not exist")
class MissingMount(Spec):
    def change(self, spec: Document) -> None:
        self.edit(spec, mounts=[{"hostPath": "/no/such/library", "containerPath": "/lib/x"}])


@fault("cdi-hooks", "/no/such/hook is not an executable file")
class MissingHook(Spec):
    def change(self, spec: Document) -> None:
        self.edit(spec, hooks=[{"hookName": "createContainer", "path": "/no/such/hook"}])


@fault("cdi-env", "LIGHT is dev-")
class OneVariable(Spec):
    def change(self, spec: Document) -> None:
        for device in spec["devices"]:
            value = device["containerEdits"]["env"][0].partition("=")[2]
            device["containerEdits"]["env"] = [f"LIGHT={value}"]


@fault("cdi-paths", "/etc/light.conf is /dev/")
class OnePath(Spec):
    def change(self, spec: Document) -> None:
        for source, device in zip(("/dev/null", "/dev/zero"), spec["devices"], strict=False):
            device["containerEdits"]["mounts"] = [{"hostPath": source, "containerPath": "/etc/light.conf"}]
