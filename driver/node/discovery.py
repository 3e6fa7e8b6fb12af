"""The hardware that a driver last read, and why it cannot read it at the moment.

Hardware that was not read is not hardware without devices: code that needs an inventory has to face that there is none.
"""

from __future__ import annotations

import logging
import threading

from dranode.api.errors import MachineError, UnreadError
from dranode.driver.claims.plugin import Inventory, Plugin

log = logging.getLogger(__name__)


class Discovery:
    """The hardware of one driver. Any thread may call it.

    Attributes:
        known: what was read last; None if it was never read.
        unread: why it could not be read at the last try, with what to do, in one sentence; None if it could.
        tried: whether it was ever tried to read it.
    """

    def __init__(self, plugin: Plugin) -> None:
        """Nothing is read yet."""
        self.known: Inventory | None = None
        self.unread: str | None = None
        self.tried = False
        self._plugin = plugin
        # One reading at a time: an older one may not take the place of a newer one.
        self._lock = threading.Lock()

    @property
    def inventory(self) -> Inventory:
        """Return what was read last.

        Raises:
            UnreadError: it was never read.
        """
        if self.known is None:
            raise UnreadError(self.unread or "the hardware has not been read yet")
        return self.known

    def check(self) -> None:
        """See that the hardware could be read, before anything of it is handed out.

        Raises:
            UnreadError: it could not.
        """
        if self.unread is not None:
            raise UnreadError(self.unread)

    def read(self) -> None:
        """Read the hardware. An inventory that is equal to the one before stays the same object.

        Raises:
            UnreadError: it cannot be read; what was read before stays known.
            UsageError: the driver's options do not fit the hardware.
        """
        with self._lock:
            self.tried = True
            try:
                inventory = self._plugin.discover()
            except (MachineError, OSError) as error:
                # A file that could not be opened says of its hardware as little as one that made no sense.
                raise UnreadError(self._note_unread(str(error))) from error
            if self.unread is not None:
                self.unread = None
                log.warning("driver=%s: the hardware can be read again", self._plugin.driver)
            before = () if self.known is None else self.known.warnings
            for warning in inventory.warnings:
                if warning not in before:
                    log.warning("driver=%s: %s", self._plugin.driver, warning)
            if inventory != self.known:
                self.known = inventory

    def _note_unread(self, error: str) -> str:
        reason = (
            f"the hardware cannot be read, so nothing is handed out: {error}; "
            "look at the node's /sys and at what of it is mounted into the driver's pod"
        )
        if reason != self.unread:
            log.error(
                "driver=%s: %s; masks of containers stay as they are meanwhile, and it is tried again every second",
                self._plugin.driver,
                reason,
            )
        self.unread = reason
        return reason
