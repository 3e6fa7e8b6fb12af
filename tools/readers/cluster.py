"""Reads what the API server says about the driver: its rights, classes, slices and node.

Nothing is changed. Slices are sent as a dry run. Rights are checked by a SelfSubjectAccessReview, or, if this does not
run as the driver's account, by a SubjectAccessReview about that account.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar

from dranode.api.documents import API_GROUP, decode, encode, to_v1
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import ResourceClaim, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.driver.claims.plugin import Plugin
from dranode.driver.kube.client import APIRequest, best_version, from_v1
from dranode.driver.kube.errors import NO_ANSWER, ApiError
from dranode.driver.kube.http1 import Outgoing, Wire
from dranode.driver.kube.server import UnreachableError
from dranode.driver.slices.storable import dropped_fields
from dranode.show.cluster_objects import ApiObjects
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules
from dranode.tools.diagnosis.facts import ClusterFacts, PublishedSlice, Right, ServeOptions
from dranode.tools.diagnosis.live_objects import LiveNode, LivePod

T = TypeVar("T")

_SECONDS: Final = 5.0
_RIGHTS: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
# The server turns the request down, or nobody answers it.
_REFUSALS: Final = (*_RIGHTS, HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, NO_ANSWER)
# The rights that the driver needs, as in deploy/rbac.yaml.
RIGHTS: Final = (
    *(Right(verb, "resourceslices") for verb in ("list", "watch", "create", "update", "delete")),
    Right("get", "resourceclaims"),
    Right("patch", "resourceclaims/status"),
    Right("get", "nodes", ""),
    Right("create", "events", "events.k8s.io"),
)


class Sender(Protocol):
    """The part of `dranode.driver.kube.client.Client` that sends requests."""

    def send(self, request: APIRequest, *, seconds: float = ...) -> Any:
        """Send a request and return the answer.

        Raises:
            ApiError: the request fails.
        """


def read_cluster(
    api: Sender, options: ServeOptions, plugins: Sequence[Plugin], account: str = ""
) -> tuple[ClusterFacts, str, list[str]]:
    """Return the API server's facts, the node's runtime by its Node object, and what could not be asked.

    Args:
        api: the server.
        options: the options of `serve`.
        plugins: the drivers; one device of each is published as a dry run.
        account: `<namespace>:<name>` of the driver's service account; empty if this runs as that account.
    """
    unseen: list[str] = []
    refused: list[str] = []

    def ask(what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except ApiError as error:
            # What somebody else may not look at says nothing of the driver's account.
            ours = not account or error.status not in _RIGHTS
            (refused if error.status in _REFUSALS and ours else unseen).append(f"{what}: {error}")
            return None

    versions = ask("the API server", lambda: server_versions(api))
    if versions is None:
        return ClusterFacts(refused=tuple(refused)), "", unseen
    root = f"/apis/{API_GROUP}/{best_version(versions)}"
    node = ask(f"the Node {options.node}", lambda: _node(api, options.node))
    info = _info(node)
    served = best_version(versions) is not None
    classes = ask("the DeviceClasses", lambda: _classes(api, root, options.drivers)) if served else None
    return (
        ClusterFacts(
            versions=versions,
            account=account,
            denied=ask("the driver's rights", lambda: tuple(_denied(api, options, account))),
            dropped=ask("what the server drops", lambda: _dropped(api, root, options, plugins)) if served else None,
            missing_classes=None if classes is None else tuple(name for name in options.drivers if name not in classes),
            classes=tuple(classes.values()) if classes is not None else (),
            node=None if node is None else bool(node),
            kubelet=kubelet_version(info.get("kubeletVersion", "")),
            extended=extended_resources(_status(node).get("allocatable")),
            slices=ask("the ResourceSlices", lambda: _slices(api, root, options)) if served else None,
            refused=tuple(refused),
        ),
        str(info.get("containerRuntimeVersion", "")),
        unseen,
    )


def extended_resources(allocatable: Any) -> tuple[str, ...]:
    """Return the extended resources that a Node has, according to its `status.allocatable`."""
    amounts = allocatable.items() if isinstance(allocatable, Mapping) else ()
    return tuple(sorted(name for name, amount in amounts if "/" in name and str(amount) != "0"))


def _status(node: Any) -> dict[str, Any]:
    status = node.get("status") if isinstance(node, dict) else None
    return status if isinstance(status, dict) else {}


def _info(node: Any) -> dict[str, Any]:
    """Return kubelet's `nodeInfo`; empty if kubelet has not reported it yet."""
    info = _status(node).get("nodeInfo")
    return info if isinstance(info, dict) else {}


def _get(api: Sender, path: str, what: str, **query: str) -> Any:
    return api.send(APIRequest("GET", path, what, query), seconds=_SECONDS)


def _object(question: Callable[[], Any]) -> Any:
    """Return an object, or nothing if the server says that it does not exist; any other 404 is no answer."""
    try:
        answer = question()
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND and error.of_object:
            return {}
        raise
    if not isinstance(answer, dict) or not answer.get("metadata"):
        raise _unclear()
    return answer


def _unclear() -> ApiError:
    return ApiError("the answer is not in the form of an API server's; check the server's address", HTTPStatus.OK)


def _member(answer: Any, name: str, kind: type[T]) -> T:
    """Return a member that every answer of its kind has.

    Raises:
        ApiError: it is missing or of another type, so the answer is not usable.
    """
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise _unclear()
    return value


def server_versions(api: Sender) -> tuple[str, ...]:
    """Return the versions of `resource.k8s.io` that the server offers.

    Raises:
        ApiError: it does not say.
    """
    try:
        group = _get(api, f"/apis/{API_GROUP}", f"discover {API_GROUP}")
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        # A server without the group lists the groups that it has; anything else is no API server.
        groups = _member(_get(api, "/apis", "discover API groups"), "groups", list)
        if any(_member(entry, "name", str) == API_GROUP for entry in groups):
            raise
        return ()
    return tuple(str(_member(entry, "version", str)) for entry in _member(group, "versions", list))


def _node(api: Sender, name: str) -> dict[str, Any]:
    node: dict[str, Any] = _object(lambda: _get(api, f"/api/v1/nodes/{name}", "get nodes"))
    return node


def kubelet_version(text: str) -> tuple[int, ...] | None:
    """Return a version as kubelet reports it (`v1.37.1`, `v1.34.1+k3s1`) as numbers; None if it is none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(number) for number in found.groups() if number is not None) if found else None


def _denied(api: Sender, options: ServeOptions, account: str) -> Iterator[Right]:
    drivers = (Right("associated-node:patch", f"resourceclaims/driver/{driver}") for driver in options.drivers)
    for right in (*RIGHTS, *drivers):
        resource, _, rest = right.resource.partition("/")
        sub, _, name = rest.partition("/")
        asked = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": sub, "name": name}
        attributes = {key: value for key, value in asked.items() if value}
        review = "SubjectAccessReview" if account else "SelfSubjectAccessReview"
        spec: dict[str, Any] = {"resourceAttributes": attributes}
        if account:
            namespace = account.partition(":")[0]
            spec["user"] = f"system:serviceaccount:{account}"
            spec["groups"] = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": review, "spec": spec}
        path = f"/apis/authorization.k8s.io/v1/{review.lower()}s"
        answer = api.send(APIRequest("POST", path, f"create {review.lower()}s", {}, body), seconds=_SECONDS)
        if not _member(_member(answer, "status", dict), "allowed", bool):
            yield right


def _dropped(api: Sender, root: str, options: ServeOptions, plugins: Sequence[Plugin]) -> tuple[str, ...]:
    gates: set[str] = set()
    for plugin in plugins:
        spec = ResourceSliceSpec(
            driver=plugin.driver,
            node_name=options.node,
            pool=ResourcePool(name=options.node),
            devices=plugin.discover().devices[:1],
        )
        document = {"kind": "ResourceSlice", "metadata": {"generateName": "dranode-doctor-"}, "spec": encode(spec)}
        body = from_v1(document, root.rpartition("/")[2])
        request = APIRequest("POST", f"{root}/resourceslices", "create resourceslices", {"dryRun": "All"}, body)
        returned = _slice(api.send(request, seconds=_SECONDS))
        if returned.spec.driver != spec.driver or not returned.spec.devices:
            raise _unclear()
        gates |= set(dropped_fields(spec, returned.spec))
    return tuple(sorted(gates))


def _classes(api: Sender, root: str, drivers: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the classes that are called like the drivers, and all others where they may be listed, by name."""
    about = {"apiVersion": root.removeprefix("/apis/"), "kind": "DeviceClass"}
    try:
        listed = _member(_get(api, f"{root}/deviceclasses", "list deviceclasses"), "items", list)
    except ApiError as error:
        # The driver's own account may get its classes alone.
        if error.status not in _RIGHTS:
            raise
        listed = []
    classes = {str(item["metadata"]["name"]): {**item, **about} for item in listed}
    for driver in drivers:
        found = _object(lambda name=driver: _get(api, f"{root}/deviceclasses/{name}", "get deviceclasses"))  # type: ignore[misc] # bound at once
        if found:
            classes[driver] = {**found, **about}
    return classes


def _slices(api: Sender, root: str, options: ServeOptions) -> tuple[PublishedSlice, ...]:
    answer = _get(api, f"{root}/resourceslices", "list resourceslices", fieldSelector=f"spec.nodeName={options.node}")
    if not isinstance(answer, dict) or "items" not in answer:
        raise _unclear()
    slices = [_slice(published) for published in answer["items"] or ()]
    return tuple(published_slice(slice_) for slice_ in slices if slice_.spec.driver in options.drivers)


def published_slice(entry: ResourceSlice) -> PublishedSlice:
    """Return what the rules ask of a slice."""
    return PublishedSlice(entry.metadata.name, entry.spec.driver, entry.spec.pool.name, len(entry.spec.devices))


def _slice(document: Any) -> ResourceSlice:
    try:
        return decode(ResourceSlice, to_v1(document))
    except (DocumentError, AttributeError, TypeError) as error:
        raise _unclear() from error


@dataclass(frozen=True, slots=True)
class ClusterLists:
    """The objects of a cluster. Each method raises ApiError if the server does not answer, or not so."""

    objects: ApiObjects

    def slices(self, selector: str = "", node: str = "") -> tuple[ResourceSlice, ...]:
        """Return the slices with these labels, or of one node."""
        return self._all(
            ResourceSlice, "ResourceSlice", "", selector, fieldSelector=f"spec.nodeName={node}" if node else ""
        )

    def claims(self, namespace: str = "", selector: str = "") -> tuple[ResourceClaim, ...]:
        """Return the claims with these labels, of all namespaces for an empty one."""
        return self._all(ResourceClaim, "ResourceClaim", namespace, selector)

    def pending_pods(self, namespace: str = "") -> tuple[LivePod, ...]:
        """Return the pods that have not started, of all namespaces for an empty one."""
        return self._all(LivePod, "Pod", namespace, fieldSelector="status.phase=Pending")

    def nodes(self, selector: str = "") -> tuple[LiveNode, ...]:
        """Return the nodes with these labels."""
        return self._all(LiveNode, "Node", "", selector)

    def rules(self) -> tuple[DeviceTaintRule, ...]:
        """Return the DeviceTaintRules; none of a server that does not have them."""
        documents = self.objects.documents("DeviceTaintRule")
        try:
            return taint_rules(SourceDocument("the API server", *each) for each in enumerate(documents))
        except DocumentError as error:
            raise ApiError(str(error)) from error

    def _all(self, into: type[T], kind: str, namespace: str, selector: str = "", **query: str) -> tuple[T, ...]:
        asked = {"labelSelector": selector, **query}
        return self.objects.values(into, kind, namespace, **{key: value for key, value in asked.items() if value})


@dataclass(frozen=True, slots=True)
class Unseen:
    """The lists that could not be read.

    Attributes:
        sentences: one for each kind.
    """

    sentences: list[str] = field(default_factory=list)

    def unless_refused(self, without: str, listing: Future[T]) -> T | None:
        """Return what was listed; None if it could not be, with the sentence that `without` begins."""
        try:
            return listing.result()
        except ApiError as error:
            self.sentences.append(f"{without}: {error}")
            return None


# Every HTTP answer has the time of the API server's clock in a header (RFC 9110, section 6.6.1).


def clock_skew(wire: Wire, clock: Callable[[], float] = time.time) -> int | None:
    """By how many seconds the server's clock is ahead of this one; None if it does not say."""
    before = clock()
    try:
        answer = wire.send(Outgoing("GET", "/version", {"Accept": "application/json"}, 5.0))
    except UnreachableError:
        return None
    after = clock()
    try:
        there = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None
    # The header has whole seconds, of some moment between sending and receiving.
    if before - 1 <= there <= after:
        return 0
    return round(there - before) if there < before else round(there - after)
