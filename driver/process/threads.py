"""Named threads whose failures are never lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dranode.driver.core.api.errors import in_words

log = logging.getLogger(__name__)

Fatal = Callable[[str], None]


class OwnedThread(threading.Thread):
    """A daemon thread that reports its unexpected end to `fatal`, which ends the process with the error."""

    def __init__(self, name: str, work: Callable[[], None], fatal: Fatal) -> None:
        """Name the thread; `start` will run `work`."""
        super().__init__(name=name, daemon=True)
        self._work = work
        self._fatal = fatal

    def run(self) -> None:
        """Run the work; an exception from it is fatal."""
        try:
            self._work()
        except Exception as error:
            log.exception("thread=%s died", self.name)
            self._fatal(f"the thread {self.name} died: {in_words(error)}")
