"""Reads an archive of a machine's files into memory: a tar file, plain or compressed with gzip or bzip2.

A member whose name leads out of the tree is refused, because a capture never has one.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path
from typing import IO, Any, Final, Self

from dranode.api.errors import MachineError
from dranode.cdi.regular_file import open_given
from dranode.sim.machines.tree import DeviceFile, Link, TreeEntry, TreeFiles, plant

# A machine has many small files; the limits keep a wrong or hostile archive from taking all memory.
_MAX_BYTES: Final = 512 << 20
_MAX_MEMBERS: Final = 2_000_000
_MAX_PATH: Final = 4096  # Linux's PATH_MAX
# The bytes of a member's headers; a long name has a header of its own before the member.
_MAX_HEADER: Final = 64 << 10
_MAX_GLOBAL: Final = 100
_KIND: Final = {tarfile.CHRTYPE: "c", tarfile.BLKTYPE: "b"}


def read_archive(path: Path) -> dict[str, TreeEntry]:
    """Read the whole archive.

    Raises:
        MachineError: the file is not a tar archive, is truncated or too large, or has a member that leads out of it.
    """
    try:
        with open_given(path) as file, _BoundedTar.open(path, fileobj=file) as archive:
            return _tree(archive, path)
    except FileExistsError as error:
        raise MachineError(f"{path} holds {error.filename} both as a file and as a folder") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise MachineError(
            f"{path} is not a tar archive (plain, gzip or bzip2), or is damaged or cut short; make it again"
        ) from error


class _Metered:
    """The uncompressed bytes of an archive, with a limit on how many may still be read."""

    def __init__(self, inner: IO[bytes]) -> None:
        self.remaining = _MAX_HEADER
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; tarfile takes the size from the archive, so it cannot be trusted."""
        if not 0 <= size <= self.remaining:
            raise tarfile.ReadError(f"a header is longer than {_MAX_HEADER} bytes")
        self.remaining -= size
        return self._inner.read(size)


class _BoundedTar(tarfile.TarFile):
    """A tar archive with limits on its headers; tarfile itself would allocate any size in them."""

    fileobj: Any
    members: list[tarfile.TarInfo]

    @classmethod
    def taropen(cls, name: Any, mode: Any = "r", fileobj: Any = None, **options: Any) -> Self:
        return super().taropen(name, mode, _Metered(fileobj), **options)

    @classmethod
    def xzopen(cls, *_: Any, **__: Any) -> Self:
        # An xz stream sets the memory of its decoder, up to 4 GiB, and Python's LZMAFile cannot limit it.
        raise tarfile.ReadError("xz is not supported")

    def members_in_turn(self) -> Any:
        """Yield the members one after another, without keeping them."""
        passed = 0
        while True:
            self.fileobj.remaining = _MAX_HEADER
            member = self.next()
            if member is None:
                self._expect_end()
                return
            self.members.clear()
            if len(self.pax_headers) > _MAX_GLOBAL:
                raise tarfile.ReadError(f"it has more than {_MAX_GLOBAL} global headers")
            if member.size < 0 or self.offset <= passed:
                raise tarfile.ReadError("a member has a negative size")
            passed = self.offset
            yield member

    def _expect_end(self) -> None:
        """Refuse an archive without a block of zeros at its end; tarfile treats any unreadable header as the end."""
        self.fileobj.remaining = _MAX_HEADER
        self.fileobj.seek(self.offset)
        if self.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it is cut short, or a header is damaged")

    def content(self, member: tarfile.TarInfo) -> bytes | None:
        """Return the content of a file, or None for a member that is not a file."""
        self.fileobj.remaining = member.size
        content: IO[bytes] | None = self.extractfile(member) if member.isreg() else None
        return None if content is None else content.read()


def _tree(archive: _BoundedTar, path: Path) -> dict[str, TreeEntry]:
    tree: dict[str, TreeEntry] = {}
    hard_links: list[tuple[str, str]] = []
    size = count = 0
    for member in archive.members_in_turn():
        name = _inside(member.name, path)
        size += member.size + len(name) + len(member.linkname)
        count += 1 + _new_folders(tree, name)
        if size > _MAX_BYTES or count > _MAX_MEMBERS:
            raise MachineError(
                f"{path} holds more than {_MAX_BYTES >> 20} MiB or {_MAX_MEMBERS} files, which no machine's sys/ does"
            )
        if not name:
            continue
        if member.islnk():
            hard_links.append((name, _inside(member.linkname, path)))
        elif member.isdir():
            _add_folder(tree, name)
        elif (node := _node(archive, member)) is not None:
            _replace(tree, name, node)
    for name, target in hard_links:
        node = TreeFiles(tree).find(target)
        if isinstance(node, bytes):
            _replace(tree, name, node)
    return tree


def _new_folders(tree: dict[str, TreeEntry], name: str) -> int:
    """Return how many parent folders of a name do not exist yet."""
    folders = name.split("/")[:-1]
    parent: TreeEntry | None = tree
    for depth, folder in enumerate(folders):
        parent = parent.get(folder) if isinstance(parent, dict) else None
        if parent is None:
            return len(folders) - depth
    return 0


def _inside(name: str, path: Path) -> str:
    if len(name) > _MAX_PATH:
        raise MachineError(f"{path} has a path of {len(name)} characters, and Linux takes up to {_MAX_PATH}")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise MachineError(f'{path} has the member "{name}", which leads out of the archive; a capture never has one')
    return "/".join(parts)


def _node(archive: _BoundedTar, member: tarfile.TarInfo) -> TreeEntry | None:
    if member.issym():
        return Link(member.linkname)
    if member.type in _KIND:
        return DeviceFile(_KIND[member.type], member.devmajor, member.devminor)
    return archive.content(member)


def _add_folder(tree: dict[str, TreeEntry], path: str) -> None:
    parent = tree
    for name in path.split("/"):
        below = parent.setdefault(name, {})
        if not isinstance(below, dict):
            raise FileExistsError(0, "", path)
        parent = below


def _replace(tree: dict[str, TreeEntry], path: str, node: TreeEntry) -> None:
    """Set the entry at a path; a later member with the same name wins, as when unpacking with tar."""
    folder, _, name = path.rpartition("/")
    parent = TreeFiles(tree).find(folder)
    if isinstance(parent, dict) and name in parent and not isinstance(parent[name], dict):
        del parent[name]
    plant(tree, path, node)
