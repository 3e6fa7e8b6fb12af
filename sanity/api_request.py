"""Requests to the stand-in API server: a path, a verb and options, and the answer from the objects that it keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dranode.api.documents import API_GROUP
from dranode.sanity.kinds import KINDS, KubeDocument, ResourceKind, kind_at, served, stored
from dranode.sanity.objects import Objects, StatusError

_NOT_FOUND: Final = "404 page not found"
_APPLY: Final = "application/apply-patch+yaml"
_MERGES: Final = ("application/merge-patch+json", "application/strategic-merge-patch+json")
_WRITTEN: Final = ("application/json", "application/vnd.kubernetes.protobuf", "")


@dataclass(frozen=True)
class ApiRequest:
    """The objects that a method and a path ask for.

    Attributes:
        kind: the resource; None for the server's answers about itself.
        part: the subresource (`status`), or empty.
    """

    method: str
    path: str
    version: str = ""
    kind: ResourceKind | None = None
    group: str = ""
    namespace: str = ""
    name: str = ""
    part: str = ""

    @property
    def the_kind(self) -> ResourceKind:
        """Return the kind of a request for a resource."""
        if self.kind is None:
            raise StatusError(404, "", _NOT_FOUND)
        return self.kind

    @property
    def group_version(self) -> str:
        """`resource.k8s.io/v1`, or `v1` of the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @classmethod
    def parse(cls, method: str, path: str, versions: tuple[str, ...]) -> ApiRequest:
        """Parse a path; `versions` are those of resource.k8s.io.

        Raises:
            StatusError: the server has no such path.
        """
        segments = path.strip("/").split("/")
        if segments[0] not in ("api", "apis"):
            return cls(method, path)
        group, rest = ("", segments[1:]) if segments[0] == "api" else ("".join(segments[1:2]), segments[2:])
        if not rest:
            return cls(method, path, group=group)
        version, *rest = rest
        if group == API_GROUP and version not in versions:
            raise StatusError(404, "", _NOT_FOUND)
        if not rest:
            return cls(method, path, version, group=group)
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:  # noqa: PLR2004 - namespaces/<name>/<resource>
            namespace, rest = rest[1], rest[2:]
        name, part = (*rest[1:], "", "")[:2]
        return cls(
            method, path, version, kind_at(group, rest[0], namespaced=bool(namespace)), group, namespace, name, part
        )

    def answer(  # noqa: PLR0911 - one line a verb
        self, objects: Objects, versions: tuple[str, ...], query: Mapping[str, str], body: Any, media: str
    ) -> KubeDocument:
        """Carry the request out.

        Raises:
            StatusError: it is refused.
        """
        if self.kind is None:
            return self._about(versions)
        kind, dry_run = self.kind, query.get("dryRun") == "All"
        if self.method in ("POST", "PUT") and not media.startswith(_WRITTEN):
            raise StatusError(415, "UnsupportedMediaType", f"the body is {media}")
        match self.method:
            case "GET" if self.name:
                return self._served(objects.get(kind, self.namespace, self.name))
            case "GET":
                return self._list(objects, query)
            case "POST":
                space = {"namespace": self.namespace} if kind.namespaced else {}
                document = {**stored(body), "metadata": {**body.get("metadata", {}), **space}}
                return self._served(objects.create(kind, document, dry_run=dry_run))
            case "PUT":
                return self._served(objects.replace(kind, self._whole(objects, stored(body)), dry_run=dry_run))
            case "DELETE" if self.name:
                objects.delete(kind, self.namespace, self.name, ((body or {}).get("preconditions")))
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            case "DELETE":
                return self._delete_collection(objects, query)
            case _:
                return self._served(self._patch(objects, query, body, media))

    def _served(self, document: KubeDocument) -> KubeDocument:
        return served(self.the_kind, document, self.version)

    def _list(self, objects: Objects, query: Mapping[str, str]) -> KubeDocument:
        fields, labels = selection(query.get("fieldSelector", "")), labeled(query.get("labelSelector", ""))
        version, items = objects.select(self.the_kind, self.namespace, lambda one: fields(one) and labels(one))
        # Items of a list have no kind and apiVersion.
        bare = [
            {key: value for key, value in self._served(item).items() if key not in ("apiVersion", "kind")}
            for item in items
        ]
        metadata = {"resourceVersion": str(version)}
        kind = f"{self.the_kind.kind}List"
        return {"kind": kind, "apiVersion": self.group_version, "metadata": metadata, "items": bare}

    def _delete_collection(self, objects: Objects, query: Mapping[str, str]) -> KubeDocument:
        kind = self.the_kind
        for document in objects.select(kind, self.namespace, selection(query.get("fieldSelector", "")))[1]:
            objects.delete(kind, document["metadata"].get("namespace", ""), document["metadata"]["name"])
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _whole(self, objects: Objects, document: KubeDocument) -> KubeDocument:
        """Return the object to store; a PUT of a status leaves the rest unchanged."""
        document["metadata"] = {**document.get("metadata", {}), "name": self.name}
        if self.the_kind.namespaced:
            document["metadata"]["namespace"] = self.namespace
        if self.part != "status":
            return document
        old = objects.get(self.the_kind, self.namespace, self.name)
        version = document["metadata"].get("resourceVersion") or old["metadata"]["resourceVersion"]
        metadata = {**old["metadata"], "resourceVersion": version}
        return {**old, "metadata": metadata, "status": document.get("status", {})}

    def _patch(self, objects: Objects, query: Mapping[str, str], body: Any, media: str) -> KubeDocument:
        kind = self.the_kind
        if media.startswith(_MERGES):
            old = objects.get(kind, self.namespace, self.name)
            return objects.replace(kind, _merged(old, body))
        if not media.startswith(_APPLY) or self.part != "status" or not query.get("fieldManager"):
            message = f"this server applies status, merges patches, and was sent {media}"
            raise StatusError(415, "UnsupportedMediaType", message)
        document = {**stored(body), "metadata": {**body["metadata"], "namespace": self.namespace, "name": self.name}}
        return objects.apply_status(kind, document, query["fieldManager"], force=query.get("force") == "true")

    def _about(self, versions: tuple[str, ...]) -> KubeDocument:
        if self.path.startswith("/version"):
            return {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
        if self.version:
            return _resources(self.group, self.version)
        if self.path.rstrip("/") == "/api":
            return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
        if self.path.rstrip("/") == "/apis":
            groups = [_group(group, versions) for group in sorted({kind.group for kind in KINDS if kind.group})]
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [group for group in groups if group["versions"]],
            }
        document = _group(self.group, versions)
        if not self.group or not document["versions"]:
            raise StatusError(404, "", _NOT_FOUND)
        return {"kind": "APIGroup", "apiVersion": "v1", **document}


def selection(selector: str, namespace: str = "") -> Callable[[KubeDocument], bool]:
    """Return whether an object matches a field selector and is in a namespace, if one is given."""
    pairs = [pair.replace("==", "=").split("=", 1) for pair in selector.split(",") if pair]

    def matches(document: KubeDocument) -> bool:
        if namespace and document["metadata"].get("namespace") != namespace:
            return False
        return all(_field(document, path) == value for path, value in pairs)

    return matches


def labeled(selector: str) -> Callable[[KubeDocument], bool]:
    """Return whether an object matches a label selector that has only equalities."""
    pairs = [pair.replace("==", "=").split("=", 1) for pair in selector.split(",") if pair]

    def matches(document: KubeDocument) -> bool:
        labels = document["metadata"].get("labels") or {}
        return all(labels.get(key) == value for key, value in pairs)

    return matches


def _field(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document.get(key, "") if isinstance(document, dict) else ""
    return document


def _group(group: str, versions: tuple[str, ...]) -> KubeDocument:
    served_versions = versions if group == API_GROUP else ("v1",)
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in served_versions]
    return {"name": group, "versions": listed, **({"preferredVersion": listed[0]} if listed else {})}


def _resources(group: str, version: str) -> KubeDocument:
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    resources = [
        {"name": kind.resource, "kind": kind.kind, "namespaced": kind.namespaced, "singularName": "", "verbs": verbs}
        for kind in KINDS
        if kind.group == group
    ]
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _merged(old: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
