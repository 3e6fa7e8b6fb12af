"""Device metadata in files (KEP-5304), one a request, and the CDI specs that mount them.

Nothing is flushed to disk: the files are derived from the ledger and made again at start and on every repeated Prepare.
Readers see a file whole or not at all. A file's name says whose it is. Where it lies on the host is the driver's own
business, and programs find it where the CDI spec mounts it: so a claim has no folders of its own, each of which would
cost a Prepare as much as a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dranode.cdi.directory import remove_spec, write_file, write_spec
from dranode.cdi.errors import CDIError
from dranode.cdi.names import qualified_name
from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.metadata import (
    RequestMetadata,
    device_metadata,
    metadata_device,
    metadata_file,
    metadata_kind,
    metadata_owner,
    metadata_spec_file,
    requests_of,
)
from dranode.driver.core.claims.record import Record, uid_problem
from dranode.driver.machine.presence import is_there
from dranode.driver.node.older_metadata import remove_unmounted


class MetadataError(DranodeError):
    """Device metadata cannot be written or removed."""


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
        write_file(self.folder, metadata.file, metadata.text)
        write_spec(self.cdi, metadata.spec_file, metadata.spec)

    def ids(self, record: Record, *, there: bool) -> dict[str, str]:
        """The CDI ids of the claim's requests that have metadata, by request; all have, if their specs are `there`.

        Raises:
            MetadataError: the CDI directory may not be looked into.
        """
        return {
            request: qualified_name(metadata_kind(self.driver), metadata_device(record.uid, request))
            for request in requests_of(record)
            if there or _is_there(self.cdi / metadata_spec_file(self.driver, record.uid, request))
        }

    def spec_files(self, record: Record) -> tuple[Path, ...]:
        """The CDI specs that mount the claim's metadata, as far as they are there.

        Raises:
            MetadataError: the CDI directory may not be looked into.
        """
        return tuple(filter(_is_there, map(self.cdi.joinpath, self.spec_names(record))))

    def spec_names(self, record: Record) -> tuple[str, ...]:
        """The names of the CDI specs that mount the claim's metadata, there or not."""
        return tuple(metadata_spec_file(self.driver, record.uid, request) for request in requests_of(record))

    def remove(self, ref: ClaimRef, requests: Iterable[str]) -> None:
        """Remove the metadata of a claim with these requests, or whatever there is of it if none is known.

        What is not there is removed already.

        Raises:
            MetadataError: it cannot be removed.
        """
        if uid_problem(ref.uid) is not None:
            return  # no file can be of it
        try:
            for request in requests or self._requests(ref.uid):
                remove_spec(self.cdi, metadata_spec_file(self.driver, ref.uid, request))
                remove_spec(self.folder, metadata_file(ref.uid, request))
        except OSError as error:
            raise MetadataError(
                f"the device metadata of claim {ref} cannot be removed from {self.folder} and {self.cdi}: "
                f"{error.strerror}"
            ) from error

    def uids(self) -> frozenset[str]:
        """The UIDs of the claims that have metadata.

        Raises:
            MetadataError: the folder or the CDI directory cannot be listed.
        """
        return frozenset(map(metadata_owner, self._devices()))

    def _requests(self, uid: str) -> tuple[str, ...]:
        return tuple(name.removeprefix(f"{uid}_") for name in self._devices() if metadata_owner(name) == uid)

    def _devices(self) -> frozenset[str]:
        """The names by which files and specs are there, `<UID>_<request>`."""
        before, after = metadata_spec_file(self.driver, "\0", "\0").split("\0_\0")
        specs = (name for name in _names(self.cdi) if name.startswith(before) and name.endswith(after))
        names = (*_names(self.folder), *(name[len(before) : -len(after)] for name in specs))
        return frozenset(name for name in names if uid_problem(metadata_owner(name)) is None)

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
            remove_unmounted(self.older, self.cdi, metadata_spec_file(self.driver, "", "").removesuffix("_.json"))
        except (OSError, CDIError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise MetadataError(
                f"device metadata of an earlier version cannot be removed from {self.older}: {reason}"
            ) from error


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
