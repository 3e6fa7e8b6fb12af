"""A driver's files in the CDI directory: one spec for each claim, derived from the claim's record."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from dranode.api.errors import DranodeError, LedgerError
from dranode.cdi.directory import read_spec, remove_spec, write_spec
from dranode.cdi.errors import CDIError
from dranode.cdi.spec import Mount, Spec
from dranode.driver.claims.record import Record, claim_spec, spec_file, uid_problem

# Inode, size and time of modification: one of them changes whenever somebody changes the file.
Stamp = tuple[int, int, int]


class SpecError(DranodeError):
    """The CDI directory cannot be written or read."""


class Specs(msgspec.Struct, frozen=True):
    """The claims' CDI specs of one kind.

    Attributes:
        directory: the CDI directory, usually /var/run/cdi.
        kind: vendor and class of the driver's CDI devices.
    """

    directory: Path
    kind: str

    def path(self, uid: str) -> Path:
        """Return the path of a claim's spec, whether it exists or not.

        Raises:
            SpecError: the UID cannot be part of a file name and a CDI device name.
        """
        return self.directory / self.name(uid)

    def name(self, uid: str) -> str:
        """Return the name of that file.

        Raises:
            SpecError: as `path` does.
        """
        problem = uid_problem(uid)
        if problem is not None:
            raise SpecError(f"the UID of a claim becomes part of a CDI device name, but {problem}")
        return spec_file(self.kind, uid)

    def write(self, record: Record, mounts: Mapping[str, Mount], original: Record | None = None) -> bool:
        """Write a claim's spec; False if the file has the same content already.

        Args:
            record: the record, with completed grants.
            mounts: mounts besides the edits of the record, by the name of the CDI device.
            original: the record as it is in the ledger, if the spec is to carry a copy of it.

        Raises:
            SpecError: it cannot be written.
        """
        try:
            return write_spec(self.directory, self.name(record.uid), claim_spec(self.kind, record, mounts, original))
        except (OSError, CDIError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SpecError(
                f"the CDI spec of claim {record.ref} cannot be written to {self.directory}: {reason}"
            ) from error

    def remove(self, uid: str) -> None:
        """Remove a claim's spec, if there is one.

        Raises:
            SpecError: it cannot be removed.
        """
        if uid_problem(uid) is not None:
            # No spec can have been written for such a UID.
            return
        try:
            remove_spec(self.directory, self.name(uid))
        except OSError as error:
            raise SpecError(f"the CDI spec {self.path(uid)} cannot be removed: {error.strerror}") from error

    def read(self, uid: str) -> Spec | None:
        """Read a claim's spec; None if there is none, or if the file is not a valid spec."""
        if uid_problem(uid) is not None:
            return None
        try:
            # Why it cannot be read does not matter here: in both cases it does not say what the claim holds.
            return read_spec(self.path(uid))
        except (OSError, CDIError):
            return None

    def check(self) -> None:
        """Check that specs can be listed and written. A missing directory is fine: it is created with the first spec.

        Raises:
            LedgerError: specs cannot be listed.
            SpecError: specs cannot be written.
        """
        try:
            with os.scandir(self.directory) as entries:
                next(entries, None)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unlisted(error) from error
        # For root this fails only on a file system that is mounted read-only, which is the usual reason.
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise SpecError(
                f"CDI specs cannot be written to {self.directory}: check that it is mounted read-write; "
                "no new claims are prepared until they can be written"
            )

    def names(self) -> frozenset[str]:
        """Return the names of all files in the directory; none if there is no directory.

        Raises:
            LedgerError: the directory cannot be listed.
        """
        try:
            return frozenset(os.listdir(self.directory))
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise self._unlisted(error) from error

    def uids(self) -> frozenset[str]:
        """Return the UIDs of the claims that have a file of this kind; none if there is no directory.

        Raises:
            LedgerError: the directory cannot be listed.
        """
        return self.uids_of(self.names())

    def uids_of(self, names: Iterable[str]) -> frozenset[str]:
        """Return the UIDs of the claims whose specs have these names."""
        # What stands before and after the UID in a file name.
        before, after = spec_file(self.kind, "\0").split("\0")
        ours = (name for name in names if name.startswith(before) and name.endswith(after))
        uids = (name[len(before) : -len(after)] for name in ours)
        return frozenset(uid for uid in uids if uid_problem(uid) is None)

    def stamp(self, uid: str) -> Stamp | None:
        """Return the stamp of a claim's spec; None if there is no file."""
        try:
            status = os.stat(f"{self.directory}/{self.name(uid)}")
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamps of all specs, by UID.

        Raises:
            LedgerError: the directory cannot be listed.
        """
        stamps = {uid: self.stamp(uid) for uid in self.uids()}
        return {uid: stamp for uid, stamp in stamps.items() if stamp is not None}

    def _unlisted(self, error: OSError) -> LedgerError:
        # An error of the ledger, because a leftover spec in the directory may hold a device: new claims have to wait.
        return LedgerError(
            f"the CDI specs in {self.directory} cannot be listed: {error.strerror}; "
            "no new claims are prepared until they can be listed"
        )
