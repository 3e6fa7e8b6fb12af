from dataclasses import dataclass, field
from typing import Any

from dranode.gpu.nvml import NVMLFacts, NVMLLibrary


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass
class Bus:
    busId: str | bytes  # noqa: N815 - NVML's name


@dataclass
class Memory:
    total: int


@dataclass
class XID:
    device: int
    eventData: int  # noqa: N815 - NVML's name
    eventType: int = 8  # noqa: N815 - NVML's name


@dataclass
class Library:
    """pynvml with the GPUs and events that a test gives it; `driver` is whether the kernel driver is loaded."""

    buses: list[str | bytes]
    events: list[XID] = field(default_factory=list)
    driver: bool = True
    opened: int = 0
    closed: int = 0

    NVMLError = NVMLError
    NVML_ERROR_TIMEOUT = 10
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 - NVML's name

    def _check(self) -> None:
        if not self.driver:
            raise NVMLError(9)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self._check()
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's name
        self.closed += 1

    def nvmlEventSetCreate(self) -> object:  # noqa: N802 - NVML's name
        return object()

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
        return len(self.buses)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - NVML's name
        return index

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:  # noqa: N802 - NVML's name
        assert kinds == self.nvmlEventTypeXidCriticalError
        del handle, events

    def nvmlDeviceGetPciInfo(self, handle: int) -> Bus:  # noqa: N802 - NVML's name
        self._check()
        return Bus(self.buses[handle])

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802 - NVML's name
        self._check()
        return (9, handle)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Memory:  # noqa: N802 - NVML's name
        return Memory(80 << 30 | handle)

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802 - NVML's name
        return f"GPU-{handle}".encode()

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802 - NVML's name
        return f"H100 {handle}"

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> XID:  # noqa: N802 - NVML's name
        del events
        assert milliseconds == 0
        self._check()
        if not self.events:
            raise NVMLError(self.NVML_ERROR_TIMEOUT)
        return self.events.pop(0)


def test_gpus_come_by_the_address_that_sysfs_writes() -> None:
    library = Library(["00000000:1B:00.0", b"00010000:02:00.0"])
    assert NVMLLibrary(library).gpus() == {
        "0000:1b:00.0": NVMLFacts(80 << 30, "9.0.0", "GPU-0", "H100 0"),
        "10000:02:00.0": NVMLFacts(80 << 30 | 1, "9.1.0", "GPU-1", "H100 1"),
    }


def test_the_library_is_opened_once() -> None:
    library = Library(["00000000:1B:00.0"])
    nvml = NVMLLibrary(library)
    nvml.gpus()
    nvml.gpus()
    nvml.xids()
    assert (library.opened, library.closed) == (1, 0)


def test_xids_are_told_once() -> None:
    library = Library(["00000000:1B:00.0"], [XID(0, 79), XID(0, 48)])
    nvml = NVMLLibrary(library)
    assert nvml.xids() == (("0000:1b:00.0", 79), ("0000:1b:00.0", 48))
    assert nvml.xids() == ()


def test_without_the_kernel_driver_there_is_nothing_to_know() -> None:
    nvml = NVMLLibrary(Library(["00000000:1B:00.0"], driver=False))
    assert nvml.gpus() == {}
    assert nvml.xids() == ()


def test_a_driver_that_is_loaded_again_is_found_again() -> None:
    library = Library(["00000000:1B:00.0"])
    nvml = NVMLLibrary(library)
    nvml.gpus()
    library.driver = False
    assert nvml.gpus() == {}
    library.driver = True
    assert list(nvml.gpus()) == ["0000:1b:00.0"]
    assert (library.opened, library.closed) == (2, 1)


def test_closing_lets_go_once_and_the_next_call_opens_again() -> None:
    library = Library(["00000000:1B:00.0"])
    nvml = NVMLLibrary(library)
    nvml.close()
    nvml.gpus()
    nvml.close()
    nvml.close()
    assert (library.opened, library.closed) == (1, 1)
    assert len(nvml.gpus()) == 1
