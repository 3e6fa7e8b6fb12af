"""The environment of a process whose modules were compiled beforehand, as they are in the image."""

import os
from functools import cache
from pathlib import Path
from tempfile import gettempdir


@cache
def _folder() -> str:
    return str(Path(gettempdir()) / f"dranode-bench-{os.getuid()}-pycache")


def environment(**more: str) -> dict[str, str]:
    """This process's environment with these variables, and without settings of this project and of Kubernetes."""
    names = ("DRANODE_", "KUBE", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return {**kept, "PYTHONPYCACHEPREFIX": _folder(), **more}
