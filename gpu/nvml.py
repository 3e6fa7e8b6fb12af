"""Reads from NVIDIA's management library what no file shows: memory, compute capability, MIG mode, XID errors.

It is optional: without `nvidia-ml-py` (extra `nvml`), without the library on the node or after a driver reload these
facts are missing, which is not an error. The library is opened when it is first needed and again after a failure. It
knows the GPUs that the driver had when it was opened, and prevents them from being unbound. So it is opened again when
the driver has others, and stays closed while a GPU is unbound. A GPU that fell off the bus does not affect the others.
"""

import ctypes
import importlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, Final, Protocol, TypeVar

import msgspec

T = TypeVar("T")

# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, of driver 565 and later; older versions of nvidia-ml-py have no name for it.
_RECOVERY_ACTION: Final = 230
# What the driver asks for. Action 5 concerns the domain of IMEX, not the GPU, which works.
_RECOVERIES: Final[Mapping[int, str]] = {
    0: "",
    1: "a reset of the GPU",
    2: "a restart of the node",
    3: "an end of peer-to-peer traffic",
    4: "a reset of the GPU after all programs have ended",
    5: "",
    6: "a reset of the bus",
    7: "a restart of the system",
}


class NVMLFacts(msgspec.Struct, frozen=True):
    """One GPU as NVML describes it.

    Attributes:
        memory: bytes, without those that the driver keeps for ECC.
        compute_capability: CUDA compute capability as a version (`9.0.0`).
        uuid: `GPU-` and a UUID.
        model: product name.
        mig: whether it is in MIG mode, in which no program can use the GPU itself, only its instances.
    """

    memory: int | None = None
    compute_capability: str | None = None
    uuid: str | None = None
    model: str | None = None
    mig: bool = False


class NVML(Protocol):
    """NVIDIA's management library. Any thread may call it."""

    def gpus(self, bound: Collection[str]) -> Mapping[str, NVMLFacts]:
        """Return the GPUs that the library manages, by PCI address; none if the library cannot be used.

        Args:
            bound: the addresses of the GPUs that NVIDIA's kernel driver has now.
        """

    def xids(self) -> tuple[tuple[str, int], ...]:
        """Return PCI address and number of the XID errors since the last call."""

    def needs(self) -> Mapping[str, str]:
        """Return what each GPU needs to work again, by PCI address: a sentence, empty if it works.

        GPUs for which the driver does not say this are left out.
        """

    def released(self) -> AbstractContextManager[None]:
        """Close the library until the context ends, so that a GPU can be unbound from its driver."""


class NVMLLibrary:
    """`pynvml` as an `NVML`."""

    def __init__(self, library: ModuleType | Any) -> None:
        self._library = library
        # Discovery, health and Prepare come from different threads.
        self._lock = threading.Lock()
        self._released = 0
        self._initialized = False
        self._bound: frozenset[str] = frozenset()
        self._handles: dict[str, Any] = {}
        self._facts: dict[str, NVMLFacts] = {}
        self._events: Any = None
        self._xids: list[tuple[str, int]] = []

    def gpus(self, bound: Collection[str]) -> Mapping[str, NVMLFacts]:
        """Return the GPUs that NVML manages, by PCI address; while it is released, the last known facts."""
        with self._lock:
            if self._released:
                return {address: facts for address, facts in self._facts.items() if address in bound}
            if self._initialized and self._bound != frozenset(bound):
                self._read_events()
                self._close()
            try:
                self._open()
            except self._library.NVMLError:
                self._close()
            self._bound = frozenset(bound)
            self._facts = {address: self._read_facts(handle) for address, handle in self._handles.items()}
            # After the driver was reloaded, no handle answers any more, and the library is opened again. But if the
            # driver says what a GPU needs, it is the GPU that does not answer.
            silent = not any(facts != NVMLFacts() for facts in self._facts.values())
            if self._handles and silent and not any(map(self._need, self._handles.values())):
                self._close()
                self._facts = {}
            return self._facts

    def xids(self) -> tuple[tuple[str, int], ...]:
        """Return PCI address and number of the XID errors since the last call."""
        with self._lock:
            if not self._released:
                self._read_events()
            xids, self._xids = self._xids, []
            return tuple(xids)

    def needs(self) -> Mapping[str, str]:
        """Return what each GPU needs to work again, by PCI address."""
        with self._lock:
            found = ((address, self._need(handle)) for address, handle in self._handles.items())
            return {address: need for address, need in found if need is not None}

    @contextmanager
    def released(self) -> Iterator[None]:
        """Close the library until the context ends."""
        with self._lock:
            self._released += 1
            self._close()
        try:
            yield
        finally:
            with self._lock:
                self._released -= 1

    def _open(self) -> None:
        if self._initialized:
            return
        library = self._library
        library.nvmlInit()
        self._initialized = True
        self._events = library.nvmlEventSetCreate()
        for index in range(library.nvmlDeviceGetCount()):
            handle = self._tried(library.nvmlDeviceGetHandleByIndex, index)
            address = None if handle is None else self._tried(self._address, handle)
            if address is not None:
                self._handles[address] = handle
                self._tried(
                    library.nvmlDeviceRegisterEvents, handle, library.nvmlEventTypeXidCriticalError, self._events
                )

    def _close(self) -> None:
        if not self._initialized:
            return
        self._initialized, self._handles, self._events = False, {}, None
        self._tried(self._library.nvmlShutdown)

    def _read_events(self) -> None:
        """Read the XID errors that have occurred so far, without waiting."""
        try:
            self._open()
            while True:
                event = self._library.nvmlEventSetWait_v2(self._events, 0)
                address = self._address_of(event.device)
                if event.eventType == self._library.nvmlEventTypeXidCriticalError and address is not None:
                    self._xids.append((address, int(event.eventData)))
        except self._library.NVMLError as error:
            if getattr(error, "value", None) != self._library.NVML_ERROR_TIMEOUT:
                self._close()

    def _read_facts(self, handle: Any) -> NVMLFacts:
        library = self._library
        memory = self._tried(library.nvmlDeviceGetMemoryInfo, handle)
        capability = self._tried(library.nvmlDeviceGetCudaComputeCapability, handle)
        uuid = self._tried(library.nvmlDeviceGetUUID, handle)
        model = self._tried(library.nvmlDeviceGetName, handle)
        # The current mode and the one after the next reset; a GPU that has no MIG answers with an error.
        mig = self._tried(library.nvmlDeviceGetMigMode, handle)
        return NVMLFacts(
            memory=None if memory is None else int(memory.total),
            compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}.0",
            uuid=None if uuid is None else _text(uuid),
            model=None if model is None else _text(model),
            mig=mig is not None and mig[0] == library.NVML_DEVICE_MIG_ENABLE,
        )

    def _need(self, handle: Any) -> str | None:
        library = self._library
        try:
            (field,) = library.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])
        except library.NVMLError as error:
            return "the GPU fell off the bus" if error.value == library.NVML_ERROR_GPU_IS_LOST else None
        if field.nvmlReturn != 0:
            return None
        action = int(field.value.uiVal)
        need = _RECOVERIES.get(action, f"recovery action {action}")
        return f"NVIDIA's driver asks for {need}" if need else ""

    def _tried(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """Return the answer of a call; None if NVML does not support it, or not for this GPU."""
        try:
            return call(*arguments)
        except self._library.NVMLError:
            return None

    def _address_of(self, device: Any) -> str | None:
        """Return the address of an event's GPU. One that fell off the bus no longer reports its own."""
        known = (address for address, handle in self._handles.items() if _pointer(handle) == _pointer(device))
        return self._tried(self._address, device) or next(known, None)

    def _address(self, handle: Any) -> str:
        """Return an address as in sysfs: NVML uses capitals and eight digits for the domain, sysfs at least four."""
        domain, _, rest = _text(self._library.nvmlDeviceGetPciInfo(handle).busId).lower().partition(":")
        return f"{int(domain, 16):04x}:{rest}"


def open_nvml() -> NVML | None:
    """Return NVIDIA's management library; None if `nvidia-ml-py` is not installed."""
    try:
        return NVMLLibrary(importlib.import_module("pynvml"))
    except ImportError:
        return None


def _pointer(handle: Any) -> int | None:
    """Return the address in a handle: ctypes makes a new object for every pointer, and two are never equal."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _text(value: str | bytes) -> str:
    # nvidia-ml-py before 11.5 answers in bytes.
    return value.decode() if isinstance(value, bytes) else value
