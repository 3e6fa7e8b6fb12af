"""Defers modules that libraries import for features which this program never uses, until they are used after all."""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader, find_spec, spec_from_loader
from types import ModuleType
from typing import Any, Final

_UNTOUCHED: Final = frozenset(
    {
        # for resources in archives, addresses in brackets, and names that are misspelt
        "tempfile",
        "ipaddress",
        "difflib",
        # for dates in protobuf's messages, and groups of exceptions
        "calendar",
        "textwrap",
        # for the lines of a source file in a traceback
        "tokenize",
        # the colours of tracebacks from Python 3.14 on, which bring dataclasses and inspect
        "_colorize",
        # gRPC's other interface, in commands
        "asyncio",
        "grpc.aio",
        # protobuf without its C extension
        "google.protobuf.internal.python_message",
        # what importlib.metadata knows besides entry points, and packages in archives
        "importlib.metadata._adapters",
        "zipfile",
    }
)


# msgspec prefers it to typing, and does with typing where it is not there; it loads inspect, ast and dis, 7 ms in all.
_EXTENSIONS: Final = "typing_extensions"


# Modules that any thread of `serve` may touch first, so that Python's own deferral will not do before 3.11.8. For which
# other one alone they are loaded in part, if for one, and that part. uuid asks for the name of the system, and platform
# makes eight regular expressions, 2 ms; msgspec.inspect has 36 classes that describe types, for errors; hashlib is for
# names that are too long for a file, and a Prepare loads it, after its library came with TLS.
_IN_PART: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "platform": ("uuid", {"system": lambda: os.uname().sysname}),
    "msgspec.inspect": ("msgspec", {}),
    "hashlib": ("", {}),
}
# Those that somebody has asked for more.
_asked: Final[set[str]] = set()
_whole: Final = allocate_lock()


class _InPart:
    """Loads a part of a module; the first who asks for more gets all of it, in any thread."""

    def __init__(self, part: Mapping[str, Any]) -> None:
        self._part = part

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Leave the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__

        def more(attribute: str) -> Any:
            with _whole:
                _asked.add(name)
                if sys.modules.get(name) is module:
                    del sys.modules[name]
            value = vars(module)[attribute] = getattr(import_module(name), attribute)
            return value

        vars(module).update(self._part, __getattr__=more)


# Its classes are there in C and, for Pythons without, in Python; until 3.11 each start makes both: 1.5 ms.
_DATETIME: Final = "datetime"


class _CompiledDatetime:
    """Loads a `datetime` of the classes in C alone, as Python 3.12 and newer do."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Leave the module to Python."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        compiled = vars(import_module(f"_{_DATETIME}"))
        vars(module).update({name: value for name, value in compiled.items() if not name.startswith("_")})


def _is_loading(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


class _Deferred:
    """Finds the modules listed above, and defers their execution until the first access to an attribute."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == _EXTENSIONS and _is_loading("msgspec"):
            raise ModuleNotFoundError(f"{name} has nothing that this Python's typing lacks", name=name)
        alone, part = _IN_PART.get(name, ("", {}))
        if name in _IN_PART and name not in _asked and (not alone or _is_loading(alone)):
            return spec_from_loader(name, _InPart(part))  # type: ignore[arg-type]
        if name == _DATETIME and sys.version_info < (3, 12) and find_spec(f"_{name}") is not None:
            return spec_from_loader(name, _CompiledDatetime)  # type: ignore[arg-type]
        spec = PathFinder.find_spec(name, path, target) if name in _UNTOUCHED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_untouched() -> None:
    """Defer the modules that this program does not use; call it once, before gRPC is imported.

    Code that does use them, such as the driver of a third party, works as usual: its first access to an attribute loads
    the module.
    """
    sys.meta_path.insert(0, _Deferred)
    # Python's path names an archive of itself that is seldom there, and looking for entry points in what is not there
    # loads all that reads archives.
    sys.path[:] = [each for each in sys.path if not each or os.path.exists(each)]  # noqa: PTH110 - Path takes longer
