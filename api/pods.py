"""Pods, as a container runtime describes them."""

from __future__ import annotations

import msgspec


class PodSandbox(msgspec.Struct, frozen=True):
    """A pod sandbox.

    Attributes:
        id: the runtime's id of the sandbox.
        uid: the Kubernetes pod UID; empty if the runtime did not describe the sandbox.
        namespace: the pod's; empty likewise.
        name: the pod's; empty likewise.
    """

    id: str
    uid: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"of sandbox {self.id}"
