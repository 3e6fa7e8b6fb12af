"""Enforcement by one of two instances: the other decides the same, so that it can take over, and says nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.nri.events import RuntimePeer

log = logging.getLogger(__name__)


class TakesTurns(Protocol):
    """Knows which of two instances answers a request."""

    @property
    def active(self) -> bool:
        """Whether this instance speaks unasked."""

    def turn(self, request: str) -> bool:
        """Whether this instance answers the request with adjustments."""


@dataclass(frozen=True, slots=True)
class SharedEnforcer:
    """Answers what a runtime asks, if it is this instance's turn.

    Attributes:
        enforcer: decides, and knows what containers have.
        authority: says whose turn it is.
    """

    enforcer: Enforcer
    authority: TakesTurns

    def configured(self, runtime: RuntimePeer) -> None:
        """Take note of the runtime."""
        self.enforcer.configured(runtime)

    def disconnected(self) -> None:
        """Take note that nobody is at the other end."""
        self.enforcer.disconnected()

    def synchronize(self, listed: tuple[Container, ...]) -> tuple[ContainerUpdate, ...]:
        """What has to change of everything that exists; each instance is told of that apart."""
        if self.authority.active:
            return self.enforcer.synchronize(listed)
        with self.enforcer.silently():
            return self._unsaid(self.enforcer.synchronize(listed))

    def create(self, container: Container) -> tuple[Resources, tuple[ContainerUpdate, ...]]:
        """What a new container gets, and what has to change of others.

        Raises:
            RefusedError: it may not be created.
            LedgerError: the ledger cannot be read.
        """
        if self.authority.turn(f"create {container.id}"):
            return self.enforcer.create(container)
        try:
            with self.enforcer.silently():
                _, updates = self.enforcer.create(container)
        except DranodeError as error:
            log.debug("the other instance has to refuse this: %s", error)
        else:
            self._unsaid(updates)
        return Resources(), ()

    def update(self, container: Container, wanted: Resources, quota: int) -> tuple[ContainerUpdate, ...]:
        """What becomes of a request for other resources."""
        if self.authority.turn(f"update {container.id}"):
            return self.enforcer.update(container, wanted, quota)
        with self.enforcer.silently():
            return self._unsaid(self.enforcer.update(container, wanted, quota))

    def stop(self, container: Container) -> tuple[ContainerUpdate, ...]:
        """What has to change of others now that a container has stopped."""
        if self.authority.turn(f"stop {container.id}"):
            return self.enforcer.stop(container)
        with self.enforcer.silently():
            return self._unsaid(self.enforcer.stop(container))

    def started(self, container: Container) -> None:
        """Take note that a container runs."""
        self.enforcer.started(container)

    def removed(self, container: Container) -> None:
        """Take note that a container is gone."""
        self.enforcer.removed(container)

    def pod_gone(self, pod: PodSandbox) -> None:
        """Take note that a pod sandbox is gone."""
        self.enforcer.pod_gone(pod)

    def unsolicited(self) -> tuple[ContainerUpdate, ...]:
        """Updates to send out of turn."""
        return self.enforcer.unsolicited() if self.authority.active else ()

    def updates_answered(self, error: str) -> None:
        """Take note of what became of unsolicited updates."""
        self.enforcer.updates_answered(error)

    def reconnection_due(self) -> bool:
        """Whether only a new connection can put things right."""
        # What it does not know of containers no other instance can tell it.
        return (self.authority.active or not self.enforcer.is_certain()) and self.enforcer.reconnection_due()

    def _unsaid(self, updates: tuple[ContainerUpdate, ...]) -> tuple[ContainerUpdate, ...]:
        self.enforcer.take_back(updates)
        return ()
