"""kubelet's pod-resources API (KEP-606, KEP-3695), which says which containers have which claims."""

from collections.abc import Collection
from pathlib import Path
from typing import Final

import grpc
import msgspec

from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import ClaimUse
from dranode.driver.kubelet.sockets import uri
from dranode.proto import podresources_v1_pb2 as api
from dranode.proto.podresources_v1_pb2_grpc import PodResourcesListerStub

# How long kubelet may take, in seconds, if the caller has no limit of its own: kubelet computes each answer.
_TIMEOUT: Final = 5.0
# More than gRPC's default of 4 MiB and the 16 MiB of kubelet's own clients: if another driver cannot prepare a claim of
# a pod, some kubelets list the devices of the pod's other claims once more after every retry.
_MAX_BYTES: Final = 64 << 20
# Without a local pool all channels to a socket share one connection, and its growing delay between attempts.
_OPTIONS: Final = (("grpc.max_receive_message_length", _MAX_BYTES), ("grpc.use_local_subchannel_pool", 1))


class PodResourcesError(DranodeError):
    """kubelet gave no answer."""


class ListedPods(msgspec.Struct, frozen=True):
    """One answer of kubelet.

    Attributes:
        pods: the namespaces and names of the listed pods. A kubelet that has just started does not list all running
            pods, so a pod that is missing here may run all the same.
        uses: the claims of their containers that have devices of the given drivers.
    """

    pods: frozenset[tuple[str, str]]
    uses: tuple[ClaimUse, ...]


class PodResources:
    """A client of kubelet's pod-resources socket."""

    def __init__(self, socket: Path) -> None:
        """Name the socket; no connection is made yet."""
        self._socket = socket

    def claims(self, driver: str) -> tuple[ClaimUse, ...]:
        """Return the claims of all containers that have a device of `driver`.

        Raises:
            PodResourcesError: kubelet refuses, or gives no readable answer within 5 s.
        """
        return self.listed(driver).uses

    def listed(self, driver: str, seconds: float | None = None, *, also: Collection[str] = ()) -> ListedPods:
        """Return the listed pods, and their containers' claims with a device of `driver` or of a driver in `also`.

        Raises:
            PodResourcesError: kubelet refuses, or gives no readable answer within `seconds`, 5 s by default.
        """
        try:
            # A new channel for each call, because an old one may wait up to two minutes before it connects again.
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
                cdi=frozenset(device.name for resource in resources for device in resource.cdi_devices),
                devices=frozenset(resource.device_name for resource in resources),
            )
            for pod in response.pod_resources
            for container in pod.containers
            for claim in container.dynamic_resources
            if (
                resources := [resource for resource in claim.claim_resources if resource.driver_name in (driver, *also)]
            )
        )
        return ListedPods(frozenset((pod.namespace, pod.name) for pod in response.pod_resources), tuple(uses))

    def in_use(self, driver: str, ref: ClaimRef, users: Collection[ResourceClaimConsumerReference] = ()) -> bool | None:
        """Return whether a container has the claim; None if kubelet does not list all pods that may have it.

        Args:
            driver: the driver of the claim's devices.
            ref: the claim.
            users: the pods that may have it. If there are none, or a PodGroup whose pods are not known, the answer is
                never False.
        """
        try:
            listed = self.listed(driver)
        except PodResourcesError:
            return None
        if any((use.namespace, use.claim) == (ref.namespace, ref.name) for use in listed.uses):
            return True
        if not users or not all(user.is_pod for user in users):
            return None
        return False if listed.pods.issuperset((ref.namespace, user.name) for user in users) else None
