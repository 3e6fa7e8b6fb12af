"""A driver's files in the CDI directory: one spec a claim, derived from the record and never the source of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dranode.cdi.directory import read_spec, remove_spec, spec_files, write_spec
from dranode.cdi.errors import CDIError
from dranode.cdi.names import device_problem
from dranode.cdi.spec import Spec
from dranode.driver.core.errors import DranodeError
from dranode.driver.core.record import Record, claim_spec, spec_file


class SpecError(DranodeError):
    """The CDI directory cannot be written or read."""


@dataclass(frozen=True, slots=True)
class Specs:
    """The claims' CDI specs of one kind.

    Attributes:
        directory: the CDI directory, usually /var/run/cdi.
        kind: vendor and class of the driver's CDI devices.
    """

    directory: Path
    kind: str

    def path(self, uid: str) -> Path:
        """The file of a claim's spec, there or not.

        Raises:
            SpecError: the UID cannot be part of a file name and a CDI device name.
        """
        problem = device_problem(uid)
        if problem is not None:
            raise SpecError(f"the UID of a claim becomes part of a CDI device name, but {problem}")
        return self.directory / spec_file(self.kind, uid)

    def write(self, record: Record) -> None:
        """Write a claim's spec; a file that says the same already is left alone.

        Raises:
            SpecError: it cannot be written.
        """
        spec = claim_spec(self.kind, record)
        if spec is None:
            self.remove(record.uid)
            return
        try:
            write_spec(self.directory, self.path(record.uid).name, spec)
        except (OSError, CDIError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SpecError(
                f"the CDI spec of claim {record.ref} cannot be written to {self.directory}: {reason}"
            ) from error

    def remove(self, uid: str) -> None:
        """Remove a claim's spec; one that is not there is removed already.

        Raises:
            SpecError: it cannot be removed, or the UID is not one.
        """
        try:
            remove_spec(self.directory, self.path(uid).name)
        except OSError as error:
            raise SpecError(f"the CDI spec {self.path(uid)} cannot be removed: {error.strerror}") from error

    def read(self, uid: str) -> Spec | None:
        """A claim's spec as it lies there; None if there is none or it is not one."""
        try:
            return read_spec(self.path(uid))
        except (OSError, CDIError):
            return None

    def uids(self) -> Iterator[str]:
        """The claims that have a file of this kind."""
        before, after = spec_file(self.kind, "\0").split("\0")
        with contextlib.suppress(OSError):
            for path in spec_files(self.directory, before):
                yield path.name.removeprefix(before).removesuffix(after)
