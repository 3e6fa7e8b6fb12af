"""What the thread that owns the connection asks of whoever decides."""

from __future__ import annotations

from typing import Protocol

from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.nri.events import RuntimePeer


class Handler(Protocol):
    """Whoever decides. Every method is called by the client's thread and is to return within a fraction of 2 s."""

    def configured(self, runtime: RuntimePeer) -> None:
        """This runtime is at the other end."""

    def disconnected(self) -> None:
        """Nobody is at the other end any more."""

    def synchronize(self, listed: tuple[Container, ...]) -> tuple[ContainerUpdate, ...]:
        """These containers exist, and no other; what has to change?"""

    def create(self, container: Container) -> tuple[Resources, tuple[ContainerUpdate, ...]]:
        """This container is about to be created; what does it get, and what has to change of others?

        Raises:
            DranodeError: it may not be created; the text is for kubelet.
        """

    def update(self, container: Container, wanted: Resources, quota: int) -> tuple[ContainerUpdate, ...]:
        """Somebody wants these CPUs, memory nodes and this quota (microseconds, 0 if none) for the container."""

    def stop(self, container: Container) -> tuple[ContainerUpdate, ...]:
        """This container has stopped; what has to change of others?"""

    def started(self, container: Container) -> None:
        """This container runs."""

    def removed(self, container: Container) -> None:
        """This container is gone."""

    def pod_gone(self, pod: PodSandbox) -> None:
        """This pod sandbox was stopped or removed."""

    def unsolicited(self) -> tuple[ContainerUpdate, ...]:
        """What has to change now, if anything may be said out of turn."""

    def updates_answered(self, error: str) -> None:
        """The updates were applied, or not all of them."""

    def reconnection_due(self) -> bool:
        """Whether only a new connection can put things right."""
