"""Stores the objects of an API server, with resource versions, a history for watches, and the rules for writes.

It behaves like kube-apiserver as far as a node driver can see: generated names, optimistic locking, preconditions of
deletes, server-side apply of `status.devices` (a map list by driver, device, pool and share), history that is forgotten
(410), slices that are refused (422), and fields of feature gates that are off, dropped without a word. Objects are kept
as v1; `dranode.sanity.kinds` serves them in any version.
"""

import copy
import random
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dranode.sanity.kinds import KubeDocument, ResourceKind, kind_of
from dranode.sanity.slice_rules import slice_refusals

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE: Final = 58
_HISTORY: Final = 2000
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_CREATED: Final = "2026-01-01T00:00:00Z"

_DROPPED: Final[Mapping[str, tuple[str, ...]]] = {
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRADeviceTaints": ("taints",),
    "DRAPartitionableDevices": ("consumesCounters",),
    "DRADeviceBindingConditions": ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
    "DRANodeAllocatableResources": ("nodeAllocatableResources",),
}


class StatusError(Exception):
    """An answer that is not a success.

    Attributes:
        status: the HTTP status.
        reason: the API's reason; empty for an answer that is not a Status document.
        name: the object's name, if there is one.
    """

    def __init__(self, status: int, reason: str, message: str, name: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.name = name

    def document(self) -> KubeDocument:
        """Return the Status that the API answers."""
        details = {"name": self.name} if self.name else {}
        return {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": str(self),
            "reason": self.reason, "code": self.status, "details": details,
        }  # fmt: skip


@dataclass(frozen=True)
class ObjectChange:
    """A change in the history."""

    version: int
    kind: ResourceKind
    type: str
    document: KubeDocument


class Objects:
    """All objects. Every method may be called from any thread.

    Attributes:
        gates_off: the feature gates whose fields of slices are dropped.
        changed: is notified of every change.
    """

    def __init__(self, gates_off: Iterable[str] = ()) -> None:
        self.gates_off = set(gates_off)
        self.changed = threading.Condition()
        self.version = 100
        self.history: list[ObjectChange] = []
        self.forgotten = 0
        self._objects: dict[tuple[str, str, str], KubeDocument] = {}
        self._applied: dict[tuple[str, str], set[tuple[str, ...]]] = {}
        self._random = random.Random(7)  # noqa: S311 - names, not secrets

    # --- reading ---

    def get(self, kind: ResourceKind, namespace: str, name: str) -> KubeDocument:
        """Return an object.

        Raises:
            StatusError: there is none.
        """
        with self.changed:
            return copy.deepcopy(self._find(kind, namespace, name))

    def select(
        self, kind: ResourceKind, namespace: str = "", matches: Callable[[KubeDocument], bool] = bool
    ) -> tuple[int, list[Any]]:
        """Return the version, and the objects of a kind that match, in the order of their names."""
        with self.changed:
            selected = [
                copy.deepcopy(document)
                for (resource, space, _), document in sorted(self._objects.items())
                if resource == kind.resource and namespace in ("", space) and matches(document)
            ]
            return self.version, selected

    def all(self, resource: str) -> list[KubeDocument]:
        """Return every object of a resource."""
        return self.select(kind_of(resource))[1]

    def since(self, kind: ResourceKind, version: int) -> list[ObjectChange]:
        """Return the history after a version; to be called under `changed`.

        Raises:
            StatusError: the version is forgotten (410).
        """
        if version < self.forgotten:
            raise StatusError(410, "Expired", f"too old resource version: {version} ({self.forgotten})")
        return [change for change in self.history if change.kind == kind and change.version > version]

    def forget(self) -> None:
        """Forget the history, as compaction does."""
        with self.changed:
            self.forgotten = self.version
            self.history.clear()

    # --- writing ---

    def create(self, kind: ResourceKind, document: KubeDocument, *, dry_run: bool = False) -> KubeDocument:
        """Create an object; generate its name if it has only generateName.

        Raises:
            StatusError: the object exists, or is invalid.
        """
        with self.changed:
            document = copy.deepcopy(document)
            metadata = document.setdefault("metadata", {})
            if not metadata.get("name"):
                metadata["name"] = self._generated(str(metadata.get("generateName", "")))
            key = self._key(kind, document)
            if key in self._objects:
                raise StatusError(409, "AlreadyExists", f'{kind.resource} "{key[2]}" already exists', key[2])
            metadata.setdefault("uid", str(uuid.UUID(int=self._random.getrandbits(128))))
            metadata["creationTimestamp"] = _CREATED
            document["kind"] = kind.kind
            self._sanitize(kind, document)
            return copy.deepcopy(document if dry_run else self._store(kind, key, document, "ADDED"))

    def replace(self, kind: ResourceKind, document: KubeDocument, *, dry_run: bool = False) -> KubeDocument:
        """Replace an object; metadata that is missing stays.

        Raises:
            StatusError: there is none, it has another version, or the new one is invalid.
        """
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

    def edit(self, resource: str, name: str, edit: Callable[[KubeDocument], None], namespace: str = "") -> None:
        """Change an object as somebody else would."""
        kind = kind_of(resource)
        document = self.get(kind, namespace, name)
        edit(document)
        del document["metadata"]["resourceVersion"]
        self.replace(kind, document)

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        """Delete an object as somebody else would."""
        self.delete(kind_of(resource), namespace, name)

    def delete(
        self, kind: ResourceKind, namespace: str, name: str, preconditions: Mapping[str, str] | None = None
    ) -> None:
        """Delete an object.

        Raises:
            StatusError: there is none, or the preconditions do not hold.
        """
        with self.changed:
            old = self._find(kind, namespace, name)
            self._check(kind, old, preconditions or {})
            del self._objects[kind.resource, namespace if kind.namespaced else "", name]
            self.version += 1
            gone = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
            self._record(ObjectChange(self.version, kind, "DELETED", gone))

    def apply_status(self, kind: ResourceKind, document: KubeDocument, manager: str, *, force: bool) -> KubeDocument:
        """Server-side apply of `status.devices`.

        Raises:
            StatusError: there is no such object, a device is not allocated, or a field belongs to another manager.
        """
        with self.changed:
            key = self._key(kind, document)
            old = self._find(kind, *key[1:])
            self._check(kind, old, {"uid": document["metadata"].get("uid", "")})
            uid = old["metadata"]["uid"]
            entries = {_device_key(entry): entry for entry in document.get("status", {}).get("devices", ())}
            for device in entries.keys() - _allocated(old):
                raise StatusError(422, "Invalid", f"status.devices: {device} is not allocated", key[2])
            before = {_device_key(entry): entry for entry in old.get("status", {}).get("devices", ())}
            others = {who: keys for (claim, who), keys in self._applied.items() if claim == uid and who != manager}
            for who, keys in others.items():
                if not force and any(before.get(device) != entries[device] for device in keys & entries.keys()):
                    message = f'Apply failed with 1 conflict: conflict with "{who}"'
                    raise StatusError(409, "Conflict", message, key[2])
            mine = self._applied.get((uid, manager), set())
            kept = {device: entry for device, entry in before.items() if device not in mine - entries.keys()}
            self._applied[uid, manager] = set(entries)
            new = copy.deepcopy(old)
            new.setdefault("status", {})["devices"] = list({**kept, **copy.deepcopy(entries)}.values())
            if not new["status"]["devices"]:
                del new["status"]["devices"]
            if new == old:
                return copy.deepcopy(old)
            return copy.deepcopy(self._store(kind, key, new, "MODIFIED"))

    # --- internals ---

    def _find(self, kind: ResourceKind, namespace: str, name: str) -> KubeDocument:
        try:
            return self._objects[kind.resource, namespace if kind.namespaced else "", name]
        except KeyError:
            where = f"{kind.resource}.{kind.group}" if kind.group else kind.resource
            raise StatusError(404, "NotFound", f'{where} "{name}" not found', name) from None

    @staticmethod
    def _check(kind: ResourceKind, old: KubeDocument, expected: Mapping[str, Any]) -> None:
        for field in ("uid", "resourceVersion"):
            if expected.get(field) and expected[field] != old["metadata"][field]:
                name = old["metadata"]["name"]
                message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {field} differs'
                raise StatusError(409, "Conflict", message, name)

    @staticmethod
    def _key(kind: ResourceKind, document: KubeDocument) -> tuple[str, str, str]:
        metadata = document["metadata"]
        return kind.resource, metadata.get("namespace", "") if kind.namespaced else "", metadata["name"]

    def _store(
        self, kind: ResourceKind, key: tuple[str, str, str], document: KubeDocument, change: str
    ) -> KubeDocument:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = document
        self._record(ObjectChange(self.version, kind, change, copy.deepcopy(document)))
        return document

    def _record(self, change: ObjectChange) -> None:
        """Add to the history, whose beginning is forgotten once it is long, as it is by a real server."""
        self.history.append(change)
        if len(self.history) > _HISTORY:
            self.forgotten = self.history[_HISTORY // 2].version
            del self.history[: _HISTORY // 2 + 1]
        self.changed.notify_all()

    def _generated(self, base: str) -> str:
        if _SUBDOMAIN.fullmatch(base.removesuffix("-")) is None:
            message = f'metadata.generateName: Invalid value: "{base}": a lowercase RFC 1123 subdomain'
            raise StatusError(422, "Invalid", message)
        return base[:_LONGEST_BASE] + "".join(self._random.choices(_ALPHABET, k=5))

    def _sanitize(self, kind: ResourceKind, document: KubeDocument) -> None:
        """Refuse an invalid object, drop fields of disabled gates, and fill in the server's fields."""
        if kind.resource != "resourceslices":
            return
        if problems := slice_refusals(document):
            raise StatusError(422, "Invalid", "; ".join(problems), document["metadata"]["name"])
        if "DRAPartitionableDevices" in self.gates_off:
            document["spec"].pop("sharedCounters", None)
        for device in document["spec"].get("devices") or ():
            for gate in self.gates_off:
                for field in _DROPPED.get(gate, ()):
                    device.pop(field, None)
            if "DRAConsumableCapacity" in self.gates_off:
                for capacity in device.get("capacity", {}).values():
                    capacity.pop("requestPolicy", None)
            for taint in device.get("taints") or ():
                taint.setdefault("timeAdded", _CREATED)


def _device_key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(field, "")) for field in ("driver", "device", "pool", "shareID"))


def _allocated(claim: KubeDocument) -> set[tuple[str, ...]]:
    allocation = claim.get("status", {}).get("allocation") or {}
    return {_device_key(result) for result in allocation.get("devices", {}).get("results", ())}
