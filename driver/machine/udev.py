"""Kernel uevents: an event source, never the source of truth. An event says that it is time to read the machine again.

libudev reads the real `/sys` only, so nothing is looked up through it. Events come from the kernel's own netlink group:
udevd's do not reach a pod without the host's network namespace, and the kernel's may not either (they reach the network
namespaces of the first user namespace, since Linux 4.18), so the machine is also read again from time to time.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Generic, Protocol, TypeVar

from dranode.driver.core.claims.plugin import RESCAN_SECONDS, Stop

log = logging.getLogger(__name__)

_TICK: Final = 2.0
_QUIET: Final = 0.5
_LONGEST_BURST: Final = 10.0
_FAILURES: Final = 3  # in a row; one message that cannot be read is no end
_NO_EVENTS: Final = "%s, so the machine is read again every %.0f s alone"

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)

# What a driver makes of a uevent: (ACTION, SUBSYSTEM, device path, other keys) -> its own event, or None.
Reader = Callable[[str, str, str, Mapping[str, str]], E | None]


class Events(Protocol[E_co]):
    """Where events come from."""

    def next(self, timeout: float) -> E_co | None:
        """The next event of interest; None if there was none for `timeout` seconds.

        Raises:
            OSError: events are lost, because more came than fit (ENOBUFS), or there are none any more.
        """


class KernelEvents(Generic[E]):
    """The kernel's uevents of some subsystems, through pyudev."""

    def __init__(self, subsystems: Iterable[str], reader: Reader[E]) -> None:
        """Listen from now on.

        Raises:
            ImportError: libudev is not installed.
            OSError: the kernel's netlink group cannot be joined.
        """
        import pyudev  # noqa: PLC0415 - a serving driver alone pays for it

        self._reader = reader
        self._monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in subsystems:
            self._monitor.filter_by(subsystem)
        self._monitor.start()

    def next(self, timeout: float) -> E | None:
        """The next uevent; None if it is of no interest, or there was none for `timeout` seconds.

        Raises:
            OSError: the kernel had more uevents than the socket holds (ENOBUFS), or the socket fails.
        """
        try:
            device = self._monitor.poll(timeout)
        except OSError as error:
            # pyudev only says that poll(2) tells of an error, and leaves it in the socket, to be told of for ever.
            with socket.socket(fileno=os.dup(self._monitor.fileno())) as same:
                number = same.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number)) from error
            raise
        if device is None:
            return None
        return self._reader(device.action or "", device.subsystem or "", device.device_path, dict(device.properties))


def opened(source: Callable[[], Events[E]] | None) -> Events[E] | None:
    """The events of a source; None if there is none, or if it cannot be opened, which is logged."""
    try:
        return source() if source is not None else None
    except (ImportError, OSError) as error:
        log.warning(_NO_EVENTS, f"no kernel events ({error})", RESCAN_SECONDS)
        return None


def watch(
    events: Events[E] | None,
    note: Callable[[E], None],
    stop: Stop,
    *,
    due: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Yield whenever the machine should be read again, until `stop` is set; a burst of events yields once.

    Args:
        events: the event source; None where there is none, then only `RESCAN_SECONDS` and `due` count.
        note: is told every event.
        stop: ends the watch within seconds.
        due: whether the machine should be read for another reason.
        clock: seconds that never run backwards.
    """
    last = clock()
    failures = 0
    while not stop.is_set():
        came = False
        if events is None:
            stop.wait(_TICK)
        else:
            try:
                came = _taken_in(events, note, clock)
                failures = 0
            except OSError as error:
                came = True
                failures += error.errno != errno.ENOBUFS
                if failures == _FAILURES:
                    log.warning(_NO_EVENTS, f"no more kernel events ({error})", RESCAN_SECONDS)
                    events = None
        if came or due() or clock() - last >= RESCAN_SECONDS:
            last = clock()
            yield


def _taken_in(events: Events[E], note: Callable[[E], None], clock: Callable[[], float]) -> bool:
    """Wait for an event, and for the end of the burst that it begins; whether there was one."""
    event = events.next(_TICK)
    if event is None:
        return False
    note(event)
    quiet = clock() + _QUIET
    end = clock() + _LONGEST_BURST
    while (now := clock()) < min(quiet, end):
        # None comes at once for an event of no interest: most of a burst, and not its end.
        event = events.next(quiet - now)
        if event is not None:
            note(event)
            quiet = clock() + _QUIET
    return True
