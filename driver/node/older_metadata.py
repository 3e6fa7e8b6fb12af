"""Device metadata as earlier versions laid it out, and as dra-driver-cpu does, in folders of claims.

The file of a request is `<namespace>_<claim>/<request>/metadata.json`. It goes when no CDI spec mounts it any more: the
specs that do are those that kubelet was told of, and go when their claims are unprepared.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from dranode.cdi.directory import TEMPORARY, read_spec, spec_files

_FILE: Final = "metadata.json"


def remove_unmounted(folder: Path, cdi: Path, prefix: str) -> None:
    """Remove the files below a folder that no spec mounts, and the folders that are empty then, the folder itself too.

    Args:
        folder: the folder.
        cdi: the CDI directory.
        prefix: how the names of the specs begin that may mount a file.

    Raises:
        CDIError: a spec is not one, so that it is not known what it mounts; nothing has been removed.
        OSError: a spec cannot be read, or a file not be removed.
    """
    mounted = {
        mount.host_path
        for path in spec_files(cdi, prefix)
        for device in read_spec(path).devices
        for mount in device.container_edits.mounts
    }
    for file in (*folder.glob(f"*/*/{_FILE}"), *folder.glob(f"*/*/{TEMPORARY[0]}*{TEMPORARY[1]}")):
        if str(file) not in mounted:
            file.unlink(missing_ok=True)
    for empty in (*folder.glob("*/*/"), *folder.glob("*/"), folder):
        # Not empty: a file is mounted, or another program has put something there.
        with contextlib.suppress(OSError):
            empty.rmdir()
