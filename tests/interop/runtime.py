"""A container runtime in a folder of its own, started and killed, with its CRI and NRI sockets."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.interop.cgroup_folders import remove_cgroups
from tests.interop.cri import CGROUP, CRI, wait_until
from tests.interop.image import write_image


def busybox() -> Path | None:
    """The busybox of the machine, if it needs no libraries."""
    found = shutil.which("busybox")
    # A program that is linked dynamically names its loader.
    if found is None or b"/ld-linux" in Path(found).read_bytes():
        return None
    return Path(found)


class Runtime:
    """One runtime. Its containers outlive it, as in life."""

    def __init__(self, folder: Path, command: Sequence[str | Path], programs: Path) -> None:
        """Prepare its folder; `programs` is where its helpers are."""
        self.programs = programs
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        for name in ("cdi", "cni", "nri", "nri-plugins", "nri-conf"):
            (folder / name).mkdir(exist_ok=True)
        self.cri = CRI(folder / "c.sock")
        self._command = command

    @property
    def nri_socket(self) -> Path:
        return self.folder / "nri" / "nri.sock"

    @property
    def log(self) -> str:
        return (self.folder / "runtime.log").read_text()

    def start(self, enter: Sequence[str] = ()) -> None:
        """Start it and wait until it serves; `enter` is a command that starts it elsewhere."""
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        with (self.folder / "runtime.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*enter, *self._command], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._serves, "the runtime serves")

    def _serves(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log[-3000:]
        return self.cri.ready()

    def load_image(self) -> None:
        """Import the image that every pod of the tests runs."""
        program = busybox()
        assert program is not None
        archive = self.folder / "image.tar"
        write_image(archive, program)
        self.load(archive)

    def load(self, archive: Path) -> None:
        """Import the images of an OCI archive."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it without a warning; containers and their shims live on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def close(self) -> None:
        """Take everything down, containers first."""
        if self.process is not None:
            self.cri.remove_everything()
        self.cri.close()
        if self.process is not None:
            self.process.terminate()
            self.process.wait(180)
            self.process = None
        # Which kubelet would make and remove.
        remove_cgroups(CGROUP)
