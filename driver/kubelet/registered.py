"""Who serves a registration socket: what kubelet asks, asked by somebody else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from dranode.driver.kubelet.rpc import caller
from dranode.proto import pluginregistration_v1_pb2 as api

_TIMEOUT: Final = 1.0


@dataclass(frozen=True, slots=True)
class Registrant:
    """A plug-in as it presents itself.

    Attributes:
        kind: `DRAPlugin`, `CSIPlugin`, ...
        name: the driver's name.
        endpoint: where it serves.
    """

    kind: str
    name: str
    endpoint: str


def who_serves(socket: Path) -> Registrant | None:
    """Whoever answers GetInfo at a socket; None if nobody does within a second."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        try:
            info = caller(channel, api.DESCRIPTOR, "Registration", "GetInfo")(api.InfoRequest(), timeout=_TIMEOUT)
        except grpc.RpcError:
            return None
    return Registrant(info.type, info.name, info.endpoint)
