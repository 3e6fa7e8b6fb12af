"""Saves the bytecode of the modules that a start of `dranode serve` needs: `python save_modules.py`, in an image.

A start loads modules where it needs them, many within functions, so they are named here: each brings what it imports. A
test of `tests/edge/test_kube_serve.py` sees that none is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from dranode.driver.process.deferred import defer_untouched
from dranode.driver.process.saved_modules import SavedModule, ending, saved_modules

_LISTENING = ("driver.cli.daemon", "driver.kubelet.listener", "driver.kubelet.service", "driver.kubelet.health")
_SERVING = ("driver.serve.service", "driver.serve.authority", "driver.serve.takeover", "driver.serve.pinning_together")
_PEERS = ("driver.kube.cluster", "driver.kube.pod_account", "driver.kubelet.podresources", "driver.nri.access")
_DRIVERS = ("cpu", "gpu", "memory")
# Of a file with Python's bytecode (PEP 552).
_HEAD = 16


def needed() -> tuple[str, ...]:
    """The modules of a start that bring all others with them: the framework's, and those of this package's drivers."""
    drivers = (
        f"{driver}.{each.stem}"
        for driver in _DRIVERS
        for folder in import_module(f"dranode.{driver}").__path__
        for each in sorted(Path(folder).glob("[!_]*.py"))
    )
    return tuple(f"dranode.{name}" for name in (*_LISTENING, *_SERVING, *_PEERS, *drivers))


def save_modules(file: Path, names: Iterable[str]) -> int:
    """Save those of the loaded modules that come from source; how many these are.

    Raises:
        OSError: Python has kept no bytecode of one of them, or the file cannot be written.
    """
    table: dict[str, SavedModule] = {}
    with file.open("wb") as out:
        for name in names:
            # Deferred modules wait to be touched, which no start does; to look at their attributes would load them.
            if type(sys.modules[name]) is not ModuleType:
                continue
            spec = sys.modules[name].__spec__
            if spec is None or type(spec.loader) is not SourceFileLoader or not (spec.origin and spec.cached):
                continue
            start = out.tell()
            length = out.write(Path(spec.cached).read_bytes()[_HEAD:])
            source, is_package = Path(spec.origin).stat(), spec.submodule_search_locations is not None
            table[name] = (
                spec.origin, spec.cached, is_package, source.st_size, source.st_mtime_ns, start, length
            )  # fmt: skip
        out.write(ending(table))
    return len(table)


def main() -> None:
    """Load what a start needs, and save what has been loaded."""
    defer_untouched()
    for name in needed():
        import_module(name)
    file = saved_modules(sys.prefix)
    count = save_modules(Path(file), sorted(sys.modules))
    print(f"{count} modules are saved in {file}")


if __name__ == "__main__":
    main()
