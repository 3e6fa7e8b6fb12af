"""Carries out changes to ResourceSlices: one request each, with the preconditions that the plan names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dranode.driver.core.api.documents import decode, encode
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.resource import Node, OwnerReference, ResourceSlice
from dranode.driver.core.slices.plan import CreateSlice, DeleteSlice, UpdateSlice
from dranode.driver.kube.client import ANSWER_SECONDS, APIRequest, Client
from dranode.driver.kube.errors import NO_UID, ApiError
from dranode.driver.kube.retry import NOT_FOUND
from dranode.driver.kube.versions import from_v1

# The generator of names in k8s.io/apiserver cuts what a name begins with to 58 bytes and adds 5 letters or digits.
_BEGINNING: Final = 58
_MADE_UP: Final = "[a-z0-9]{5}"

_DRY_RUN: Final = {"dryRun": "All"}


class SliceWriter:
    """Writes slices of one node."""

    def __init__(self, client: Client, node_name: str) -> None:
        """Write through `client` for the node of that name."""
        self._client = client
        self._node_name = node_name

    def owner(self) -> OwnerReference:
        """The Node as the owner of its slices, so that they go when it goes.

        Asked for whenever slices are created: a Node that was made again has another UID, and slices of one that is
        gone are deleted at once.

        Raises:
            ApiError: the Node cannot be had.
        """
        try:
            request = APIRequest("GET", f"/api/v1/nodes/{self._node_name}", "get nodes")
            uid = _uid_of(self._client.send(request, seconds=ANSWER_SECONDS, patient=False))
        except DocumentError as error:
            raise ApiError(f"node {self._node_name} as the API server has it cannot be read: {error}") from error
        except ApiError as error:
            if error.status == NOT_FOUND:
                raise ApiError(
                    f"the cluster has no node {self._node_name}; name this one with --node-name", error.status
                ) from error
            raise
        return OwnerReference(api_version="v1", kind="Node", name=self._node_name, uid=uid, controller=True)

    def delete(self, change: DeleteSlice) -> None:
        """Delete a slice; one that is gone is deleted.

        Raises:
            ApiError: it fails, or somebody else was there meanwhile (409).
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": change.uid, "resourceVersion": change.resource_version},
        }
        try:
            self._client.resource(
                lambda root, _: APIRequest(
                    "DELETE", f"{root}/resourceslices/{change.name}", "delete resourceslices", {}, body
                )
            )
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def update(self, change: UpdateSlice, *, dry_run: bool = False) -> ResourceSlice:
        """Replace a slice; what the server made of it. A dry run asks what it would make of it.

        Raises:
            ApiError: it fails, or somebody else was there meanwhile (409).
        """
        tail = f"resourceslices/{change.slice.metadata.name}"
        return self._write("PUT", tail, "update resourceslices", change.slice, _DRY_RUN if dry_run else {})

    def create(self, change: CreateSlice) -> ResourceSlice:
        """Create a slice; what the server made of it.

        Raises:
            ApiError: it fails.
        """
        try:
            return self._write("POST", "resourceslices", "create resourceslices", change.slice, {})
        except ApiError as error:
            raise _of_every_try(error, change.slice.metadata.generate_name) from error

    def _write(
        self, method: str, tail: str, what: str, written: ResourceSlice, query: Mapping[str, str]
    ) -> ResourceSlice:
        document: dict[str, Any] = {**encode(written), "kind": "ResourceSlice"}

        def request(root: str, version: str) -> APIRequest:
            return APIRequest(method, f"{root}/{tail}", what, query, from_v1(document, version))

        try:
            return decode(ResourceSlice, self._client.resource(request))
        except DocumentError as error:
            raise ApiError(f"the API server's answer to {what} cannot be read: {error}") from error


def _uid_of(node: Any) -> str:
    uid = decode(Node, node).metadata.uid
    if not uid:
        raise DocumentError(NO_UID)
    return uid


def _of_every_try(error: ApiError, generate_name: str) -> ApiError:
    """The error without the name that the server made up, as it has another for every try and is logged only once."""
    beginning = generate_name[:_BEGINNING]
    said = re.sub(re.escape(beginning) + _MADE_UP, lambda _: beginning, str(error))
    return ApiError(said, error.status, retry_after=error.retry_after, of_object=error.of_object)
