"""Calls of a driver in kubelet's place: GetInfo at its registration socket, and unpreparing of claims."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import grpc
import msgspec

from dranode.driver.claims.answers import Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.kubelet.sockets import uri
from dranode.proto import dra_v1_pb2 as dra
from dranode.proto import pluginregistration_v1_pb2 as api
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from dranode.proto.pluginregistration_v1_pb2_grpc import RegistrationStub

_TIMEOUT: Final = 1.0
# As long as kubelet waits.
_UNPREPARE_SECONDS: Final = 45.0


class Registrant(msgspec.Struct, frozen=True):
    """A plug-in as it presents itself.

    Attributes:
        kind: `DRAPlugin`, `CSIPlugin`, ...
        name: the driver's name.
        endpoint: the path of the socket on which it serves.
    """

    kind: str
    name: str
    endpoint: str


def who_serves(socket: Path) -> Registrant | None:
    """Return the plug-in that answers GetInfo (pluginregistration/v1) at a socket; None if none does within 1 s."""
    with grpc.insecure_channel(uri(socket)) as channel:
        try:
            info = RegistrationStub(channel).GetInfo(api.InfoRequest(), timeout=_TIMEOUT)
        except grpc.RpcError:
            return None
    return Registrant(info.type, info.name, info.endpoint)


def unprepare(endpoint: Path, refs: Iterable[ClaimRef]) -> dict[str, Refused | None]:
    """Have a driver unprepare claims (NodeUnprepareResources of `v1.DRAPlugin`), as kubelet would.

    Args:
        endpoint: the driver's DRA socket.
        refs: the claims.

    Returns:
        For each claim, by UID, None or why it is not unprepared. A driver that does not answer within 45 s, as long as
        kubelet waits, is a refusal of every claim.
    """
    request = dra.NodeUnprepareResourcesRequest(
        claims=[dra.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]
    )
    with grpc.insecure_channel(uri(endpoint)) as channel:
        try:
            answers = DRAPluginStub(channel).NodeUnprepareResources(request, timeout=_UNPREPARE_SECONDS).claims
        except grpc.RpcError as error:
            failure = Refused(f"the driver at {endpoint} does not answer: {error.details() or error.code()}")
            return dict.fromkeys((claim.uid for claim in request.claims), failure)
    return {
        claim.uid: Refused(answers[claim.uid].error or "the driver did not answer for it")
        if claim.uid not in answers or answers[claim.uid].error
        else None
        for claim in request.claims
    }
