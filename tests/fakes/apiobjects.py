"""What an API server keeps: objects with resource versions, a history to watch, and the rules of writing.

As kube-apiserver does it, as far as a node driver can tell: generated names, optimistic locking, preconditions of
deletes, server-side apply of `status.devices` (a map list by driver, device, pool and share), history that is forgotten
(410), and fields of feature gates that are off, dropped without a word. Objects are kept as v1, served in any version.
"""

from __future__ import annotations

import copy
import random
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dranode.driver.core.api.documents import to_v1
from dranode.driver.kube.versions import from_v1

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE = 58
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

Document = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A resource: `resourceslices` of group `resource.k8s.io`, say."""

    group: str
    resource: str
    kind: str
    namespaced: bool


KINDS = (
    Kind("resource.k8s.io", "resourceslices", "ResourceSlice", namespaced=False),
    Kind("resource.k8s.io", "resourceclaims", "ResourceClaim", namespaced=True),
    Kind("resource.k8s.io", "deviceclasses", "DeviceClass", namespaced=False),
    Kind("events.k8s.io", "events", "Event", namespaced=True),
    Kind("", "nodes", "Node", namespaced=False),
    Kind("", "pods", "Pod", namespaced=True),
)


class Refusal(Exception):  # noqa: N818 - the API's word is Status, which says less
    """An answer that is no success."""

    def __init__(self, status: int, reason: str, message: str, name: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.name = name

    def document(self) -> Document:
        details = {"name": self.name} if self.name else {}
        return {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": str(self),
            "reason": self.reason, "code": self.status, "details": details,
        }  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One line of the history."""

    version: int
    kind: Kind
    type: str
    document: Document


class Objects:
    """All objects. Every method may be called from any thread."""

    def __init__(self, gates_off: Iterable[str] = ()) -> None:
        self.gates_off = set(gates_off)
        self.changed = threading.Condition()
        self.version = 100
        self.history: list[Change] = []
        self.forgotten = 0
        self._objects: dict[tuple[str, str, str], Document] = {}
        self._applied: dict[tuple[str, str], set[tuple[str, ...]]] = {}
        self._random = random.Random(7)

    # --- reading ---

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        with self.changed:
            return copy.deepcopy(self._find(kind, namespace, name))

    def select(
        self, kind: Kind, namespace: str = "", wanted: Callable[[Document], bool] = bool
    ) -> tuple[int, list[Any]]:
        with self.changed:
            found = [
                copy.deepcopy(one)
                for (resource, space, _), one in sorted(self._objects.items())
                if resource == kind.resource and namespace in ("", space) and wanted(one)
            ]
            return self.version, found

    def all(self, resource: str) -> list[Document]:
        """Every object of a resource, for a test to look at."""
        return self.select(kind_of(resource))[1]

    def since(self, kind: Kind, version: int) -> list[Change]:
        """The history after a version; to be called under `changed`."""
        if version < self.forgotten:
            raise Refusal(410, "Expired", f"too old resource version: {version} ({self.forgotten})")
        return [change for change in self.history if change.kind == kind and change.version > version]

    def forget(self) -> None:
        """Forget the history, as compaction does."""
        with self.changed:
            self.forgotten = self.version
            self.history.clear()

    # --- writing ---

    def create(self, kind: Kind, document: Document, *, dry_run: bool = False) -> Document:
        with self.changed:
            document = copy.deepcopy(document)
            metadata = document.setdefault("metadata", {})
            if not metadata.get("name"):
                base = str(metadata["generateName"])
                if _SUBDOMAIN.fullmatch(base.removesuffix("-")) is None:
                    message = f'metadata.generateName: Invalid value: "{base}": a lowercase RFC 1123 subdomain'
                    raise Refusal(422, "Invalid", message)
                metadata["name"] = base[:_LONGEST_BASE] + self._suffix()
            key = self._key(kind, document)
            if key in self._objects:
                raise Refusal(409, "AlreadyExists", f'{kind.resource} "{key[2]}" already exists', key[2])
            metadata.setdefault("uid", str(uuid.UUID(int=self._random.getrandbits(128))))
            metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
            document["kind"] = kind.kind
            self._sanitize(kind, document)
            return copy.deepcopy(document if dry_run else self._store(kind, key, document, "ADDED"))

    def replace(self, kind: Kind, document: Document, *, dry_run: bool = False) -> Document:
        with self.changed:
            document = copy.deepcopy(document)
            key = self._key(kind, document)
            old = self._find(kind, *key[1:])
            self._check(kind, old, document["metadata"])
            document["metadata"] = {**old["metadata"], **document["metadata"]}
            document["kind"] = kind.kind
            self._sanitize(kind, document)
            document["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            if document == old or dry_run:
                return copy.deepcopy(document)
            return copy.deepcopy(self._store(kind, key, document, "MODIFIED"))

    def edit(self, resource: str, name: str, edit: Callable[[Document], None], namespace: str = "") -> None:
        """Change an object as somebody else would."""
        kind = kind_of(resource)
        document = self.get(kind, namespace, name)
        edit(document)
        del document["metadata"]["resourceVersion"]
        self.replace(kind, document)

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        """Delete an object as somebody else would."""
        self.delete(kind_of(resource), namespace, name)

    def delete(self, kind: Kind, namespace: str, name: str, preconditions: Mapping[str, str] | None = None) -> None:
        with self.changed:
            old = self._find(kind, namespace, name)
            self._check(kind, old, preconditions or {})
            del self._objects[kind.resource, namespace, name]
            self.version += 1
            gone = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
            self.history.append(Change(self.version, kind, "DELETED", gone))
            self.changed.notify_all()

    def apply_status(self, kind: Kind, document: Document, manager: str, *, force: bool) -> Document:
        """Server-side apply of `status.devices`."""
        with self.changed:
            key = self._key(kind, document)
            old = self._find(kind, *key[1:])
            self._check(kind, old, {"uid": document["metadata"].get("uid", "")})
            uid = old["metadata"]["uid"]
            entries = {_device_key(one): one for one in document.get("status", {}).get("devices", ())}
            for device in entries.keys() - _allocated(old):
                raise Refusal(422, "Invalid", f"status.devices: {device} is not allocated", key[2])
            before = {_device_key(one): one for one in old.get("status", {}).get("devices", ())}
            others = {who: keys for (claim, who), keys in self._applied.items() if claim == uid and who != manager}
            for who, keys in others.items():
                if not force and any(before.get(one) != entries[one] for one in keys & entries.keys()):
                    raise Refusal(409, "Conflict", f'Apply failed with 1 conflict: conflict with "{who}"', key[2])
            mine = self._applied.get((uid, manager), set())
            kept = {one: entry for one, entry in before.items() if one not in mine - entries.keys()}
            self._applied[uid, manager] = set(entries)
            new = copy.deepcopy(old)
            new.setdefault("status", {})["devices"] = list({**kept, **copy.deepcopy(entries)}.values())
            if not new["status"]["devices"]:
                del new["status"]["devices"]
            if new == old:
                return copy.deepcopy(old)
            return copy.deepcopy(self._store(kind, key, new, "MODIFIED"))

    # --- how ---

    def _find(self, kind: Kind, namespace: str, name: str) -> Document:
        try:
            return self._objects[kind.resource, namespace, name]
        except KeyError:
            where = f"{kind.resource}.{kind.group}" if kind.group else kind.resource
            raise Refusal(404, "NotFound", f'{where} "{name}" not found', name) from None

    @staticmethod
    def _check(kind: Kind, old: Document, wanted: Mapping[str, Any]) -> None:
        for field in ("uid", "resourceVersion"):
            if wanted.get(field) and wanted[field] != old["metadata"][field]:
                name = old["metadata"]["name"]
                raise Refusal(
                    409, "Conflict", f'Operation cannot be fulfilled on {kind.resource} "{name}": {field} differs', name
                )

    def _key(self, kind: Kind, document: Document) -> tuple[str, str, str]:
        metadata = document["metadata"]
        return kind.resource, metadata.get("namespace", "") if kind.namespaced else "", metadata["name"]

    def _store(self, kind: Kind, key: tuple[str, str, str], document: Document, change: str) -> Document:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = document
        self.history.append(Change(self.version, kind, change, copy.deepcopy(document)))
        self.changed.notify_all()
        return document

    def _suffix(self) -> str:
        return "".join(self._random.choices(_ALPHABET, k=5))

    def _sanitize(self, kind: Kind, document: Document) -> None:
        """Refuse what validation refuses, drop what gates drop, fill in what the server fills in."""
        if kind.resource != "resourceslices":
            return
        spec = document["spec"]
        devices = spec.get("devices", [])
        if len(devices) > 128:
            raise Refusal(422, "Invalid", f"spec.devices: Too many: {len(devices)}: must have at most 128 items")
        for device in devices:
            if "DRAConsumableCapacity" in self.gates_off:
                device.pop("allowMultipleAllocations", None)
                for capacity in device.get("capacity", {}).values():
                    capacity.pop("requestPolicy", None)
            if "DRADeviceTaints" in self.gates_off:
                device.pop("taints", None)
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", "2026-01-01T00:00:00Z")


def kind_of(resource: str) -> Kind:
    """The kind of that resource."""
    return next(kind for kind in KINDS if kind.resource == resource)


def served(kind: Kind, document: Document, version: str) -> Document:
    """An object in a version of its group's API."""
    if kind.group != "resource.k8s.io":
        return {**document, "apiVersion": f"{kind.group}/{version}" if kind.group else version, "kind": kind.kind}
    converted = from_v1({**document, "kind": kind.kind}, version)
    requests = (
        converted.get("spec", {}).get("devices", {}).get("requests") if kind.resource == "resourceclaims" else None
    )
    if version == "v1beta1" and requests:
        flat = [{**{k: v for k, v in one.items() if k != "exactly"}, **one.get("exactly", {})} for one in requests]
        converted["spec"] = {**converted["spec"], "devices": {**converted["spec"]["devices"], "requests": flat}}
    return converted


def stored(document: Document) -> Document:
    """An object of any version as it is kept."""
    return to_v1(document)


def _device_key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(field, "")) for field in ("driver", "device", "pool", "shareID"))


def _allocated(claim: Document) -> set[tuple[str, ...]]:
    allocation = claim.get("status", {}).get("allocation") or {}
    return {_device_key(one) for one in allocation.get("devices", {}).get("results", ())}
