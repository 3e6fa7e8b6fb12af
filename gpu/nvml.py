"""What NVIDIA's management library knows and no file tells: memory, compute capability, XID errors.

Optional: without `nvidia-ml-py` (extra `nvml`), without the library on the node or after a driver reload there is less
to know, never an error. The library is opened when it is first needed and again after it failed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class NVMLFacts:
    """One GPU as NVML describes it.

    Attributes:
        memory: bytes, without what the driver keeps for ECC.
        compute_capability: CUDA compute capability as a version (`9.0.0`).
        uuid: `GPU-` and a UUID.
        model: product name.
    """

    memory: int | None = None
    compute_capability: str | None = None
    uuid: str | None = None
    model: str | None = None


class NVML(Protocol):
    """NVIDIA's management library."""

    def gpus(self) -> Mapping[str, NVMLFacts]:
        """The GPUs that it manages, by PCI address; none when it is not to be had."""

    def xids(self) -> tuple[tuple[str, int], ...]:
        """PCI address and number of the XID errors since the last call."""

    def close(self) -> None:
        """Let go of the GPUs, so that one can be unbound from its driver."""


class NVMLLibrary:
    """`pynvml` as an `NVML`."""

    def __init__(self, library: ModuleType | Any) -> None:
        self._library = library
        self._handles: dict[str, Any] = {}
        self._events: Any = None

    def gpus(self) -> Mapping[str, NVMLFacts]:
        """The GPUs that NVML manages, by PCI address."""
        try:
            self._open()
            return {address: self._facts(handle) for address, handle in self._handles.items()}
        except self._library.NVMLError:
            self.close()
            return {}

    def xids(self) -> tuple[tuple[str, int], ...]:
        """PCI address and number of the XID errors since the last call."""
        found: list[tuple[str, int]] = []
        try:
            self._open()
            while True:
                event = self._library.nvmlEventSetWait_v2(self._events, 0)
                if event.eventType == self._library.nvmlEventTypeXidCriticalError:
                    found.append((self._address(event.device), int(event.eventData)))
        except self._library.NVMLError as error:
            if getattr(error, "value", None) != self._library.NVML_ERROR_TIMEOUT:
                self.close()
        return tuple(found)

    def close(self) -> None:
        """Let go of the GPUs; the next call opens the library again."""
        if not self._handles and self._events is None:
            return
        self._handles, self._events = {}, None
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError:
            return

    def _open(self) -> None:
        if self._events is not None:
            return
        library = self._library
        library.nvmlInit()
        self._events = library.nvmlEventSetCreate()
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            self._handles[self._address(handle)] = handle
            library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, self._events)

    def _facts(self, handle: Any) -> NVMLFacts:
        library = self._library
        major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
        return NVMLFacts(
            memory=int(library.nvmlDeviceGetMemoryInfo(handle).total),
            compute_capability=f"{major}.{minor}.0",
            uuid=_text(library.nvmlDeviceGetUUID(handle)),
            model=_text(library.nvmlDeviceGetName(handle)),
        )

    def _address(self, handle: Any) -> str:
        """NVML writes `00000000:17:00.0`, in capitals; sysfs a domain of at least four digits, in small letters."""
        domain, _, rest = _text(self._library.nvmlDeviceGetPciInfo(handle).busId).lower().partition(":")
        return f"{int(domain, 16):04x}:{rest}"


def open_nvml() -> NVML | None:
    """NVIDIA's management library, if `nvidia-ml-py` is installed."""
    try:
        return NVMLLibrary(importlib.import_module("pynvml"))
    except ImportError:
        return None


def _text(value: str | bytes) -> str:
    # nvidia-ml-py before 11.5 answers in bytes.
    return value.decode() if isinstance(value, bytes) else value
