import errno
import os
import select
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from dranode.driver.claims.plugin import RESCAN_SECONDS
from dranode.driver.machine.udev import KernelEvents, watch
from dranode.gpu.plugin import GPUEvent, gpu_event_of

CARD = "/devices/pci0000:00/0000:00:01.0/0000:01:00.0/drm/card1"
PCI = "/devices/pci0000:00/0000:00:01.0/0000:01:00.0"


@dataclass
class Script:
    """An event source that plays events and counts the seconds of waiting."""

    events: list[GPUEvent | None] = field(default_factory=list)
    now: float = 0.0

    def next(self, timeout: float) -> GPUEvent | None:
        event = self.events.pop(0) if self.events else None
        if event is None:
            self.now += timeout
        return event

    def clock(self) -> float:
        return self.now


def watched(script: Script, count: int = 1, then: Sequence[GPUEvent] = ()) -> tuple[list[float], list[GPUEvent]]:
    """When the first readings take place, and the events so far. The same events follow each reading."""

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            script.now += timeout or 0
            return self.is_set()

    stop, times, noted = Stop(), list[float](), list[GPUEvent]()
    for _ in watch(script, noted.append, stop, clock=script.clock):
        times.append(script.now)
        script.events = [*then]
        if len(times) == count:
            stop.set()
    return times, noted


@pytest.mark.parametrize(
    ("action", "subsystem", "path", "properties", "event"),
    [
        ("bind", "pci", PCI, {"PCI_CLASS": "30000"}, GPUEvent("bind", "0000:01:00.0")),
        ("add", "pci", PCI, {"PCI_CLASS": "120000"}, GPUEvent("add", "0000:01:00.0")),
        ("remove", "pci", PCI, {"PCI_CLASS": "38000"}, GPUEvent("remove", "0000:01:00.0")),
        ("change", "drm", CARD, {"WEDGED": "rebind,bus-reset"}, GPUEvent("change", "0000:01:00.0", "rebind,bus-reset")),
        ("change", "drm", CARD, {"HOTPLUG": "1"}, None),
        ("add", "pci", PCI, {"PCI_CLASS": "20000"}, None),
        ("add", "pci", PCI, {}, None),
        ("add", "pci", PCI, {"PCI_CLASS": "display"}, None),
        ("add", "usb", "/devices/pci0000:00/0000:00:14.0/usb1", {"PCI_CLASS": "30000"}, None),
        ("change", "drm", "/devices/virtual/drm/card0", {"WEDGED": "none"}, None),
        (
            "add",
            "pci",
            "/devices/pci0000:17/0000:17:05.5/pci10000:00/10000:01:00.0",
            {"PCI_CLASS": "30200"},
            GPUEvent("add", "10000:01:00.0"),
        ),
    ],
)
def test_a_uevent_is_an_event_if_it_is_about_a_gpu(
    action: str, subsystem: str, path: str, properties: Mapping[str, str], event: GPUEvent | None
) -> None:
    assert gpu_event_of(action, subsystem, path, properties) == event


def test_a_burst_of_events_causes_one_reading_and_every_event_is_recorded() -> None:
    burst = [GPUEvent("add", f"0000:01:00.{function}") for function in range(4)]
    assert watched(Script([*burst, None]))[1] == burst


def test_irrelevant_events_do_not_split_a_burst() -> None:
    class Mixed(Script):
        """After each relevant event comes an irrelevant one, for which nobody waits."""

        def next(self, timeout: float) -> GPUEvent | None:
            return self.events.pop(0) if self.events else super().next(timeout)

    burst = [GPUEvent("add", f"0000:01:00.{function}") for function in range(4)]
    assert watched(Mixed([each for event in burst for each in (event, None)]))[1] == burst


def test_without_events_the_machine_is_read_once_a_minute() -> None:
    assert watched(Script(), 3)[0] == [RESCAN_SECONDS, 2 * RESCAN_SECONDS, 3 * RESCAN_SECONDS]


def test_an_endless_burst_does_not_prevent_the_reading() -> None:
    class Endless(Script):
        def next(self, timeout: float) -> GPUEvent | None:
            self.now += timeout / 2
            return GPUEvent("change", "0000:01:00.0", "rebind")

    assert watched(Endless())[0][0] < 15


def test_other_reasons_are_checked_between_events() -> None:
    script, stop = Script(), threading.Event()
    for _ in watch(script, lambda _event: None, stop, due=lambda: script.now >= 4, clock=script.clock):
        stop.set()
    assert script.now == 4


def test_a_stopped_watch_ends_without_yielding() -> None:
    stop = threading.Event()
    stop.set()
    assert list(watch(None, lambda _event: None, stop)) == []


def test_an_overflow_of_the_socket_causes_a_reading_and_does_not_end_the_watch() -> None:
    class Overrun(Script):
        def next(self, timeout: float) -> GPUEvent | None:
            if self.now < 8:
                self.now += timeout
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            return super().next(timeout)

    times, _ = watched(Overrun(), 5, [GPUEvent("add", "0000:01:00.0")])
    assert times[:4] == [2, 4, 6, 8]
    assert times[4] < 10


def test_after_a_permanent_socket_error_the_machine_is_read_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Script):
        def next(self, timeout: float) -> GPUEvent | None:
            del timeout
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    assert watched(Failing(), 5)[0] == [0, 0, 0, RESCAN_SECONDS, 2 * RESCAN_SECONDS]
    assert caplog.messages == [
        "no more kernel events ([Errno 9] Bad file descriptor), so the machine is read again only every 60 s"
    ]


def test_the_error_of_a_socket_is_reported_once_and_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()
    # No test can make the kernel lose events; an unread datagram leaves an error in its socket likewise.
    asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asked.connect(nobody)

    class Monitor:
        """Like pyudev's, which gives up at POLLERR and receives nothing."""

        @classmethod
        def from_netlink(cls, context: object, source: str) -> "Monitor":
            del context, source
            return cls()

        def start(self) -> None:
            asked.send(b"x")

        def fileno(self) -> int:
            return asked.fileno()

        def poll(self, timeout: float) -> None:
            poller = select.poll()
            poller.register(asked, select.POLLIN)
            if any(mask & select.POLLERR for _, mask in poller.poll(timeout * 1000)):
                raise OSError("Error while polling fd: 7")

    monkeypatch.setitem(sys.modules, "pyudev", SimpleNamespace(Monitor=Monitor, Context=object))
    events = KernelEvents((), gpu_event_of)
    with asked:
        with pytest.raises(ConnectionRefusedError):
            events.next(1.0)
        assert events.next(0.0) is None
