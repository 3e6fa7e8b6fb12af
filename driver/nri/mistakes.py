"""Mistakes that no request can be answered with."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from dranode.driver.core.api.errors import DranodeError, in_words

log = logging.getLogger(__name__)


class Mistakes:
    """Lets one thread live on after mistakes, and says each once as long as it is the same."""

    def __init__(self, driver: str) -> None:
        """None was made so far by that driver."""
        self._driver = driver
        self._said = ""

    @contextlib.contextmanager
    def survived(self, what: str) -> Iterator[None]:
        """Survive a mistake in what is done meanwhile; `what` says for the log what came of it."""
        try:
            yield
        except Exception as error:
            mistake = f"{what}: {in_words(error)}"
            if mistake == self._said:
                return
            self._said = mistake
            if isinstance(error, DranodeError):
                log.warning("driver=%s: %s: %s", self._driver, what, error)
            else:
                log.exception("driver=%s: %s", self._driver, what)

    @property
    def made(self) -> bool:
        """Return whether one was made since the last success."""
        return bool(self._said)

    def over(self) -> None:
        """Say the next one again: what was tried again succeeded."""
        self._said = ""
