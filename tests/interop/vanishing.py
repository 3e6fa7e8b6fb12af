"""Files of the kernel whose process, cgroup or interrupt may go while they are listed, or before they are read."""

import errno
import glob
from collections.abc import Iterator
from pathlib import Path

# ESRCH of a process that has ended, ENODEV of a cgroup that was removed, EIO of an interrupt that was freed.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV, errno.EIO})


def text_of(path: Path) -> str:
    """What a file says, without white space around it; empty if what it is about has gone."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        if error.errno in _GONE:
            return ""
        raise


def paths_below(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the paths below a folder that match; folders that go meanwhile are left out, which `Path.glob` stops at."""
    yield from map(Path, glob.iglob(f"{glob.escape(str(folder))}/{pattern}", recursive=True))  # noqa: PTH207 - see above
