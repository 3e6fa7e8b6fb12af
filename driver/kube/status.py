"""Writes `status.devices` of claims by server-side apply under the driver's own field manager.

Nobody waits for it: what was prepared is prepared, whether the API server has heard of it or not. From Kubernetes 1.36
it takes the verb `associated-node:patch` on `resourceclaims/driver` beside `patch` on `resourceclaims/status`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from dranode.driver.core.api.documents import API_GROUP
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.status import DeviceState, device_statuses, is_said
from dranode.driver.kube.client import APPLY, APIRequest, Client
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.events import utc_now
from dranode.driver.kube.outbox import Outbox
from dranode.driver.process.threads import Fatal

log = logging.getLogger(__name__)

# The claim is gone, or is another one of its name, or was taken back meanwhile: there is nothing to say any more.
_PAST: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})


@dataclass(frozen=True, slots=True)
class _Said:
    """What is to be said of a claim; nothing, if there are no entries."""

    claim: ClaimRef
    entries: tuple[dict[str, Any], ...]


class ClaimStatus:
    """The driver's part of claims' status."""

    def __init__(self, client: Client, driver: str, fatal: Fatal, now: Callable[[], datetime] = utc_now) -> None:
        """Write through `client` as `driver`; `now` is the wall clock's time."""
        self._client = client
        self._driver = driver
        self._now = now
        self._outbox: Outbox[_Said] = Outbox(f"{driver}-status", self._send, client.timing, fatal)

    def say(self, claim: ClaimRef, states: Sequence[DeviceState], before: Sequence[Any]) -> None:
        """Say how the claim's devices are; `before` is its `status.devices`. Returns at once."""
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        entries = device_statuses(self._driver, states, before, now)
        if not is_said(self._driver, entries, before):
            self._outbox.put(claim.uid, _Said(claim, entries))

    def withdraw(self, claim: ClaimRef) -> None:
        """Say nothing any more: the claim is not prepared. Returns at once."""
        self._outbox.put(claim.uid, _Said(claim, ()))

    def close(self, seconds: float) -> None:
        """Write what waits, for no longer than `seconds`."""
        self._outbox.close(seconds)

    def _send(self, said: _Said) -> None:
        claim = said.claim

        def request(root: str, version: str) -> APIRequest:
            return APIRequest(
                "PATCH",
                f"{root}/namespaces/{claim.namespace}/resourceclaims/{claim.name}/status",
                f"patch resourceclaims/status in namespace {claim.namespace} (and resourceclaims/driver)",
                {"fieldManager": self._driver, "force": "true"},
                {
                    "apiVersion": f"{API_GROUP}/{version}",
                    "kind": "ResourceClaim",
                    "metadata": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
                    "status": {"devices": list(said.entries)} if said.entries else {},
                },
                APPLY,
            )

        try:
            self._client.resource(request)
        except ApiError as error:
            if error.status not in _PAST:
                raise
            log.debug("claim=%s uid=%s: its status is not written: %s", claim, claim.uid, error)
