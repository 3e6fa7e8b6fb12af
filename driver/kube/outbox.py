"""Sends items to the API server for which no call waits, from a thread of its own."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from dranode.driver.kube.client import Timing
from dranode.driver.kube.errors import ApiError, Backoff
from dranode.driver.process.threads import Fatal, OwnedThread

log = logging.getLogger(__name__)


# Items that wait to be sent, the newest one of each key. A write competes with kubelet's next call for the interpreter,
# and often the next call makes it moot. So an item waits until nothing has come for a while, but no longer than a
# limit. Times are seconds of the caller's clock.

T = TypeVar("T")

_CAPACITY: Final = 1000


class _Entry(msgspec.Struct, Generic[T]):
    item: T
    since: float
    taken: bool = False


class PendingItems(Generic[T]):
    """Items in the order in which their keys came; above a thousand, the oldest is dropped. Not thread-safe."""

    def __init__(self, idle: float = 0.0, limit: float = 0.0) -> None:
        """Let an item wait until nothing has come for `idle` seconds, but no longer than `limit`."""
        self._idle = idle
        self._limit = limit
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._latest = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def is_taken(self, key: str) -> bool:
        """Return whether the item of a key was taken and is not `done`."""
        entry = self._entries.get(key)
        return entry is not None and entry.taken

    def put(self, key: str, item: T, now: float) -> T | None:
        """Add an item, or replace the one of its key; returns the item that was dropped to make room."""
        self._latest = now
        entry = self._entries.get(key)
        if entry is not None:
            entry.item = item
            return None
        self._entries[key] = _Entry(item, now)
        return self._entries.popitem(last=False)[1].item if len(self._entries) > _CAPACITY else None

    def take_back(self, key: str, now: float) -> T | None:
        """Remove and return the item of a key; None if there is none, or if it may have been sent."""
        self._latest = now
        entry = self._entries.get(key)
        # A request for it may be on its way, so it cannot be taken back; the caller has to send what undoes it.
        if entry is None or entry.taken:
            return None
        del self._entries[key]
        return entry.item

    def wait(self, now: float) -> float | None:
        """Return how many seconds the first item has to wait; None if there is none."""
        entry = next(iter(self._entries.values()), None)
        if entry is None:
            return None
        # On a busy node something comes all the time, so `limit` ends the wait.
        return max(0.0, min(self._latest + self._idle, entry.since + self._limit) - now)

    def take(self) -> tuple[str, T]:
        """Return the first item to send, with its key; the item stays until it is `done`.

        Raises:
            StopIteration: there is no item.
        """
        key, entry = next(iter(self._entries.items()))
        entry.taken = True
        return key, entry.item

    def done(self, key: str, item: T) -> None:
        """Remove an item that was sent, unless a newer one has come under its key."""
        entry = self._entries.get(key)
        # An item that came while this one was being sent is newer, and must still be sent.
        if entry is not None and entry.item is item:
            del self._entries[key]


_BACKOFF: Final = Backoff(first=0.5, most=30.0)


class Outbox(Generic[T]):
    """Items by key, sent one after another by a thread of their own.

    The newest item of a key replaces an older one. A failure that may pass is tried again. An item that the API server
    refuses is dropped and logged; the same reason several times in a row is logged once. Logs name an item by `str`.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[T], None],
        timing: Timing,
        fatal: Fatal,
        pending: PendingItems[T] | None = None,
    ) -> None:
        """Send through `send`, which raises ApiError; the thread called `name` starts with the first item.

        Args:
            name: the name of the thread and of what it sends, in the log.
            send: sends an item.
            timing: clock, random numbers and waiting times.
            fatal: ends the process if the thread dies.
            pending: decides how long items wait; None for not at all.
        """
        self._name = name
        self._send = send
        self._timing = timing
        self._pending: PendingItems[T] = PendingItems() if pending is None else pending
        self._changed = threading.Condition()
        self._closing = False
        self._refused = ""
        self._thread = OwnedThread(name, self._run, fatal)

    def put(self, key: str, item: T) -> None:
        """Send an item soon, in place of the one that waits under the same key."""
        with self._changed:
            if self._closing:
                return
            # Only the first item has to wake the thread: a later one is never due before it.
            first = not self._pending
            dropped = self._pending.put(key, item, self._timing.clock())
            if dropped is not None:
                log.warning(
                    "outbox=%s more than %d items wait for the API server; %s is dropped",
                    self._name,
                    _CAPACITY,
                    dropped,
                )
            if first:
                self._begin()
                self._changed.notify_all()

    def _begin(self) -> None:
        if self._pending and self._thread.ident is None:
            self._thread.start()

    def sends(self, key: str) -> bool:
        """Return whether the item of a key is being sent at this moment, or may have been sent."""
        with self._changed:
            return self._pending.is_taken(key)

    def take_back(self, key: str) -> T | None:
        """Remove and return the item of a key; None if there is none, or if it may have been sent."""
        with self._changed:
            return self._pending.take_back(key, self._timing.clock())

    def close(self, seconds: float) -> None:
        """Send what waits for no longer than `seconds`, and nothing afterwards."""
        with self._changed:
            self._closing = True
            self._begin()
            self._changed.notify_all()
        # The items that are left are lost. Claims keep their records, and status is reported again when it changes.
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        failures = 0
        while True:
            taken = self._next()
            if taken is None:
                return
            key, item = taken
            try:
                self._send(item)
                failures, self._refused = 0, ""
            except ApiError as error:
                if error.passes:
                    with self._changed:
                        if self._closing:
                            return
                        # A new item does not shorten the wait that the server has asked for.
                        delay = _BACKOFF.delay(failures, self._timing.dice(), error.retry_after)
                        self._changed.wait_for(lambda: self._closing, delay)
                    failures += 1
                    continue
                if str(error) != self._refused:
                    log.warning("outbox=%s %s", self._name, error)
                self._refused = str(error)
            with self._changed:
                self._pending.done(key, item)

    def _next(self) -> tuple[str, T] | None:
        """Wait until an item is due; returns it with its key, None at the end."""
        with self._changed:
            while True:
                wait = self._pending.wait(self._timing.clock())
                if wait is not None and (wait == 0 or self._closing):
                    return self._pending.take()
                if self._closing:
                    return None
                self._changed.wait(wait)
