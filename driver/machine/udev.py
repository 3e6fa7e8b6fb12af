"""Kernel uevents: they only cause the machine to be read again, and no fact is taken from them.

libudev only knows the real `/sys`, so it is not used to look up anything. Events come from the kernel's own netlink
group, because those of udevd do not reach a pod without the host's network namespace. Kernel events may not reach such
a pod either (since Linux 4.18 they only reach network namespaces of the initial user namespace), so the machine is also
read again from time to time.
"""

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Generic, Protocol, TypeVar

from dranode.driver.claims.plugin import RESCAN_SECONDS, Stop

log = logging.getLogger(__name__)

_TICK: Final = 2.0
# Plugging in one device causes many events. The machine is read again when they pause for _QUIET seconds, and after
# _LONGEST_BURST seconds even if they do not.
_QUIET: Final = 0.5
_LONGEST_BURST: Final = 10.0
# Failures in a row after which the source is given up; a single unreadable message is no reason for that.
_FAILURES: Final = 3
_NO_EVENTS: Final = "%s, so the machine is read again only every %.0f s"

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)

# How a driver reads a uevent: (ACTION, SUBSYSTEM, device path, other keys) -> an event of its own, or None.
Reader = Callable[[str, str, str, Mapping[str, str]], E | None]


class Events(Protocol[E_co]):
    """A source of events."""

    def next(self, timeout: float) -> E_co | None:
        """Return the next event of interest; None if there was none for `timeout` seconds.

        Raises:
            OSError: events were lost because too many came (ENOBUFS), or the source has failed.
        """


class KernelEvents(Generic[E]):
    """The kernel's uevents about some subsystems, received through pyudev."""

    def __init__(self, subsystems: Iterable[str], reader: Reader[E]) -> None:
        """Start to listen.

        Raises:
            ImportError: libudev is not installed.
            OSError: the kernel's netlink group cannot be joined.
        """
        import pyudev  # noqa: PLC0415 - fails where libudev is missing

        self._reader = reader
        self._monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in subsystems:
            self._monitor.filter_by(subsystem)
        self._monitor.start()

    def next(self, timeout: float) -> E | None:
        """Return the next uevent; None if it is of no interest, or if there was none for `timeout` seconds.

        Raises:
            OSError: the kernel had more uevents than the socket holds (ENOBUFS), or the socket failed.
        """
        try:
            device = self._monitor.poll(timeout)
        except OSError as error:
            # pyudev leaves the pending error in the socket, so poll(2) would report it forever; reading clears it.
            with socket.socket(fileno=os.dup(self._monitor.fileno())) as same:
                number = same.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number)) from error
            raise
        if device is None:
            return None
        return self._reader(device.action or "", device.subsystem or "", device.device_path, dict(device.properties))


def opened(source: Callable[[], Events[E]] | None) -> Events[E] | None:
    """Open an event source; return None if there is none, or if opening fails, which is logged."""
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
        events: the event source; without one only `RESCAN_SECONDS` and `due` count.
        note: called with every event.
        stop: ends the watch within seconds.
        due: returns whether the machine should be read for another reason.
        clock: returns seconds and never goes back.
    """
    last = clock()
    failures = 0
    while not stop.is_set():
        came = False
        if events is None:
            stop.wait(_TICK)
        else:
            try:
                came = _wait_for_burst(events, note, clock)
                failures = 0
            except OSError as error:
                came = True  # an event may have been lost with the error
                # ENOBUFS says that events were lost, not that the socket is broken.
                failures += error.errno != errno.ENOBUFS
                if failures == _FAILURES:
                    log.warning(_NO_EVENTS, f"no more kernel events ({error})", RESCAN_SECONDS)
                    events = None
        if came or due() or clock() - last >= RESCAN_SECONDS:
            last = clock()
            yield


def _wait_for_burst(events: Events[E], note: Callable[[E], None], clock: Callable[[], float]) -> bool:
    """Wait for an event and for the end of its burst; return whether there was one."""
    event = events.next(_TICK)
    if event is None:
        return False
    note(event)
    quiet = clock() + _QUIET
    end = clock() + _LONGEST_BURST
    while (now := clock()) < min(quiet, end):
        # `next` returns None at once for an event of no interest, so None does not mean that the burst is over.
        event = events.next(quiet - now)
        if event is not None:
            note(event)
            quiet = clock() + _QUIET
    return True
