"""A machine that a test of a driver may write to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dranode.driver.machine.confined import ConfinedRoot
from dranode.driver.machine.folder import FolderFiles


class ScratchMachine(ConfinedRoot):
    """A folder as a machine that a test may write to, as the kernel would let it: files that are there, in one piece.

    Args:
        folder: holds `sys/`, `proc/` or `dev/`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(FolderFiles(str(folder)))
        self.folder = folder

    def write(self, path: str, content: str) -> None:
        """Write over a file; one that is not there is not made."""
        place = self.folder / self.resolve(path)
        with place.open("r+", encoding="utf-8") as file:
            file.truncate()
            file.write(content)

    def contents(self) -> Mapping[str, bytes]:
        """Every file, by path."""
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Have nothing in the machine meanwhile, as when a card is pulled out."""
        away = self.folder.with_name(f"{self.folder.name}.gone")
        self.folder.rename(away)
        self.folder.mkdir()
        try:
            yield
        finally:
            self.folder.rmdir()
            away.rename(self.folder)
