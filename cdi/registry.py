"""The devices that a runtime finds in its CDI directories, and a watch on them.

Source: pkg/cdi/cache.go of the Go library, v1.1: a device in a later directory overrides the same device in an earlier
one; a device that two specs of one directory define is not injected at all.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dranode.cdi.directory import spec_files
from dranode.cdi.errors import CDIError
from dranode.cdi.names import qualified_name
from dranode.cdi.regular_file import read_regular
from dranode.cdi.rules import validate
from dranode.cdi.spec import CDIDevice, Spec

DIRECTORIES: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where runtimes look for specs; the later directory has precedence."""


class FoundDevice(msgspec.Struct, frozen=True):
    """A device that a container can request.

    Attributes:
        device: its name in the spec and its edits.
        spec: its spec, whose own edits apply to every container with one of its devices.
        path: the spec's file.
    """

    device: CDIDevice
    spec: Spec
    path: Path


class Registry(msgspec.Struct, frozen=True):
    """The content of CDI directories at one moment.

    Attributes:
        devices: the devices that a runtime injects, by qualified name (`vendor/class=device`).
        problems: why a file or one of its devices is not used, in sentences, by file.
    """

    devices: Mapping[str, FoundDevice]
    problems: Mapping[Path, tuple[str, ...]]


def read_registry(directories: Sequence[Path] = DIRECTORIES) -> Registry:
    """Read all specs of the directories as a runtime does; a missing directory has none.

    Raises:
        OSError: a directory cannot be read.
    """
    devices: dict[str, tuple[int, FoundDevice]] = {}
    conflicts: set[str] = set()
    problems: dict[Path, list[str]] = {}
    for priority, directory in enumerate(directories):
        for path in spec_files(directory):
            try:
                spec = _loaded(path)
            except (CDIError, OSError) as error:
                # One bad file does not keep a runtime from reading the others.
                problems.setdefault(path, []).append(str(error))
                continue
            for device in spec.devices:
                name, found = qualified_name(spec.kind, device.name), FoundDevice(device, spec, path)
                other = devices.get(name)
                # Directories come in ascending order of priority, so only the same priority is a conflict.
                if other is not None and other[0] == priority:
                    conflicts.add(name)
                    for place in (path, other[1].path):
                        sentence = f"device {name} is also in another spec of {directory}, so no container gets it"
                        problems.setdefault(place, []).append(sentence)
                else:
                    devices[name] = priority, found
    return Registry(
        {name: found for name, (_, found) in devices.items() if name not in conflicts},
        {path: tuple(dict.fromkeys(sentences)) for path, sentences in problems.items()},
    )


def _loaded(path: Path) -> Spec:
    verdict = validate(read_regular(path))
    if verdict.spec is None:
        raise verdict.problems[0]
    return verdict.spec


def watch_registry(
    stop: threading.Event, directories: Sequence[Path] = DIRECTORIES, seconds: float = 1.0
) -> Iterator[Registry]:
    """Yield the content of the directories now and after each change, until `stop` is set.

    Files are compared every `seconds` by inode, size and time, since writers replace a spec by a rename.

    Raises:
        OSError: a directory cannot be read.
    """
    before: object = None
    while not stop.is_set():
        now = [(path, _signature(path)) for directory in directories for path in spec_files(directory)]
        if now != before:
            before = now
            yield read_registry(directories)
        stop.wait(seconds)


def _signature(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()  # removed since it was listed; the next round sees the change
    return status.st_ino, status.st_size, status.st_mtime_ns
