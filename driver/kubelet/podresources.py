"""kubelet's pod-resources API: which containers have which claims, from the one who decides it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.uses import ClaimUse
from dranode.driver.kubelet.rpc import caller
from dranode.proto import podresources_v1_pb2 as api

_TIMEOUT: Final = 0.5
# As kubelet sets for its own clients; gRPC's 4 MiB are less than what a large node may have to say.
_MAX_BYTES: Final = 16 << 20


class PodResourcesError(DranodeError):
    """kubelet gave no answer."""


class PodResources:
    """A client of kubelet's pod-resources socket."""

    def __init__(self, socket: Path) -> None:
        """Name the socket; nothing is dialled yet."""
        self._socket = socket
        self._dial()

    def _dial(self) -> None:
        # A pool of its own: the next channel to the same socket would go on waiting for this one's next try.
        options = [("grpc.max_receive_message_length", _MAX_BYTES), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix:{self._socket}", options)
        self._list = caller(self._channel, api.DESCRIPTOR, "PodResourcesLister", "List")

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def claims(self, driver: str) -> tuple[ClaimUse, ...]:
        """Every claim of every container that has a device of `driver`.

        Raises:
            PodResourcesError: kubelet does not answer within half a second.
        """
        try:
            response = self._list(api.ListPodResourcesRequest(), timeout=_TIMEOUT)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                # A channel waits ever longer between its attempts, up to two minutes; a new channel tries at once.
                self._dial()
            reason = error.details() or error.code()
            raise PodResourcesError(f"kubelet's pod-resources at {self._socket} does not answer: {reason}") from error
        except ValueError as error:
            # How gRPC says that `close` was called: by a process that ends while a thread is at its last look.
            raise PodResourcesError(f"kubelet's pod-resources at {self._socket} does not answer: {error}") from error
        return tuple(
            ClaimUse(
                namespace=pod.namespace,
                pod=pod.name,
                container=container.name,
                claim=claim.claim_name,
                cdi=frozenset(device.name for resource in ours for device in resource.cdi_devices),
                devices=frozenset(resource.device_name for resource in ours),
            )
            for pod in response.pod_resources
            for container in pod.containers
            for claim in container.dynamic_resources
            if (ours := [resource for resource in claim.claim_resources if resource.driver_name == driver])
        )

    def in_use(self, driver: str, ref: ClaimRef) -> bool | None:
        """Whether a container has the claim; None if kubelet does not answer."""
        try:
            return any((each.namespace, each.claim) == (ref.namespace, ref.name) for each in self.claims(driver))
        except PodResourcesError:
            return None
