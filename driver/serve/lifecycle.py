"""The work that a serving driver does without a request, and the threads that do it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from dranode.api.errors import DranodeError, UnreadError
from dranode.driver.claims.events import Notify
from dranode.driver.claims.plugin import Impairment
from dranode.driver.node.node import NodeClaims
from dranode.driver.process.threads import Fatal, OwnedThread
from dranode.driver.serve import orphans
from dranode.driver.serve.hardware import Hardware
from dranode.driver.serve.orphans import Orphans, Witnesses
from dranode.driver.serve.spec_watch import SpecWatch

log = logging.getLogger(__name__)

# How long a thread that waits for no other thread may take to see that it should end.
_GRACE: Final = 2.0


class LifecycleStatus(msgspec.Struct, frozen=True):
    """The state that metrics show.

    Attributes:
        impaired: the claims that have less at the moment than they were given, by UID.
        hardware_changes: how often the hardware was found changed, since start.
        specs_rewritten: CDI specs that had vanished or been altered, since start.
        orphans: claims that are gone, that no container uses and that are still on record.
        orphans_unprepared: those that were unprepared, since start.
    """

    impaired: Mapping[str, Impairment] = msgspec.field(default_factory=dict)
    hardware_changes: int = 0
    specs_rewritten: int = 0
    orphans: int = 0
    orphans_unprepared: int = 0


class Lifecycle:
    """Looks after one node's claims and hardware while its driver serves."""

    def __init__(
        self,
        node: NodeClaims,
        witnesses: Witnesses,
        *,
        publish: Callable[[], None],
        report: Callable[[], None],
        notify: Notify,
        fatal: Fatal,
    ) -> None:
        """Prepare to look; `start` begins.

        Args:
            node: whose claims and hardware.
            witnesses: who is asked about claims.
            publish: says to the cluster and to kubelet what there is and how it is.
            report: says to kubelet how it is.
            notify: makes known to people what happens to claims.
            fatal: ends the process with a sentence.
        """
        self._node = node
        self._stopping = threading.Event()
        self._hardware = Hardware(node, publish, report, notify)
        self._specs = SpecWatch(node)
        self._orphans = Orphans(node, witnesses, notify, stopping=self._stopping)
        name = node.plugin.driver
        self._quick = OwnedThread(f"{name}-specs", self._every(self._specs.rest, self._specs.look), fatal)
        self._slow = (
            OwnedThread(f"{name}-orphans", self._every(_until_orphans, self._orphans.look), fatal),
            OwnedThread(f"{name}-hardware", lambda: self._hardware.follow(self._stopping), fatal),
        )

    def start(self) -> None:
        """Begin to look."""
        for thread in (self._quick, *self._slow):
            thread.start()

    def stop(self) -> None:
        """Look no more. A thread that waits for somebody else ends by itself and changes nothing any more."""
        self._stopping.set()
        self._specs.wake()
        self._quick.join(_GRACE)
        self._specs.stop()

    def status(self) -> LifecycleStatus:
        """Return how things are."""
        return LifecycleStatus(
            impaired=self._hardware.impaired,
            hardware_changes=self._hardware.changes,
            specs_rewritten=self._specs.rewritten,
            orphans=self._orphans.waiting(),
            orphans_unprepared=self._orphans.released,
        )

    def _every(self, rest: Callable[[threading.Event], bool], look: Callable[[], None]) -> Callable[[], None]:
        def work() -> None:
            trouble = ""
            while not rest(self._stopping):
                try:
                    look()
                except UnreadError:
                    continue
                except DranodeError as error:
                    if str(error) not in (trouble, self._node.impediment):
                        driver = self._node.plugin.driver
                        log.error("driver=%s: %s", driver, error)  # noqa: TRY400 - the sentence says it all
                    trouble = str(error)
                else:
                    trouble = ""

        return work


def _until_orphans(stopping: threading.Event) -> bool:
    return stopping.wait(orphans.LOOK_SECONDS)
