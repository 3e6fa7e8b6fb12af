"""Device metadata on disk (KEP-5304): files below the driver's folder, and the CDI specs that mount them.

Nothing is flushed to disk: the files are derived from the ledger and made again at start and on every repeated Prepare.
Readers see a file whole or not at all. A claim's folder has no UID in its name, so a claim that replaced another one of
the same name finds its predecessor's files there, and the predecessor must leave its successor's alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from dranode.cdi.directory import TEMPORARY, remove_spec, replace_file, write_spec
from dranode.cdi.errors import CDIError
from dranode.cdi.names import qualified_name
from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.metadata import (
    RequestMetadata,
    claim_folder,
    device_metadata,
    metadata_device,
    metadata_kind,
    metadata_spec_file,
    requests_of,
)
from dranode.driver.core.claims.record import Record, uid_problem

# Containers of any user read these; the process keeps everything else to itself (umask 077).
_FOLDER_MODE: Final = 0o755
_FILE: Final = "metadata.json"
_ATTEMPTS: Final = 2


class _Metadata(msgspec.Struct):
    uid: str


class _Owned(msgspec.Struct):
    metadata: _Metadata


# Made once: two threads that teach msgspec a type at once crash the process.
_OWNED: Final = msgspec.json.Decoder(_Owned)


class MetadataError(DranodeError):
    """Device metadata cannot be written or removed."""


class DeviceMetadata(msgspec.Struct, frozen=True):
    """The metadata of one driver's claims.

    Attributes:
        driver: the driver.
        folder: `<driver's folder>/dra-device-metadata`, by the same path on the host.
        cdi: the CDI directory.
    """

    driver: str
    folder: Path
    cdi: Path
    # Folders out of which files were removed, which may be empty; any thread adds and takes.
    _emptied: dict[str, None] = msgspec.field(default_factory=dict)

    def write(self, record: Record, inventory: Inventory) -> None:
        """Write the metadata of a claim; files that say the same already are left alone.

        Raises:
            MetadataError: some of it cannot be written; what could be is there.
        """
        failures: list[str] = []
        for each in device_metadata(self.driver, str(self.folder), record, inventory):
            try:
                self._write(each)
            except (OSError, CDIError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                failures.append(f'of request "{each.request}": {reason}')
        if failures:
            raise MetadataError(
                f"claim {record.ref} gets no device metadata, because it cannot be written below {self.folder} and "
                f"{self.cdi}: {', '.join(failures)}"
            )

    def _write(self, metadata: RequestMetadata) -> None:
        # The file comes first: a runtime that sees the spec may start a container with it.
        self._emptied.pop(f"{self.folder}/{metadata.file.partition('/')[0]}", None)
        _replace(self.folder, metadata.file, metadata.text)
        write_spec(self.cdi, metadata.spec_file, metadata.spec)

    def ids(self, record: Record, *, there: bool) -> dict[str, str]:
        """The CDI ids of the claim's requests that have metadata, by request; all have, if their specs are `there`."""
        return {
            request: qualified_name(metadata_kind(self.driver), metadata_device(record.uid, request))
            for request in requests_of(record)
            if there or os.path.exists(f"{self.cdi}/{metadata_spec_file(self.driver, record.uid, request)}")
        }

    def spec_files(self, record: Record) -> tuple[Path, ...]:
        """The CDI specs that mount the claim's metadata, as far as they are there."""
        return tuple(path for path in map(self.cdi.joinpath, self.spec_names(record)) if path.exists())

    def spec_names(self, record: Record) -> tuple[str, ...]:
        """The names of the CDI specs that mount the claim's metadata, there or not."""
        return tuple(metadata_spec_file(self.driver, record.uid, request) for request in requests_of(record))

    def predecessors(self, record: Record) -> frozenset[str]:
        """The UIDs of other claims whose metadata lies where this claim's belongs: they had its name before it."""
        if not record.name:
            return frozenset()
        folder = f"{self.folder}/{claim_folder(record.namespace, record.name)}"
        owners = {_owner(f"{folder}/{request}/{_FILE}") for request in _names(folder)}
        return frozenset(uid for uid in owners if uid not in (None, record.uid))

    def remove(self, ref: ClaimRef, requests: Iterable[str]) -> None:
        """Remove the metadata of a claim with these requests; what is not there is removed already.

        Raises:
            MetadataError: it cannot be removed.
        """
        if uid_problem(ref.uid) is not None:
            return  # no file can be of it
        folder = f"{self.folder}/{claim_folder(ref.namespace, ref.name)}" if ref.name else None
        known = frozenset(requests)
        try:
            self._remove(ref.uid, folder, known)
            if folder is not None:
                self._remove(ref.uid, folder, frozenset(_names(folder)) - known)
                self._emptied[folder] = None
        except OSError as error:
            raise MetadataError(
                f"the device metadata of claim {ref} cannot be removed from {self.folder} and {self.cdi}: "
                f"{error.strerror}"
            ) from error

    def sweep(self, *, everything: bool = False) -> None:
        """Remove the folders that removals have emptied; `everything`: and those of a process that was killed before.

        An rmdir on ext4 may take milliseconds, so no call of kubelet waits for it. It needs no lock, since a writer
        that finds its folder gone makes it again.
        """
        if everything:
            self._emptied.update((f"{self.folder}/{name}", None) for name in _names(str(self.folder)))
        for folder in tuple(self._emptied):
            self._emptied.pop(folder, None)
            for name in _names(folder):
                _remove_empty(f"{folder}/{name}")
            _remove_empty(folder)

    def _remove(self, uid: str, folder: str | None, requests: frozenset[str]) -> None:
        for request in sorted(requests):
            remove_spec(self.cdi, metadata_spec_file(self.driver, uid, request))
            if folder is not None:
                _remove_request(f"{folder}/{request}", uid)


def _names(folder: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _remove_request(folder: str, uid: str) -> None:
    if _owner(f"{folder}/{_FILE}") not in (uid, None):
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(f"{folder}/{_FILE}")
    for name in _names(folder):
        # A driver that was killed while it wrote leaves its temporary file.
        if name.startswith(TEMPORARY[0]) and name.endswith(TEMPORARY[1]):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{name}")


def _owner(file: str) -> str | None:
    """The UID of the claim that a file is of; None if there is no file, or it is not one of ours."""
    try:
        with open(file, "rb", buffering=0) as found:
            data = found.read()
    except OSError:
        return None
    # Of the documents of a file as it is written here, each ends with the only brace at the beginning of a line.
    first, _, _ = data.partition(b"\n}\n")
    with contextlib.suppress(ValueError):
        return _OWNED.decode(first + b"\n}").metadata.uid
    try:
        document, _ = json.JSONDecoder().raw_decode(data.decode())
        return str(document["metadata"]["uid"])
    except (ValueError, KeyError, TypeError):
        return None


def _remove_empty(folder: str) -> None:
    """Remove a folder, unless a claim of this name, or another program, has put something there."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _replace(top: Path, file: str, data: bytes) -> None:
    target = f"{top}/{file}"
    try:
        with open(target, "rb", buffering=0) as found:
            if found.read() == data:
                return
    except OSError:
        # A sweep may take away what was just made, and comes to a folder once.
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                _make_folders(str(top), file)
                replace_file(target, data)
                return
        _make_folders(str(top), file)
    replace_file(target, data)


def _make_folders(top: str, file: str) -> None:
    claim, request, _ = file.split("/")
    try:
        _make(f"{top}/{claim}")
    except FileNotFoundError:
        _make(top)
        _make(f"{top}/{claim}")
    _make(f"{top}/{claim}/{request}")


def _make(folder: str) -> None:
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    os.chmod(folder, _FOLDER_MODE)
