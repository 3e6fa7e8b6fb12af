"""A folder of YAML files in place of an API server: one folder for each kind, one file for each object.

    resourceclaims/<namespace>.<name>.yaml   resourceslices/<name>.yaml   ...

Files are replaced atomically (temporary file, rename), so a reader in another process never reads half a file.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from dranode.api.documents import API_VERSION, decode, encode, to_v1
from dranode.api.errors import ClaimGoneError, DocumentError, DranodeError
from dranode.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dranode.cdi.regular_file import read_regular
from dranode.driver.claims.held import ClaimRef
from dranode.driver.machine.yaml_files import dump_yaml, parse_yaml

T = TypeVar("T", ResourceClaim, ResourceSlice, DeviceClass)

_FOLDERS: Final[Mapping[type, str]] = {
    ResourceClaim: "resourceclaims",
    ResourceSlice: "resourceslices",
    DeviceClass: "deviceclasses",
}
# A namespace of 63 characters and a name of 253 exceed the 255 bytes of a file name; a hash distinguishes what is cut.
_MAX_STEM: Final = 250
_CUT: Final = 200


class Store(msgspec.Struct, frozen=True):
    """The objects below a folder."""

    folder: Path

    def put(self, value: ResourceClaim | ResourceSlice | DeviceClass) -> None:
        """Write an object, replacing an object with the same name.

        Raises:
            DranodeError: the folder cannot be written.
        """
        document = {"apiVersion": API_VERSION, "kind": type(value).__name__, **encode(value)}
        path = self._path(type(value), value.metadata.namespace, value.metadata.name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, dump_yaml(document))
        except OSError as error:
            raise DranodeError(f"{path} cannot be written: {error.strerror}") from error

    def find(self, kind: type[T], namespace: str, name: str) -> T | None:
        """Return the object with this name, or None if it does not exist.

        Raises:
            DocumentError: the object cannot be read or decoded.
        """
        return self._read(kind, self._path(kind, namespace, name))

    def list(self, kind: type[T]) -> tuple[T, ...]:
        """Return all objects of a kind in the order of their file names.

        Raises:
            DocumentError: the folder cannot be read, or an object cannot be read or decoded.
        """
        folder = self.folder / _FOLDERS[kind]
        # Sorted, so that a run can be repeated. Temporary files of writers have another suffix.
        try:
            names = sorted(path.name for path in folder.iterdir() if path.suffix == ".yaml")
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise DocumentError(f"{folder} cannot be read: {error.strerror}") from error
        # A file may disappear between the listing and the read.
        values = (self._read(kind, folder / name) for name in names)
        return tuple(value for value in values if value is not None)

    def remove(self, kind: type, namespace: str, name: str) -> None:
        """Remove an object; do nothing if it does not exist.

        Raises:
            DranodeError: the object cannot be removed.
        """
        path = self._path(kind, namespace, name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise DranodeError(f"{path} cannot be removed: {error.strerror}") from error

    def get(self, refs: tuple[ClaimRef, ...]) -> dict[ClaimRef, ResourceClaim | DranodeError]:
        """Return each claim as it is now, or the error of reading it."""
        return {ref: self._claim(ref) for ref in refs}

    def _claim(self, ref: ClaimRef) -> ResourceClaim | DranodeError:
        try:
            claim = self.find(ResourceClaim, ref.namespace, ref.name)
        except DranodeError as error:
            # Only a missing file shows that the claim is gone. What a claim holds must not be released for any other
            # reason.
            return error
        return claim if claim is not None else ClaimGoneError(f"claim {ref} does not exist in {self.folder}")

    def _path(self, kind: type, namespace: str, name: str) -> Path:
        stem = f"{namespace}.{name}" if namespace else name
        # kubelet's calls name claims too, and no name may lead out of the folder.
        if "/" in stem or "\0" in stem:
            raise DocumentError(f'"{stem}" cannot be the name of an object')
        name_bytes = stem.encode()
        if len(name_bytes) > _MAX_STEM:
            # The cut may be inside a character.
            start = name_bytes[:_CUT].decode(errors="ignore")
            stem = f"{start}~{hashlib.blake2b(name_bytes, digest_size=8).hexdigest()}"
        return self.folder / _FOLDERS[kind] / f"{stem}.yaml"

    @staticmethod
    def _read(kind: type[T], path: Path) -> T | None:
        """Return the object in a file; None if the file does not exist, or no longer does."""
        # A named pipe in the folder is an error here; opening it like a file would wait for a writer.
        try:
            document = parse_yaml(read_regular(path), str(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DocumentError(f"{path} cannot be read: {error.strerror}") from error
        if not isinstance(document, dict):
            raise DocumentError(f"{path} contains no object")
        try:
            return decode(kind, to_v1(document))
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from error


def _replace(path: Path, text: str) -> None:
    # In the same folder, because a rename works only within one file system.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
