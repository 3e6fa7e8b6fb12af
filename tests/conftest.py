"""For all tests: no time limit on a generated example, and patience with peers, so that a busy machine fails none."""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from tests.fakes.waiting import PATIENCE

settings.register_profile("dranode", deadline=None)
settings.load_profile("dranode")

# The time that a driver grants a peer on its node is short. In a test the peer is a thread of the same busy process.
_LIMITS: Final = (
    "dranode.driver.kubelet.podresources._TIMEOUT",
    "dranode.driver.serve.nri_plugin._KUBELET_SECONDS",
    "dranode.tools.readers.node._TIMEOUT",
    "dranode.sim.local.kubelet._NOTIFY_SECONDS",
)


def _keep_files_in_memory() -> None:
    """Create temporary files in memory, which takes the kernel a twentieth of the time that a disk takes."""
    memory = Path("/dev/shm")
    # Images, container runtimes and Go's compiler need more room than that: INTEROP, INTEROP_VM, ...
    chosen = any(name.startswith(("TMPDIR", "INTEROP", "ALLOCATOR")) for name in os.environ)
    if chosen or not os.access(memory, os.W_OK):
        return
    volume = os.statvfs(memory)
    # A container's is often too small, and no program may be started from it.
    if volume.f_bavail * volume.f_frsize >= 1 << 30 and not volume.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(memory)


# Before pytest chooses a folder for itself; what tests start inherits the variable.
_keep_files_in_memory()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from traversing ten thousand collected tests during each of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _patient_with_peers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for limit in _LIMITS:
            patch.setattr(limit, PATIENCE)
        yield


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet root whose path is short enough for sockets, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        (Path(name) / "plugins_registry").mkdir()
        yield Path(name)
