"""Modules that libraries import for what this program never does: loaded when somebody touches them after all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Final

# A third of the time until kubelet has its first answer, and 5 MiB.
_UNTOUCHED: Final = frozenset(
    {
        # gRPC's other interface
        "asyncio",
        "grpc.aio",
        # protobuf without its C extension
        "google.protobuf.internal.python_message",
        # what importlib.metadata knows besides entry points, and packages in archives
        "importlib.metadata._adapters",
        "zipfile",
    }
)


class _Deferred:
    """Finds the modules named above, and puts off their execution to the first look at an attribute."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _UNTOUCHED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_untouched() -> None:
    """Put off the modules that nothing here touches; call it once, in a program, before gRPC is imported.

    Whoever does use them, such as the driver of a third party, notices nothing: the first attribute that is asked for
    loads the module.
    """
    sys.meta_path.insert(0, _Deferred)
