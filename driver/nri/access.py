"""The ways to reach containers."""

from __future__ import annotations

import msgspec

from dranode.driver.machine.root import Root


class ContainerAccess(msgspec.Struct, frozen=True):
    """The ways to the containers of a node.

    Attributes:
        nri_socket: the runtime's NRI socket.
        root: where the cgroups of containers are read.
        own_pod: the UID of the pod that the driver runs in; empty if it is not known.
    """

    nri_socket: str
    root: Root
    own_pod: str = ""
