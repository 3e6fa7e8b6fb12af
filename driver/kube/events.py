"""Writes Kubernetes Events (events.k8s.io/v1), off every path on which a call waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from dranode.driver.core.claims.events import Allowance, Event, Occurrence, events_of
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.outbox import Outbox
from dranode.driver.process.threads import Fatal

_GROUP: Final = "events.k8s.io/v1"
# Where the API keeps events about objects without a namespace.
_CLUSTER: Final = "default"
_MAX_INSTANCE: Final = 128


def utc_now() -> datetime:
    """The time of the clock on the wall."""
    return datetime.now(UTC)


class KubeEvents:
    """Events of one driver on one node."""

    def __init__(
        self, client: Client, driver: str, node_name: str, fatal: Fatal, now: Callable[[], datetime] = utc_now
    ) -> None:
        """Write through `client`; `now` is the wall clock's time."""
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._now = now
        self._lock = threading.Lock()
        self._allowance = Allowance()
        self._outbox: Outbox[dict[str, Any]] = Outbox(f"{driver}-events", self._send, client.timing, fatal)
        self._sent = 0

    def notify(self, occurrence: Occurrence) -> None:
        """Write the events of what happened, unless they were written lately; returns at once."""
        for event in events_of(occurrence, self._node_name):
            with self._lock:
                allowance = self._allowance.admit(event, self._client.timing.clock())
                if allowance is None:
                    continue
                self._allowance = allowance
                self._sent += 1
                number = self._sent
            self._outbox.put(str(number), self._document(event))

    def close(self, seconds: float) -> None:
        """Write what waits, for no longer than `seconds`."""
        self._outbox.close(seconds)

    def _document(self, event: Event) -> dict[str, Any]:
        about = event.regarding
        regarding = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name, "uid": about.uid}
        if about.namespace:
            regarding["namespace"] = about.namespace
        return {
            "apiVersion": _GROUP,
            "kind": "Event",
            "metadata": {"generateName": f"{about.name}-", "namespace": about.namespace or _CLUSTER},
            "eventTime": self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": "Warning",
            "reason": event.reason,
            "action": event.action,
            "note": event.note,
            "regarding": regarding,
            "reportingController": self._driver,
            "reportingInstance": f"{self._driver}-{self._node_name}"[:_MAX_INSTANCE],
        }

    def _send(self, document: dict[str, Any]) -> None:
        namespace = document["metadata"]["namespace"]
        path = f"/apis/{_GROUP}/namespaces/{namespace}/events"
        self._client.send(
            APIRequest("POST", path, f"create events.k8s.io events in namespace {namespace}", {}, document)
        )
