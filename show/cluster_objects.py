"""Reads objects of an API server: one by its name, or all of a kind, page by page, and several kinds in parallel.

All commands that read a cluster use this module. A kind that the server refuses to list is an error, so that it is
never taken for an empty list.
"""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from dranode.api.documents import API_GROUP, API_VERSION, decode, decode_json, to_v1, without_nulls
from dranode.api.errors import DocumentError, UsageError
from dranode.api.manifests import SourceDocument
from dranode.api.names import is_dns_subdomain
from dranode.api.resource import APIDocument
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.errors import NO_ANSWER, ApiError
from dranode.driver.kube.http1 import MAX_BODY
from dranode.driver.process.threads import DaemonPool
from dranode.show.output import fail

T = TypeVar("T")

# The page size of kubectl.
_PAGE: Final = "500"
# If a list expires while it is read page by page, it is read again in one answer. 40,000 pods have 400 MB.
_MAX_LIST: Final = 1 << 30
_CORE: Final = "/api/v1"
# The path and the resource. An empty path means one of `ROOTS`, or resource.k8s.io in the version of the server.
RESOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "Node": (_CORE, "nodes"),
    "Pod": (_CORE, "pods"),
    "Event": (_CORE, "events"),
    "Namespace": (_CORE, "namespaces"),
    "Service": (_CORE, "services"),
    "ReplicationController": (_CORE, "replicationcontrollers"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    "ResourceSlice": ("", "resourceslices"),
    "DeviceClass": ("", "deviceclasses"),
    "ResourceClaim": ("", "resourceclaims"),
    "ResourceClaimTemplate": ("", "resourceclaimtemplates"),
    "DeviceTaintRule": ("", "devicetaintrules"),
    "PodGroup": ("", "podgroups"),
}
# Kinds that a server may lack, and whose versions differ from those of their group: DeviceTaintRule is v1 since 1.37.
ROOTS: Final[Mapping[str, tuple[str, ...]]] = {
    "DeviceTaintRule": tuple(f"/apis/{API_GROUP}/{version}" for version in ("v1", "v1beta2", "v1alpha3")),
    "PodGroup": tuple(f"/apis/scheduling.k8s.io/{version}" for version in ("v1beta1", "v1alpha3", "v1alpha2")),
}


class _PageMeta(APIDocument, frozen=True, kw_only=True):
    continue_: str = msgspec.field(default="", name="continue")


class _Page(APIDocument, Generic[T], frozen=True, kw_only=True):
    """A page of a list; Go encodes an empty list as null."""

    items: tuple[T, ...] | None
    api_version: str = ""
    metadata: _PageMeta = _PageMeta()


# Decodes an answer to its objects and the token of the next page, which is empty at the end.
_Reader: TypeAlias = Callable[[bytes], tuple[list[T], str]]


class _Place(msgspec.Struct, frozen=True):
    """One object, or all objects of a kind."""

    kind: str
    namespace: str = ""
    name: str = ""

    def request(self, root: str, resource: str, query: Mapping[str, str]) -> APIRequest:
        space, name = self.namespace, self.name
        for part in filter(None, (space, name)):
            # A part such as `..` or `a?b` would name another object or more of them.
            if not is_dns_subdomain(part):
                raise UsageError(f'"{part}" is no name in Kubernetes; these have lower-case letters, digits, - and .')
        path = f"{root}{f'/namespaces/{space}' if space else ''}/{resource}{f'/{name}' if name else ''}"
        action = f"{'get' if name else 'list'} {resource}{f' in namespace {space}' if space else ''}"
        return APIRequest("GET", path, action, query, most=MAX_BODY if name else _MAX_LIST)


class ApiObjects(msgspec.Struct, frozen=True):
    """The objects of an API server; thread-safe, so that several kinds can be listed in parallel.

    Each method raises ApiError if the server does not answer or refuses; `status` is 403 without permission. An empty
    parameter of a query means none.

    Attributes:
        client: the server.
        seconds: the timeout of one request; a page of a list takes long over a slow connection.
    """

    client: Client
    seconds: float = 60.0

    def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, converted to v1 if it is of `resource.k8s.io`; None if it does not exist."""
        try:
            answer = self._answer(_Place(kind, namespace, name), {}, None)
        except ApiError as error:
            # Any other 404 is about the API, not about the object.
            if error.status == HTTPStatus.NOT_FOUND and error.of_object:
                return None
            raise
        if not isinstance(answer, dict) or not isinstance(answer.get("metadata"), dict):
            raise _unclear(kind)
        return answer

    def documents(self, kind: str, namespace: str = "", **query: str) -> list[dict[str, Any]]:
        """Return all objects of a kind as plain documents, converted to v1; an empty namespace means all."""
        return self._listed(_Place(kind, namespace), query, lambda page: _documents(kind, page))

    def values(self, into: type[T], kind: str, namespace: str = "", **query: str) -> tuple[T, ...]:
        """Return all objects of a kind as values, decoded directly, which skips fields that the values do not have."""
        return tuple(self._listed(_Place(kind, namespace), query, lambda page: _values(into, kind, page)))

    def server_version(self) -> str:
        """Return the server's version (`v1.37.1`); empty if it is not in the answer."""
        answer = self.client.send(APIRequest("GET", "/version", "get /version"), seconds=self.seconds)
        return str(answer.get("gitVersion", "")) if isinstance(answer, dict) else ""

    def _listed(self, place: _Place, query: Mapping[str, str], read: _Reader[T]) -> list[T]:
        listed: list[T] = []
        query = {name: value for name, value in query.items() if value}
        more, pages = "", set[str]()
        while True:
            page = {**query, "limit": _PAGE, **({"continue": more} if more else {})}
            try:
                objects, more = read(self._answer(place, page, bytes))
            except ApiError as error:
                # The list has expired on the server. Read all objects in one answer, as client-go does.
                if error.status != HTTPStatus.GONE or not more:
                    raise
                objects, more = read(self._answer(place, query, bytes))
                if more:
                    raise ApiError(f"the API server returned only a part of the list of {place.kind}s") from error
                return objects
            listed += objects
            if not more:
                return listed
            if more in pages:
                raise ApiError(f"the API server's list of {place.kind}s does not end: it repeats a page")
            pages.add(more)

    def _answer(self, place: _Place, query: Mapping[str, str], read: Callable[[bytes], Any] | None) -> Any:
        root, resource = RESOURCES[place.kind]
        if place.kind in ROOTS:
            return self._in_some_version(place, resource, query, read)
        if root:
            return self.client.send(place.request(root, resource, query), seconds=self.seconds, read=read)

        def request(root: str, version: str) -> APIRequest:
            del version
            return place.request(root, resource, query)

        return self.client.resource(request, seconds=self.seconds, read=read)

    def _in_some_version(
        self, place: _Place, resource: str, query: Mapping[str, str], read: Callable[[bytes], Any] | None
    ) -> Any:
        """Return the answer in the newest version that has the kind; an empty list if the server lacks it."""
        for root in ROOTS[place.kind]:
            request = place.request(root, resource, query)
            try:
                return self.client.send(request, seconds=self.seconds, read=read)
            except ApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
        return b'{"items": []}'


def _documents(kind: str, page: bytes) -> tuple[list[dict[str, Any]], str]:
    try:
        page_of_list = decode_json(_Page[dict[str, Any]], page)
    except DocumentError as error:
        raise _unclear(kind) from error
    # The items of a list have neither kind nor apiVersion.
    version = page_of_list.api_version
    return [_v1(kind, {**item, "apiVersion": version, "kind": kind}) for item in page_of_list.items or ()], (
        page_of_list.metadata.continue_
    )


def _values(into: type[T], kind: str, page: bytes) -> tuple[list[T], str]:
    try:
        read = decode_json(_Page[into], page)  # type: ignore[valid-type] # a type that is passed
    except DocumentError:
        pass  # decode the items one by one below, which accepts nulls and names the object in an error
    else:
        if not read.api_version.startswith(API_GROUP) or read.api_version == API_VERSION:
            return list(read.items or ()), read.metadata.continue_
    documents, more = _documents(kind, page)
    return [value_of(into, kind, document) for document in documents], more


def value_of(into: type[T], kind: str, document: Mapping[str, Any]) -> T:
    """Return an object's document as a value.

    Raises:
        ApiError: it does not decode.
    """
    try:
        return decode(into, without_nulls(document))
    except DocumentError as error:
        name = document.get("metadata", {}).get("name", "")
        raise ApiError(f"the {kind} {name} cannot be read: {error}") from error


def _v1(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    try:
        return to_v1(document)
    except DocumentError as error:
        raise ApiError(
            f"a {kind} of the API server cannot be read: {error}; check that {API_GROUP} is Kubernetes' own"
        ) from error


def _unclear(kind: str) -> ApiError:
    return ApiError(f"the answer for {kind}s is not in the form of an API server's; check the server's address")


# How many kinds are listed in parallel, because most of the time is spent waiting for the server.
AT_A_TIME: Final = 4


def side_by_side() -> DaemonPool:
    """Return the threads that list kinds in parallel. Ctrl-C ends a command without waiting for their answers."""
    return DaemonPool("list", AT_A_TIME, fail)


class ReadCluster(msgspec.Struct, frozen=True):
    """The documents that an API server let be read.

    Attributes:
        documents: the objects.
        kinds: the kinds whose objects were all read, even if there are none.
        refused: why each other kind was not.
    """

    documents: tuple[SourceDocument, ...]
    kinds: frozenset[str]
    refused: Mapping[str, ApiError]


def cluster_documents(
    objects: ApiObjects, kinds: Mapping[str, Mapping[str, str]], origin: str, essential: Iterable[str] = ()
) -> ReadCluster:
    """Read all objects of some kinds.

    Args:
        objects: the cluster.
        kinds: the kinds with the parameters of their lists, for example a field selector.
        origin: the name of the cluster in messages.
        essential: the kinds without which nothing can be answered.

    Raises:
        ApiError: no kind could be read, or an essential one could not.
    """
    silences: list[ApiError] = []
    answered: list[str] = []

    def listed(kind: str, query: Mapping[str, str]) -> list[dict[str, Any]] | ApiError:
        # If the server did not answer at all, do not wait another minute for each kind.
        if silences and not answered:
            return silences[0]
        try:
            documents = objects.documents(kind, **query)
        except ApiError as error:
            if error.status == NO_ANSWER:
                silences.append(error)
            else:
                answered.append(kind)
            return error
        answered.append(kind)
        return documents

    with side_by_side() as pool:
        answers = dict(zip(kinds, pool.map(listed, kinds, kinds.values()), strict=True))
    refused = {kind: answer for kind, answer in answers.items() if isinstance(answer, ApiError)}
    if refused and len(refused) == len(answers):
        raise next(iter(refused.values()))
    for kind in essential:
        if kind in refused:
            raise refused[kind]
    read = [document for answer in answers.values() if not isinstance(answer, ApiError) for document in answer]
    return ReadCluster(
        tuple(SourceDocument(origin, index, document) for index, document in enumerate(read)),
        frozenset(answers.keys() - refused.keys()),
        refused,
    )
