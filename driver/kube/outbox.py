"""What is sent to the API server when there is time for it.

Nobody waits for it, and the newest word on a thing replaces older ones.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from dranode.driver.kube.client import Timing
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.retry import Backoff
from dranode.driver.process.threads import Fatal, OwnedThread

log = logging.getLogger(__name__)

T = TypeVar("T")

_BACKOFF: Final = Backoff(first=0.5, most=30.0)
_MOST: Final = 1000


class Outbox(Generic[T]):
    """Items by key, sent one after another by a thread of their own.

    What fails and may pass is tried again; what is refused is logged, each reason once in a row, and dropped. Of more
    than a thousand items the oldest are dropped.
    """

    def __init__(self, name: str, send: Callable[[T], None], timing: Timing, fatal: Fatal) -> None:
        """Send through `send`, which raises ApiError; the thread called `name` starts with the first item."""
        self._name = name
        self._send = send
        self._timing = timing
        self._items: OrderedDict[str, T] = OrderedDict()
        self._changed = threading.Condition()
        self._closing = False
        self._refused = ""
        self._thread = OwnedThread(name, self._run, fatal)

    def put(self, key: str, item: T) -> None:
        """Send this soon, in place of what waits under the same key."""
        with self._changed:
            if self._closing:
                return
            self._items.pop(key, None)
            self._items[key] = item
            if len(self._items) > _MOST:
                dropped, _ = self._items.popitem(last=False)
                log.warning("%s: too much waits for the API server; %s is dropped", self._name, dropped)
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Send what waits, as far as that takes no longer than `seconds`, and nothing more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                while not self._items:
                    if self._closing:
                        return
                    self._changed.wait()
                key, item = next(iter(self._items.items()))
            try:
                self._send(item)
                failures, self._refused = 0, ""
            except ApiError as error:
                if error.passes:
                    with self._changed:
                        if self._closing:
                            return
                        # A new item is no reason to come back to the server sooner than it wishes.
                        delay = _BACKOFF.delay(failures, self._timing.dice(), error.retry_after)
                        self._changed.wait_for(lambda: self._closing, delay)
                    failures += 1
                    continue
                if str(error) != self._refused:
                    log.warning("%s: %s", self._name, error)
                self._refused = str(error)
            with self._changed:
                if self._items.get(key) is item:
                    del self._items[key]
