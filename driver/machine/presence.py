"""Distinguishes a missing file from one in a folder that this process may not search.

`Path.exists`, `is_dir` and the like return False for both since Python 3.14, and `os.path.exists` always did. A folder
without permission must not be taken for an empty one.
"""

import os
import stat
from pathlib import Path


def status_of(path: Path) -> os.stat_result | None:
    """Return the status of a file, with links followed; None if there is none.

    Raises:
        OSError: it cannot be accessed.
    """
    # ENOTDIR means that a part of the path is a file, so there is nothing below it either.
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def file_number(path: str | Path) -> int:
    """Return the inode of the file at a path, which shows whether it was replaced; 0 if there is no file."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - three times a call; a Path costs more than that
    except OSError:
        return 0


def is_there(path: Path) -> bool:
    """Return whether there is a file or folder at a path, with links followed.

    Raises:
        OSError: it cannot be accessed.
    """
    return status_of(path) is not None


def is_file(path: Path) -> bool:
    """Return whether there is a regular file at a path, with links followed.

    Raises:
        OSError: it cannot be accessed.
    """
    status = status_of(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def is_pipe(path: Path) -> bool:
    """Return whether there is a pipe at a path, with links followed.

    Raises:
        OSError: it cannot be accessed.
    """
    status = status_of(path)
    return status is not None and stat.S_ISFIFO(status.st_mode)


def is_folder(path: Path) -> bool:
    """Return whether there is a folder at a path, with links followed.

    Raises:
        OSError: it cannot be accessed.
    """
    status = status_of(path)
    return status is not None and stat.S_ISDIR(status.st_mode)
