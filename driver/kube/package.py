"""Modules of the `kubernetes` package, imported without the rest of it.

Importing any of its modules runs `kubernetes/__init__`, which loads every part of the package and what those parts
need: 18 MiB and 100 ms for a driver that wants configuration, authentication and TLS. So the parent packages are
entered in `sys.modules` with their search paths alone while the wanted modules are imported, and all of it is taken out
again, so that an ordinary `import kubernetes` later on meets nothing odd. Where a version of the package does not bear
that, or the package is loaded already, the import is the ordinary one.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Final

log = logging.getLogger(__name__)

_ROOT: Final = "kubernetes"
_PARENTS: Final = (_ROOT, f"{_ROOT}.client", f"{_ROOT}.config", f"{_ROOT}.utils")
_lock: Final = threading.Lock()


@functools.cache
def submodules(*names: str) -> tuple[ModuleType, ...]:
    """The modules of those names below `kubernetes`, such as `client.rest`; one call's modules belong together.

    Raises:
        ImportError: there is no such module, or no such package.
    """
    with _lock:
        if _ROOT not in sys.modules:
            try:
                return _alone(names)
            except (ImportError, AttributeError) as error:
                log.debug("the kubernetes package is loaded whole: %s", error)
        return tuple(import_module(f"{_ROOT}.{name}") for name in names)


def _alone(names: tuple[str, ...]) -> tuple[ModuleType, ...]:
    try:
        path = None
        for name in _PARENTS:
            parent = _without_init(name, path)
            path = path or list(parent.__path__)
        # What the others import from `kubernetes.client` itself; its ApiClient is only named there.
        client = sys.modules[f"{_ROOT}.client"]
        vars(client).update(Configuration=import_module(f"{_ROOT}.client.configuration").Configuration, ApiClient=None)
        return tuple(import_module(f"{_ROOT}.{name}") for name in names)
    finally:
        for name in [name for name in sys.modules if name == _ROOT or name.startswith(f"{_ROOT}.")]:
            del sys.modules[name]


def _without_init(name: str, path: list[str] | None) -> ModuleType:
    spec = PathFinder.find_spec(name, path)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"there is no package {name}", name=name)
    module = ModuleType(name)
    module.__spec__ = spec
    module.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = module
    return module
