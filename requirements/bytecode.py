"""Compiles what the program needs to run: this checkout's packages, and those that the lock at hand pins.

`install.sh` calls it where Python may write no bytecode by itself (`PYTHONDONTWRITEBYTECODE`, which images of Python
set): each start would compile every module again, at twice to three times its CPU.
"""

import compileall
import re
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_RUN = ("tests", "fuzz", "release")


def sources(lock: Path) -> Iterator[Path]:
    """Yield the modules of this checkout's packages and of those that a lock pins, which have to be installed."""
    for package in sorted(ROOT.glob("*/__init__.py")):
        if package.parent.name not in NOT_RUN:
            yield from package.parent.rglob("*.py")
    for name in re.findall(r"^([\w.-]+)==", lock.read_text(), re.MULTILINE):
        for file in distribution(name).files or ():
            if file.suffix == ".py":
                yield Path(str(file.locate()))


if __name__ == "__main__":
    for module in sources(Path(sys.argv[1])):
        compileall.compile_file(module, quiet=2)
