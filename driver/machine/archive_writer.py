"""Writes a recording as a tar archive that `--machine` accepts; equal recordings make equal bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dranode.driver.core.api.errors import MachineError, UsageError
from dranode.driver.machine.capture import Recording
from dranode.driver.machine.forms import INDEX

_PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    ".tar": bytes,
    ".tar.gz": lambda content: gzip.compress(content, mtime=0),
    ".tgz": lambda content: gzip.compress(content, mtime=0),
    ".tar.bz2": bz2.compress,
}


def write_archive(recording: Recording, path: Path) -> None:
    """Write the archive atomically; its top folder has the name of the file.

    Raises:
        UsageError: the file's name does not say which compression to use.
        MachineError: the file cannot be written.
    """
    ending = next((ending for ending in sorted(_PACKERS, key=len, reverse=True) if path.name.endswith(ending)), None)
    if ending is None or path.name == ending:
        raise UsageError(f'"{path}" must end in one of {", ".join(_PACKERS)}, after a name')
    content = _PACKERS[ending](_tar(recording, path.name.removesuffix(ending)))
    try:
        # In the same folder, because a rename cannot cross file systems; mkstemp makes it readable for its owner only.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}") from error


def _tar(recording: Recording, name: str) -> bytes:
    index = {
        "devices": {f"/{path}": f"{node.kind} {node.major}:{node.minor}" for path, node in recording.devices.items()}
    }
    files = {**recording.files, INDEX: json.dumps(index, indent=1, sort_keys=True).encode() + b"\n"}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted({*files, *recording.links}):
            member = tarfile.TarInfo(f"{name}/{path}")
            member.mode = 0o644
            if path in recording.links:
                member.type, member.linkname = tarfile.SYMTYPE, recording.links[path]
                archive.addfile(member)
            else:
                member.size = len(files[path])
                archive.addfile(member, io.BytesIO(files[path]))
    return made.getvalue()
