"""kubelet's pod-resources API (KEP-606, KEP-3695): which containers have which claims, as kubelet decided it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import grpc
import msgspec

from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.uses import ClaimUse
from dranode.driver.kubelet.sockets import uri
from dranode.proto import podresources_v1_pb2 as api
from dranode.proto.podresources_v1_pb2_grpc import PodResourcesListerStub

# Seconds, for callers without a deadline: kubelet computes its answer each time, and nodes are busy.
_TIMEOUT: Final = 5.0
# gRPC's 4 MiB are less than what a large node may have to say. So are the 16 MiB of kubelet's own clients: some
# kubelets list a claim's devices once more at every retry for a pod if another driver cannot prepare one of its claims.
_MAX_BYTES: Final = 64 << 20
# Channels to one socket would share their connection, and the wait for its next attempt, in a common pool.
_OPTIONS: Final = (("grpc.max_receive_message_length", _MAX_BYTES), ("grpc.use_local_subchannel_pool", 1))


class PodResourcesError(DranodeError):
    """kubelet gave no answer."""


class ListedPods(msgspec.Struct, frozen=True):
    """One answer of kubelet.

    Attributes:
        pods: the namespaces and names of the pods that it lists. A kubelet that has just started does not list all that
            run, so it says nothing about others.
        uses: every claim of every container of these that has a device of the driver in question.
    """

    pods: frozenset[tuple[str, str]]
    uses: tuple[ClaimUse, ...]


class PodResources:
    """A client of kubelet's pod-resources socket."""

    def __init__(self, socket: Path) -> None:
        """Name the socket; nothing is dialled yet."""
        self._socket = socket

    def claims(self, driver: str) -> tuple[ClaimUse, ...]:
        """Every claim of every container that has a device of `driver`.

        Raises:
            PodResourcesError: kubelet refuses, or gives no readable answer within 5 s.
        """
        return self.listed(driver).uses

    def listed(self, driver: str, seconds: float | None = None, *, also: Collection[str] = ()) -> ListedPods:
        """Every pod, and every claim of their containers that has a device of `driver` or of `also` another.

        Raises:
            PodResourcesError: kubelet refuses, or gives no readable answer within `seconds`, 5 s by default.
        """
        try:
            # A channel waits ever longer between its attempts to connect, up to two minutes; a new one tries at once.
            with grpc.insecure_channel(uri(self._socket), _OPTIONS) as channel:
                response = PodResourcesListerStub(channel).List(
                    api.ListPodResourcesRequest(), timeout=_TIMEOUT if seconds is None else seconds
                )
        except grpc.RpcError as error:
            raise PodResourcesError(
                f"kubelet's pod-resources at {self._socket} does not answer: {error.details() or error.code()}"
            ) from error
        uses = (
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
            if (ours := [each for each in claim.claim_resources if each.driver_name in (driver, *also)])
        )
        return ListedPods(frozenset((pod.namespace, pod.name) for pod in response.pod_resources), tuple(uses))

    def in_use(self, driver: str, ref: ClaimRef, users: Collection[ResourceClaimConsumerReference] = ()) -> bool | None:
        """Return whether a container has the claim; None if kubelet does not answer for all pods that may have it.

        Args:
            driver: whose devices the claim has.
            ref: the claim.
            users: who may have it. Without any, or with a PodGroup, of whose pods kubelet may not list each, kubelet
                can only say that it is in use.
        """
        try:
            listed = self.listed(driver)
        except PodResourcesError:
            return None
        if any((each.namespace, each.claim) == (ref.namespace, ref.name) for each in listed.uses):
            return True
        if not users or not all(user.is_pod for user in users):
            return None
        return False if listed.pods.issuperset((ref.namespace, user.name) for user in users) else None
