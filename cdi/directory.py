"""The folder of spec files that runtimes watch (`/var/run/cdi`), on disk.

A runtime notices a file that is renamed inside the folder. A file that is linked or moved into it may stay unseen.
Nothing is synced to disk, because specs are derived from the ledger and can be written again.
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from dranode.cdi.errors import CDIError
from dranode.cdi.names import written_kind_problem
from dranode.cdi.regular_file import read_regular
from dranode.cdi.rules import spec_problems
from dranode.cdi.spec import Spec

FOLDER_MODE: Final = 0o755
# Diagnostic tools without root rights read specs too.
FILE_MODE: Final = 0o644
EXTENSIONS: Final = (".json", ".yaml")
TEMPORARY: Final = ("spec.", ".tmp")
"""Prefix and suffix of temporary files; a writer that was killed leaves one behind."""
ABANDONED_AFTER: Final = 60.0
"""Seconds after which a temporary file is abandoned: no writer takes that long."""
_OURS: Final = re.escape(TEMPORARY[0]) + "[0-9a-f]{16}" + re.escape(TEMPORARY[1])

# Characters that JSON allows unescaped, but that a runtime's YAML parser refuses or folds into spaces.
_ESCAPED: Final = "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]"
# That parser recognizes a key only up to this length, including the quotes.
_KEY_LIMIT: Final = 1024


def encode_spec(spec: Spec) -> bytes:
    """Encode a spec as compact JSON on one line that a YAML parser reads in the same way.

    Raises:
        CDIError: not every runtime that knows the spec's version could load it; the path says where.
    """
    if problem := written_kind_problem(spec.kind):
        raise CDIError(problem, "kind")
    if problems := spec_problems(spec):
        raise problems[0]
    try:
        longest = max((len(_json(key)) for key in _annotation_keys(spec)), default=0)
        text = _json(spec)
    except UnicodeEncodeError as error:
        raise CDIError("a text holds half of a surrogate pair, which no file can hold") from error
    if longest > _KEY_LIMIT:
        raise CDIError(f"has a key of {longest} characters and runtimes read {_KEY_LIMIT}", "annotations")
    return text.encode()


def _json(value: Spec | str) -> str:
    text = msgspec.json.encode(value).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return re.sub(_ESCAPED, lambda match: f"\\u{ord(match[0]):04x}", text)


def _annotation_keys(spec: Spec) -> Iterator[str]:
    yield from spec.annotations
    for device in spec.devices:
        yield from device.annotations


def write_spec(directory: Path, filename: str, spec: Spec) -> bool:
    """Write a spec file atomically, replacing an older one; return False if the file already has this content.

    Raises:
        CDIError: the spec is invalid, or runtimes ignore files with such a name.
        OSError: the folder cannot be written (read-only, full); an old file stays and no new one is left behind.
    """
    if "/" in filename or "\0" in filename or not filename.endswith(EXTENSIONS):
        raise CDIError(f'"{filename}" is not a file name that ends with .json or .yaml')
    return write_file(directory, filename, encode_spec(spec))


def write_file(directory: Path, filename: str, data: bytes) -> bool:
    """Write a file atomically, creating its folder if needed; return False if the file already has this content.

    Raises:
        OSError: the folder cannot be written (read-only, full); an old file stays and no new one is left behind.
    """
    # An unchanged file is not replaced, so that runtimes that watch the folder do not read everything again.
    target = f"{directory}/{filename}"
    if _content(target) == data:
        return False
    try:
        replace_file(target, data)
    except FileNotFoundError:
        _ensure(directory)
        replace_file(target, data)
    return True


def replace_file(target: str, data: bytes) -> None:
    """Write a file atomically and readable for everybody, replacing an older one.

    Raises:
        OSError: the file cannot be written; an old file stays and no new one is left behind.
    """
    # mkstemp is not used, because its search for a free name takes longer than everything else here.
    # In the same folder, since a rename is atomic only within a file system.
    temporary = f"{target.rpartition('/')[0]}/{TEMPORARY[0]}{os.urandom(8).hex()}{TEMPORARY[1]}"
    make_file(temporary, data)
    try:
        os.rename(temporary, target)
    except BaseException:
        _discard(temporary)
        raise


def make_file(path: str, data: bytes) -> None:
    """Create a file that is readable for everybody; a reader at the same time may see a part of it.

    Raises:
        FileExistsError: something is there.
        OSError: the file cannot be written; it is removed again.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            # write(2) may write less than it was given.
            written = 0
            while written < len(data):
                written += os.write(handle, data[written:])
            # The mode given to open(2) is limited by the umask.
            os.fchmod(handle, FILE_MODE)
        finally:
            os.close(handle)
    except BaseException:
        _discard(path)
        raise


def _discard(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_abandoned(directory: Path) -> None:
    """Remove the temporary files of this program's writers that were killed; files of other programs stay."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if re.fullmatch(_OURS, entry.name):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > ABANDONED_AFTER:
                        os.unlink(entry.path)


def _ensure(directory: Path) -> None:
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        # The mode given to mkdir(2) is limited by the umask.
        directory.chmod(FOLDER_MODE)


def _content(path: str) -> bytes | None:
    try:
        return read_regular(path)
    except OSError as error:
        # A pipe or a socket is replaced like a file with other content.
        if error.errno in (errno.ENOENT, errno.EINVAL, errno.ENXIO):
            return None
        raise


def read_spec(path: Path) -> Spec:
    """Read a spec file of any driver, without checking whether a runtime would load it.

    Raises:
        CDIError: the file is not a CDI document; the message begins with its path.
        OSError: the file cannot be read.
    """
    data = read_regular(path)
    try:
        return msgspec.json.decode(data, type=Spec)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    from dranode.cdi.document import load_spec  # noqa: PLC0415 - what drivers write is plain JSON and needs no YAML parser

    try:
        return load_spec(data)
    except CDIError as error:
        raise CDIError(f"{path}: {error}") from error


def remove_spec(directory: Path, filename: str) -> None:
    """Remove a spec file; do nothing if there is no such file.

    Raises:
        OSError: the folder cannot be written.
    """
    # If there is a file in place of the folder, it contains no specs.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(f"{directory}/{filename}")


def spec_files(directory: Path, prefix: str = "") -> Iterator[Path]:
    """Yield the spec files that a runtime reads and whose names begin with `prefix`, in name order.

    A missing folder yields nothing.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        return
    yield from (path for path in paths if path.name.startswith(prefix) and path.name.endswith(EXTENSIONS))
