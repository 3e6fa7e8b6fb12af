"""Reads the driver's rights, classes, slices and node from the API server.

Nothing is changed; slices are only sent as a dry run. Rights are checked with a SelfSubjectAccessReview, or with a
SubjectAccessReview if this does not run with the driver's service account.
"""

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
from dranode.api.resource import ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.driver.claims.plugin import Plugin
from dranode.driver.kube.client import APIRequest, best_version, from_v1
from dranode.driver.kube.errors import NO_ANSWER, ApiError
from dranode.driver.kube.http1 import Outgoing, Wire
from dranode.driver.kube.server import UnreachableError
from dranode.driver.slices.storable import dropped_fields
from dranode.tools.diagnosis.facts import ClusterFacts, PublishedSlice, Right, ServeOptions

T = TypeVar("T")

_SECONDS: Final = 5.0
_RIGHTS: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
# The server rejects the request, or does not answer.
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
    """Return the API server's facts, the node's runtime according to its Node, and sentences on what is unknown.

    Args:
        api: the server.
        options: the options of `serve`.
        plugins: the drivers; one device of each is published as a dry run.
        account: `<namespace>:<name>` of the driver's service account; empty if this runs with that account.
    """
    unseen: list[str] = []
    refused: list[str] = []

    def ask(subject: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except ApiError as error:
            # If another account lacks a right, that does not mean that the driver's account lacks it.
            concerns_driver = not account or error.status not in _RIGHTS
            sentences = refused if error.status in _REFUSALS and concerns_driver else unseen
            sentences.append(f"{subject}: {error}")
            return None

    versions = ask("the API server", lambda: server_versions(api))
    if versions is None:
        return ClusterFacts(refused=tuple(refused)), "", unseen
    root = f"/apis/{API_GROUP}/{best_version(versions)}"
    node = ask(
        f"the Node {options.node}", lambda: _object(lambda: _get(api, f"/api/v1/nodes/{options.node}", "get nodes"))
    )
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
    """Return an object, or an empty one if the server says that it does not exist; any other 404 is an error."""
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
    """Return a member that every answer of this kind has.

    Raises:
        ApiError: it is missing or has another type, so this is not an API server's answer.
    """
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise _unclear()
    return value


def server_versions(api: Sender) -> tuple[str, ...]:
    """Return the versions of `resource.k8s.io` that the server offers; none if it does not have the group.

    Raises:
        ApiError: the server does not answer as an API server.
    """
    try:
        group = _get(api, f"/apis/{API_GROUP}", f"discover {API_GROUP}")
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        # An API server without the group still lists the groups that it has. Other servers have no such list.
        groups = _member(_get(api, "/apis", "discover API groups"), "groups", list)
        if any(_member(entry, "name", str) == API_GROUP for entry in groups):
            raise
        return ()
    return tuple(str(_member(entry, "version", str)) for entry in _member(group, "versions", list))


def kubelet_version(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a version that kubelet reports (`v1.37.1`, `v1.34.1+k3s1`); None if there are none."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(number) for number in match.groups() if number is not None) if match else None


def _denied(api: Sender, options: ServeOptions, account: str) -> Iterator[Right]:
    drivers = (Right("associated-node:patch", f"resourceclaims/driver/{driver}") for driver in options.drivers)
    for right in (*RIGHTS, *drivers):
        resource, _, rest = right.resource.partition("/")
        sub, _, name = rest.partition("/")
        values = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": sub, "name": name}
        attributes = {key: value for key, value in values.items() if value}
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
    """Return the DeviceClasses with the drivers' names, and all others if they may be listed, by name."""
    # Objects in a list have neither.
    type_meta = {"apiVersion": root.removeprefix("/apis/"), "kind": "DeviceClass"}
    try:
        listed = _member(_get(api, f"{root}/deviceclasses", "list deviceclasses"), "items", list)
    except ApiError as error:
        # The driver's own account may only get its own classes.
        if error.status not in _RIGHTS:
            raise
        listed = []
    classes = {str(item["metadata"]["name"]): {**item, **type_meta} for item in listed}
    for driver in drivers:
        item = _object(lambda name=driver: _get(api, f"{root}/deviceclasses/{name}", "get deviceclasses"))  # type: ignore[misc] # called in this iteration
        if item:
            classes[driver] = {**item, **type_meta}
    return classes


def _slices(api: Sender, root: str, options: ServeOptions) -> tuple[PublishedSlice, ...]:
    answer = _get(api, f"{root}/resourceslices", "list resourceslices", fieldSelector=f"spec.nodeName={options.node}")
    if not isinstance(answer, dict) or "items" not in answer:
        raise _unclear()
    slices = [_slice(published) for published in answer["items"] or ()]
    return tuple(published_slice(slice_) for slice_ in slices if slice_.spec.driver in options.drivers)


def published_slice(slice_: ResourceSlice) -> PublishedSlice:
    """Return what the rules need to know about a slice."""
    return PublishedSlice(slice_.metadata.name, slice_.spec.driver, slice_.spec.pool.name, len(slice_.spec.devices))


def _slice(document: Any) -> ResourceSlice:
    try:
        return decode(ResourceSlice, to_v1(document))
    except (DocumentError, AttributeError, TypeError) as error:
        raise _unclear() from error


@dataclass(frozen=True, slots=True)
class Unseen:
    """Collects why lists could not be read.

    Attributes:
        sentences: a sentence for each list.
    """

    sentences: list[str] = field(default_factory=list)

    def unless_refused(self, without: str, listing: Future[T]) -> T | None:
        """Return the list; if it could not be read, return None and add a sentence that begins with `without`."""
        try:
            return listing.result()
        except ApiError as error:
            self.sentences.append(f"{without}: {error}")
            return None


# Every HTTP answer has the time of the API server's clock in a header (RFC 9110, section 6.6.1).


def clock_skew(wire: Wire, clock: Callable[[], float] = time.time) -> int | None:
    """Return how many seconds the server's clock is ahead of this one; None if it does not say."""
    before = clock()
    try:
        answer = wire.send(Outgoing("GET", "/version", {"Accept": "application/json"}, 5.0))
    except UnreachableError:
        return None
    after = clock()
    try:
        server_time = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None
    # The header was written between sending and receiving, and is cut to whole seconds.
    if before - 1 <= server_time <= after:
        return 0
    return round(server_time - before) if server_time < before else round(server_time - after)
