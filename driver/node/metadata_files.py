"""Device metadata in files (KEP-5304), one a request, which the claim's CDI spec mounts.

Nothing is flushed to disk: the files are derived from the ledger and made again at start and on every repeated Prepare.
Where a file lies on the host is the driver's own business, and programs find it where the CDI spec mounts it; its name
says whose it is. So a claim has no folders of its own, each of which would cost a Prepare as much as a file.

A runtime starts no container for which a spec mounts what is not there. So the files come before the spec and go after
it, and what cannot be written is not mounted. A file that is there is replaced, since containers may read it; one that
is not is made in its place, which costs half as much.
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

# Device metadata as earlier versions laid it out, and as dra-driver-cpu does, in folders of claims.  The file of a
# request is `<namespace>_<claim>/<request>/metadata.json`. It goes when no CDI spec mounts it any more: the specs
# that do were reported to kubelet, and are removed when their claims are unprepared.

_FILE: Final = "metadata.json"


def remove_unmounted(folder: Path, cdi: Path, prefix: str) -> None:
    """Remove the files below a folder that no spec mounts, and the folders that are empty then, the folder itself too.

    Args:
        folder: the folder.
        cdi: the CDI directory.
        prefix: how the names of the specs begin that may mount a file.

    Raises:
        CDIError: a spec is not one, so that it is not known what it mounts; nothing has been removed.
        OSError: a spec cannot be read, or a file not be removed.
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
        # Not empty: a file is mounted, or another program has put something there.
        with contextlib.suppress(OSError):
            empty.rmdir()


class MetadataError(DranodeError):
    """Device metadata cannot be written or removed."""


class Described(msgspec.Struct, frozen=True):
    """A claim's metadata, as far as it could be written.

    Attributes:
        mounts: the mounts of the files that are there, by the CDI device that has them.
        problem: why some could not be written; empty if all could.
    """

    mounts: Mapping[str, Mount] = {}
    problem: str = ""


class DeviceMetadata(msgspec.Struct, frozen=True):
    """The metadata of one driver's claims.

    Attributes:
        driver: the driver.
        folder: where the files lie, by the same path on the host.
        cdi: the CDI directory.
        older: where earlier versions, and dra-driver-cpu, have folders for claims; None if there is no such place.
    """

    driver: str
    folder: Path
    cdi: Path
    older: Path | None = None

    @classmethod
    def of(cls, driver: str, data: Path, cdi: Path) -> DeviceMetadata:
        """The metadata of a driver with this folder and this CDI directory."""
        return cls(driver, data / "metadata", cdi, data / "dra-device-metadata")

    def write(self, record: Record, inventory: Inventory) -> Described:
        """Write the metadata of a claim; files that say the same already are left alone."""
        try:
            files = device_metadata(self.driver, str(self.folder), record, inventory)
        except DranodeError as error:
            return Described(problem=str(error))
        mounts: dict[str, Mount] = {}
        failures: list[str] = []
        for each in files:
            try:
                self._write(each)
            except OSError as error:
                failures.append(f'of request "{each.request}": {error.strerror}')
                # A file that was there before may have been reported to kubelet.
                if not _can_be_mounted(self.folder / each.file):
                    continue
            mounts[each.device] = each.mount
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
            # It is there, in full or as a killed driver left it, or the folder is not.
            write_file(self.folder, metadata.file, metadata.text)

    def mounted(self, spec: Spec) -> dict[str, Mount]:
        """The mounts of metadata in a claim's CDI spec, by the CDI device; none unless all that it mounts is there."""
        mounts = {
            device.name: mount
            for device in spec.devices
            for mount in device.container_edits.mounts
            if Path(mount.host_path).parent == self.folder
        }
        return mounts if all(_can_be_mounted(Path(mount.host_path)) for mount in mounts.values()) else {}

    def remove(self, ref: ClaimRef, requests: Iterable[str]) -> None:
        """Remove the metadata of a claim with these requests, or whatever there is of it if none is known.

        What is not there is removed already.

        Raises:
            MetadataError: it cannot be removed.
        """
        if uid_problem(ref.uid) is not None:
            return  # no file can be of it
        try:
            for request in requests:
                file = metadata_file(ref.uid, request)
                remove_spec(self.folder, file)
                # An older instance may have written its own spec for it, in a rolling update that was taken back.
                remove_spec(self.cdi, f"{older_spec_prefix(self.driver)}{file}.json")
            if not requests:
                self._remove_all(ref.uid)
        except OSError as error:
            raise MetadataError(
                f"the device metadata of claim {ref} cannot be removed: {error.filename}: {error.strerror}; remove "
                "what lies there, and kubelet's next call unprepares the claim"
            ) from error

    def uids(self) -> frozenset[str]:
        """The UIDs of the claims that have metadata, or a CDI spec for it as earlier versions wrote.

        Raises:
            MetadataError: the folder or the CDI directory cannot be listed.
        """
        return frozenset(uid for uid, _, _ in self._files() if uid_problem(uid) is None)

    def _remove_all(self, uid: str) -> None:
        for owner, folder, name in self._files():
            if owner == uid:
                remove_spec(folder, name)

    def _files(self) -> Iterator[tuple[str, Path, str]]:
        """Whatever there is of metadata: the UID of the claim that it is of, the folder and the name of the file."""
        for name in _names(self.folder):
            yield metadata_owner(name), self.folder, name
        prefix = older_spec_prefix(self.driver)
        for name in _names(self.cdi):
            if name.startswith(prefix):
                yield metadata_owner(name.removeprefix(prefix)), self.cdi, name

    def has_older(self) -> bool:
        """Return whether there are folders of an earlier version.

        Raises:
            MetadataError: the driver's folder may not be looked into.
        """
        return self.older is not None and _is_there(self.older)

    def remove_older(self) -> None:
        """Remove what earlier versions wrote and no CDI spec mounts any more; the lock on decisions is held.

        Raises:
            MetadataError: some CDI spec cannot be read, or a file not be removed.
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
        raise MetadataError(f"the device metadata in {path} cannot be looked for: {error.strerror}") from error


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise MetadataError(f"the device metadata in {folder} cannot be listed: {error.strerror}") from error
