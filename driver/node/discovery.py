"""The hardware that a driver last read, and why it cannot be read at the moment.

Hardware that was not read is not hardware without devices, so there is no empty inventory: callers get an error.
"""

import logging
import threading

from dranode.api.errors import MachineError, UnreadError
from dranode.driver.claims.plugin import Inventory, Plugin

log = logging.getLogger(__name__)


class Discovery:
    """The hardware of one driver. Any thread may call it.

    Attributes:
        known: the result of the last successful reading; None if there was none.
        unread: why the last reading failed, and what to do, in one sentence; None if it succeeded.
        tried: whether reading was tried at least once.
    """

    def __init__(self, plugin: Plugin) -> None:
        """Read nothing yet."""
        self.known: Inventory | None = None
        self.unread: str | None = None
        self.tried = False
        self._plugin = plugin
        # One reading at a time, so that the result of an older one never replaces a newer one.
        self._lock = threading.Lock()

    @property
    def inventory(self) -> Inventory:
        """Return the result of the last successful reading.

        Raises:
            UnreadError: there was none.
        """
        if self.known is None:
            raise UnreadError(self.unread or "the hardware has not been read yet")
        return self.known

    def check(self) -> None:
        """Check that the last reading succeeded, before devices are given out.

        Raises:
            UnreadError: it failed.
        """
        if self.unread is not None:
            raise UnreadError(self.unread)

    def read(self) -> None:
        """Read the hardware. If nothing has changed, `known` stays the same object.

        Raises:
            UnreadError: the hardware cannot be read; `known` is not changed.
            UsageError: the driver's options do not fit the hardware.
        """
        with self._lock:
            self.tried = True
            try:
                inventory = self._plugin.discover()
            except (MachineError, OSError) as error:
                # If a file is unreadable or contradicts others, that does not mean that devices were removed.
                raise UnreadError(self._note_unread(str(error))) from error
            if self.unread is not None:
                self.unread = None
                log.warning("driver=%s: the hardware can be read again", self._plugin.driver)
            before = () if self.known is None else self.known.warnings
            for warning in inventory.warnings:
                if warning not in before:
                    log.warning("driver=%s: %s", self._plugin.driver, warning)
            # Callers compare by identity to see whether something has changed.
            if inventory != self.known:
                self.known = inventory

    def _note_unread(self, error: str) -> str:
        reason = (
            f"the hardware cannot be read, so no new claims are prepared: {error}; "
            "check the node's /sys, and that all of it is mounted into the driver's pod"
        )
        if reason != self.unread:
            log.error(
                "driver=%s: %s; containers keep their CPUs and memory nodes, and the driver tries again every second",
                self._plugin.driver,
                reason,
            )
        self.unread = reason
        return reason
