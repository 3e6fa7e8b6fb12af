"""Waits for the nodes that the pods of a DaemonSet drain, one a node, as the chart's hook before an uninstall does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.diagnosis.draining import has_rolled_out, have_failed, undrained
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.errors import ApiError

_POLL_SECONDS: Final = 2.0
# kubelet tries again after 10, 20 and 40 s: what is left then is in use, not on its way.
_TRIES: Final = 3


class DrainingPods(msgspec.Struct, frozen=True):
    """The pods of a DaemonSet whose init container drains the node.

    Attributes:
        client: the API server.
        namespace: the DaemonSet's.
        name: its name.
        clock: seconds, never going back.
        rest: waits for so many seconds.
    """

    client: Client
    namespace: str
    name: str
    clock: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep

    def wait(self, seconds: float) -> int:
        """Wait until every node is drained; how many there are.

        Raises:
            DranodeError: some are not after `seconds`, or have each tried often enough; with the reason of each.
            ApiError: the server does not say.
        """
        deadline = self.clock() + seconds
        daemonset = self._daemonset()
        while not has_rolled_out(daemonset):
            try:
                pods = self._pods(daemonset)
                if self.clock() >= deadline or have_failed(pods, _TRIES):
                    raise DranodeError(
                        f"not drained: {'; '.join(undrained(pods)) or 'pods of the DaemonSet are missing'}"
                    )
                self.rest(_POLL_SECONDS)
                daemonset = self._daemonset()
            except ApiError as error:
                # A server that answered before may be starting again: nodes take longer than that.
                if not error.passes or self.clock() >= deadline:
                    raise
                self.rest(_POLL_SECONDS)
        return int(daemonset["status"]["desiredNumberScheduled"])

    def _pods(self, daemonset: dict[str, Any]) -> list[dict[str, Any]]:
        selector = ",".join(f"{key}={value}" for key, value in daemonset["spec"]["selector"]["matchLabels"].items())
        place = f"/api/v1/namespaces/{self.namespace}/pods"
        request = APIRequest("GET", place, f"list pods in namespace {self.namespace}", {"labelSelector": selector})
        return list(self.client.send(request)["items"] or ())

    def _daemonset(self) -> dict[str, Any]:
        place = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/{self.name}"
        request = APIRequest("GET", place, f"get daemonsets in namespace {self.namespace}")
        return dict(self.client.send(request))
