"""An archive of a machine's files, in memory.

Tar in whatever compression Python knows. Member names and links stay inside the tree whatever they say; a member that
climbs out of the archive is refused, for a capture never has one.
"""

from __future__ import annotations

import lzma
import tarfile
import zlib
from pathlib import Path
from typing import IO, Final

from dranode.driver.core.errors import MachineError
from dranode.driver.machine.tree import DeviceNode, Link, Node, TreeFiles, plant

# A machine's files are small and many; the bounds keep a mistaken or hostile archive from taking all memory.
_MAX_BYTES: Final = 512 << 20
_MAX_MEMBERS: Final = 2_000_000
_KIND: Final = {tarfile.CHRTYPE: "c", tarfile.BLKTYPE: "b"}


def read_archive(path: Path) -> dict[str, Node]:
    """Everything that the archive holds.

    Raises:
        MachineError: the file is no tar archive, is cut short, too large, or has a member that leads out of it.
    """
    try:
        with tarfile.open(path) as archive:
            return _tree(archive, path)
    except FileExistsError as error:
        raise MachineError(f"{path} holds {error.filename} both as a file and as a folder") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise MachineError(f"{path} is no tar archive, or is damaged or cut short; make it again") from error


def _tree(archive: tarfile.TarFile, path: Path) -> dict[str, Node]:
    tree: dict[str, Node] = {}
    hard_links: list[tuple[str, str]] = []
    size = 0
    for count, member in enumerate(archive, 1):
        size += member.size
        if size > _MAX_BYTES or count > _MAX_MEMBERS:
            raise MachineError(
                f"{path} holds more than {_MAX_BYTES >> 20} MiB or {_MAX_MEMBERS} files, which no machine's sys/ does"
            )
        name = _inside(member.name, path)
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


def _inside(name: str, path: Path) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise MachineError(f'{path} has the member "{name}", which leads out of the archive; a capture never has one')
    return "/".join(parts)


def _node(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Node | None:
    if member.issym():
        return Link(member.linkname)
    if member.type in _KIND:
        return DeviceNode(_KIND[member.type], member.devmajor, member.devminor)
    content: IO[bytes] | None = archive.extractfile(member) if member.isreg() else None
    return None if content is None else content.read()


def _add_folder(tree: dict[str, Node], path: str) -> None:
    here = tree
    for name in path.split("/"):
        below = here.setdefault(name, {})
        if not isinstance(below, dict):
            raise FileExistsError(0, "", path)
        here = below


def _replace(tree: dict[str, Node], path: str, node: Node) -> None:
    """Plant a node; a later member of the same name wins, as it does when tar unpacks."""
    folder, _, name = path.rpartition("/")
    parent = TreeFiles(tree).find(folder)
    if isinstance(parent, dict) and name in parent and not isinstance(parent[name], dict):
        del parent[name]
    plant(tree, path, node)
