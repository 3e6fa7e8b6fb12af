from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from dranode.gpu.nvml import NVMLFacts, NVMLLibrary


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass
class XID:
    device: int
    eventData: int  # noqa: N815 - NVML's name
    eventType: int = 8  # noqa: N815 - NVML's name


@dataclass
class Library:
    """pynvml with the GPUs and events that a test gives it.

    Attributes:
        driver: whether the kernel driver is loaded.
        lost: the GPUs that fell off the bus.
        lacks: the functions that these GPUs do not support.
        mig: the GPUs in MIG mode.
        actions: the recovery action of the GPUs whose driver knows one.
    """

    buses: list[str | bytes]
    events: list[XID] = field(default_factory=list)
    driver: bool = True
    lost: set[int] = field(default_factory=set)
    lacks: set[str] = field(default_factory=set)
    mig: set[int] = field(default_factory=set)
    actions: dict[int, int] = field(default_factory=dict)
    opened: int = 0
    closed: int = 0

    NVMLError = NVMLError
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 - NVML's name

    def _check(self, handle: int | None = None, name: str = "") -> None:
        if not self.driver:
            raise NVMLError(9)
        if handle in self.lost:
            raise NVMLError(15)
        if name in self.lacks:
            raise NVMLError(3)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self._check()
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's name
        self.closed += 1

    def nvmlEventSetCreate(self) -> object:  # noqa: N802 - NVML's name
        self._check(name="events")
        return object()

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
        return len(self.buses)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - NVML's name
        return index

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:  # noqa: N802 - NVML's name
        assert kinds == self.nvmlEventTypeXidCriticalError
        del handle, events

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802 - NVML's name
        self._check(handle)
        return SimpleNamespace(busId=self.buses[handle])

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802 - NVML's name
        self._check(handle)
        return (9, handle)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802 - NVML's name
        self._check(handle, "memory")
        return SimpleNamespace(total=80 << 30 | handle)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802 - NVML's name
        self._check(handle, "mig")
        return [int(handle in self.mig), int(handle in self.mig)]

    def nvmlDeviceGetFieldValues(self, handle: int, numbers: list[int]) -> list[SimpleNamespace]:  # noqa: N802 - NVML's name
        self._check(handle, "fields")
        assert numbers == [230]
        value = SimpleNamespace(uiVal=self.actions.get(handle, 0))
        return [SimpleNamespace(value=value, nvmlReturn=0 if handle in self.actions else 3)]

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802 - NVML's name
        self._check(handle)
        return f"GPU-{handle}".encode()

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802 - NVML's name
        self._check(handle)
        return f"H100 {handle}"

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> XID:  # noqa: N802 - NVML's name
        del events
        assert milliseconds == 0
        self._check()
        if not self.events:
            raise NVMLError(self.NVML_ERROR_TIMEOUT)
        return self.events.pop(0)


def test_gpus_have_their_address_as_sysfs_writes_it() -> None:
    library = Library(["00000000:1B:00.0", b"00010000:02:00.0"])
    assert NVMLLibrary(library).gpus(()) == {
        "0000:1b:00.0": NVMLFacts(80 << 30, "9.0.0", "GPU-0", "H100 0"),
        "10000:02:00.0": NVMLFacts(80 << 30 | 1, "9.1.0", "GPU-1", "H100 1"),
    }


def test_the_library_is_opened_once() -> None:
    library = Library(["00000000:1B:00.0"])
    nvml = NVMLLibrary(library)
    nvml.gpus(())
    nvml.gpus(())
    nvml.xids()
    assert (library.opened, library.closed) == (1, 0)


def test_xids_are_reported_once() -> None:
    library = Library(["00000000:1B:00.0"], [XID(0, 79), XID(0, 48)])
    nvml = NVMLLibrary(library)
    assert nvml.xids() == (("0000:1b:00.0", 79), ("0000:1b:00.0", 48))
    assert nvml.xids() == ()


def test_the_driver_says_what_a_gpu_needs_unless_it_is_too_old() -> None:
    library = Library([f"00000000:{bus:02d}:00.0" for bus in range(6)], actions={0: 0, 1: 1, 2: 5, 3: 99})
    nvml = NVMLLibrary(library)
    assert nvml.needs() == {}
    nvml.gpus(())
    library.lost = {5}
    assert nvml.needs() == {
        "0000:00:00.0": "",
        "0000:01:00.0": "NVIDIA's driver asks for a reset of the GPU",
        "0000:02:00.0": "",
        "0000:03:00.0": "NVIDIA's driver asks for recovery action 99",
        "0000:05:00.0": "the GPU fell off the bus",
    }
    library.lacks = {"fields"}
    assert nvml.needs() == {"0000:05:00.0": "the GPU fell off the bus"}


def test_the_only_gpu_is_still_said_to_have_fallen_off_the_bus_after_its_facts_were_asked() -> None:
    library = Library(["00000000:1B:00.0"])
    nvml = NVMLLibrary(library)
    nvml.gpus(())
    library.lost = {0}
    nvml.gpus(())
    assert nvml.needs() == {"0000:1b:00.0": "the GPU fell off the bus"}


def test_without_the_kernel_driver_nvml_reports_nothing() -> None:
    nvml = NVMLLibrary(Library(["00000000:1B:00.0"], driver=False))
    assert nvml.gpus(()) == {}
    assert nvml.xids() == ()


def test_a_reloaded_driver_is_found_again() -> None:
    library = Library(["00000000:1B:00.0"])
    nvml = NVMLLibrary(library)
    nvml.gpus(())
    library.driver = False
    assert nvml.gpus(()) == {}
    library.driver = True
    assert list(nvml.gpus(())) == ["0000:1b:00.0"]
    assert (library.opened, library.closed) == (2, 1)


def test_a_gpu_that_the_driver_gets_back_is_found_again() -> None:
    library = Library(["00000000:1B:00.0"], [XID(0, 48)])
    nvml = NVMLLibrary(library)
    nvml.gpus({"0000:1b:00.0"})
    library.buses.append("00000000:43:00.0")
    both = {"0000:1b:00.0", "0000:43:00.0"}
    assert nvml.gpus(both).keys() == both
    assert nvml.gpus(both).keys() == both
    assert (library.opened, library.closed) == (2, 1)
    assert nvml.xids() == (("0000:1b:00.0", 48),)


def test_a_gpu_that_fell_off_the_bus_does_not_affect_the_others() -> None:
    library = Library(["00000000:1B:00.0", "00000000:43:00.0"])
    nvml = NVMLLibrary(library)
    before = nvml.gpus(())
    library.lost = {0}
    assert nvml.gpus(()) == {**before, "0000:1b:00.0": NVMLFacts()}
    assert NVMLLibrary(library).gpus(()) == {"0000:43:00.0": before["0000:43:00.0"]}


def test_the_last_xid_of_a_gpu_that_fell_off_the_bus_is_reported() -> None:
    library = Library(["00000000:1B:00.0", "00000000:43:00.0"])
    nvml = NVMLLibrary(library)
    nvml.gpus(())
    library.lost = {1}
    library.events = [XID(1, 79), XID(0, 48)]
    assert nvml.xids() == (("0000:43:00.0", 79), ("0000:1b:00.0", 48))


def test_functions_that_a_gpu_does_not_support_do_not_affect_the_others() -> None:
    nvml = NVMLLibrary(Library(["00000000:0F:00.0"], lacks={"memory"}))
    assert nvml.gpus(()) == {"0000:0f:00.0": NVMLFacts(None, "9.0.0", "GPU-0", "H100 0")}


def test_mig_mode_is_known_also_for_a_gpu_without_mig() -> None:
    library = Library(["00000000:17:00.0", "00000000:18:00.0"], mig={1})
    facts = NVMLLibrary(library).gpus(["0000:17:00.0", "0000:18:00.0"])
    assert [facts[address].mig for address in sorted(facts)] == [False, True]
    without = NVMLLibrary(Library(["00000000:17:00.0"], lacks={"mig"})).gpus(["0000:17:00.0"])
    assert not without["0000:17:00.0"].mig


def test_a_half_opened_library_is_closed_again() -> None:
    library = Library(["00000000:0F:00.0"], lacks={"events"})
    nvml = NVMLLibrary(library)
    assert nvml.gpus(()) == {}
    assert (library.opened, library.closed) == (1, 1)


def test_released_gpus_are_not_opened_again_for_a_while() -> None:
    library = Library(["00000000:1B:00.0"])
    nvml = NVMLLibrary(library)
    before = nvml.gpus({"0000:1b:00.0"})
    with nvml.released():
        assert nvml.gpus({"0000:1b:00.0"}) == before
        assert nvml.gpus(()) == {}
        assert nvml.xids() == ()
        assert (library.opened, library.closed) == (1, 1)
    assert nvml.gpus({"0000:1b:00.0"}) == before
    assert (library.opened, library.closed) == (2, 1)
