"""Device metadata (KEP-5304): one file for each request, which the claim's CDI spec mounts into containers.

The files are derived from the ledger and written again at a start and with every repeated Prepare, so they are not
flushed to disk. KEP-5304 says where containers find them, not where they are on the host: they are in one folder, and
the name of a file contains the claim's UID. A folder for each claim would cost a Prepare as much time as a file.

A runtime does not start a container if a spec mounts a file that is missing. So files are written before the spec and
removed after it, and a file that cannot be written is not mounted. An existing file is replaced by a rename, because a
container may be reading it; a new one is written in place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from dranode.api.errors import DranodeError
from dranode.cdi.directory import TEMPORARY, make_file, read_spec, remove_spec, spec_files, write_file
from dranode.cdi.errors import CDIError
from dranode.cdi.spec import Mount, Spec
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.metadata import (
    RequestMetadata,
    device_metadata,
    metadata_file,
    metadata_owner,
    older_spec_prefix,
)
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record, uid_problem
from dranode.driver.machine.presence import is_file, is_there

# Earlier versions and dra-driver-cpu use `<namespace>_<claim>/<request>/metadata.json`. Such a file is removed when no
# CDI spec mounts it any more. Kubelet knows the specs that mount it, so they stay until their claims are unprepared.

_FILE: Final = "metadata.json"


def remove_unmounted(folder: Path, cdi: Path, prefix: str) -> None:
    """Remove the metadata files in a folder that no spec mounts, then empty folders, and the folder itself if empty.

    Args:
        folder: the folder.
        cdi: the CDI directory.
        prefix: the prefix of the names of the specs that may mount a file.

    Raises:
        CDIError: a spec is invalid, so it is not known what it mounts; nothing was removed.
        OSError: a spec cannot be read, or a file cannot be removed.
    """
    mounted = {
        mount.host_path
        for path in spec_files(cdi, prefix)
        for device in read_spec(path).devices
        for mount in device.container_edits.mounts
    }
    for file in (*folder.glob(f"*/*/{_FILE}"), *folder.glob(f"*/*/{TEMPORARY[0]}*{TEMPORARY[1]}")):
        if str(file) not in mounted:
            file.unlink(missing_ok=True)
    for empty in (*folder.glob("*/*/"), *folder.glob("*/"), folder):
        # Fails if the folder is not empty, because a file is mounted or belongs to another program.
        with contextlib.suppress(OSError):
            empty.rmdir()


class MetadataError(DranodeError):
    """Device metadata cannot be written or removed."""


class Described(msgspec.Struct, frozen=True):
    """A claim's metadata, as far as it could be written.

    Attributes:
        mounts: the mounts of the files that exist, by CDI device.
        problem: why some files could not be written; empty if all were.
    """

    mounts: Mapping[str, Mount] = {}
    problem: str = ""


class DeviceMetadata(msgspec.Struct, frozen=True):
    """The metadata of one driver's claims.

    Attributes:
        driver: the driver.
        folder: the folder of the files; it has the same path on the host.
        cdi: the CDI directory.
        older: where earlier versions and dra-driver-cpu have folders for claims; None if there is no such folder.
    """

    driver: str
    folder: Path
    cdi: Path
    older: Path | None = None

    @classmethod
    def of(cls, driver: str, data: Path, cdi: Path) -> DeviceMetadata:
        """Return the metadata of a driver with this data folder and this CDI directory."""
        return cls(driver, data / "metadata", cdi, data / "dra-device-metadata")

    def write(self, record: Record, inventory: Inventory) -> Described:
        """Write the metadata of a claim; files with the same content already are left unchanged."""
        try:
            files = device_metadata(self.driver, str(self.folder), record, inventory)
        except DranodeError as error:
            return Described(problem=str(error))
        mounts: dict[str, Mount] = {}
        failures: list[str] = []
        for file in files:
            try:
                self._write(file)
            except OSError as error:
                failures.append(f'request "{file.request}": {error.strerror}')
                # An older file may still be mounted by running containers, so it stays mounted.
                if not _can_be_mounted(self.folder / file.file):
                    continue
            mounts[file.device] = file.mount
        if not failures:
            return Described(mounts)
        reasons = ", ".join(failures)
        return Described(
            mounts,
            f"claim {record.ref} gets no device metadata, because it cannot be written below {self.folder}: {reasons}",
        )

    def _write(self, metadata: RequestMetadata) -> None:
        try:
            make_file(f"{self.folder}/{metadata.file}", metadata.text)
        except (FileExistsError, FileNotFoundError):
            # The file exists, perhaps half written by a driver that was killed; or the folder does not exist yet.
            write_file(self.folder, metadata.file, metadata.text)

    def mounted(self, spec: Spec) -> dict[str, Mount]:
        """Return the mounts of metadata in a claim's CDI spec, by CDI device; none if one of the files is missing."""
        mounts = {
            device.name: mount
            for device in spec.devices
            for mount in device.container_edits.mounts
            if Path(mount.host_path).parent == self.folder
        }
        return mounts if all(_can_be_mounted(Path(mount.host_path)) for mount in mounts.values()) else {}

    def remove(self, ref: ClaimRef, requests: Iterable[str]) -> None:
        """Remove the metadata of a claim for these requests; if no requests are known, all of the claim's metadata.

        Raises:
            MetadataError: a file cannot be removed.
        """
        if uid_problem(ref.uid) is not None:
            return  # no file can have been written for such a UID
        try:
            for request in requests:
                file = metadata_file(ref.uid, request)
                remove_spec(self.folder, file)
                # If a rolling update was rolled back, an older version may have written a separate spec.
                remove_spec(self.cdi, f"{older_spec_prefix(self.driver)}{file}.json")
            if not requests:
                self._remove_all(ref.uid)
        except OSError as error:
            raise MetadataError(
                f"the device metadata of claim {ref} cannot be removed: {error.filename}: {error.strerror}; remove "
                "it by hand, and kubelet's next call unprepares the claim"
            ) from error

    def uids(self) -> frozenset[str]:
        """Return the UIDs of the claims that have metadata, or a CDI spec for metadata as earlier versions wrote.

        Raises:
            MetadataError: the folder or the CDI directory cannot be listed.
        """
        return frozenset(uid for uid, _, _ in self._files() if uid_problem(uid) is None)

    def _remove_all(self, uid: str) -> None:
        for owner, folder, name in self._files():
            if owner == uid:
                remove_spec(folder, name)

    def _files(self) -> Iterator[tuple[str, Path, str]]:
        """Find all metadata files: the claim's UID, the folder and the name of each."""
        for name in _names(self.folder):
            yield metadata_owner(name), self.folder, name
        prefix = older_spec_prefix(self.driver)
        for name in _names(self.cdi):
            if name.startswith(prefix):
                yield metadata_owner(name.removeprefix(prefix)), self.cdi, name

    def has_older(self) -> bool:
        """Return whether there are folders of an earlier version.

        Raises:
            MetadataError: the driver's folder cannot be read.
        """
        return self.older is not None and _is_there(self.older)

    def remove_older(self) -> None:
        """Remove files of earlier versions that no CDI spec mounts any more; the caller holds the lock on decisions.

        Raises:
            MetadataError: a CDI spec cannot be read, or a file cannot be removed.
        """
        if self.older is None:
            return
        try:
            remove_unmounted(self.older, self.cdi, older_spec_prefix(self.driver))
        except (OSError, CDIError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise MetadataError(
                f"device metadata of an earlier version cannot be removed from {self.older}: {reason}"
            ) from error


def _can_be_mounted(file: Path) -> bool:
    try:
        return is_file(file)
    except OSError:
        return False


def _is_there(path: Path) -> bool:
    try:
        return is_there(path)
    except OSError as error:
        raise MetadataError(f"the device metadata in {path} cannot be accessed: {error.strerror}") from error


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise MetadataError(f"the device metadata in {folder} cannot be listed: {error.strerror}") from error
