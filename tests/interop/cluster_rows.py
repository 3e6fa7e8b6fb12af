"""The clusters that the tests run: rows of docs/compatibility.md.

Attributes:
    ROWS: from the variable INTEROP_CLUSTER, such as `1.37/v2.3.4 1.34/v1.7.29`: release of Kubernetes and version of
        containerd; `1.37/v2.3.4/emulated` has an emulated node.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.interop.cluster import Cluster
from tests.interop.cluster_node import LocalNode
from tests.interop.containerd import build, why_not
from tests.interop.control_plane import why_no_control_plane
from tests.interop.engine import why_no_image
from tests.interop.runtime import busybox
from tests.interop.vm.machine import why_no_machine
from tests.interop.vm.node import EmulatedNode

ROWS = os.environ.get("INTEROP_CLUSTER", "").split()
_EMULATED = "/emulated"


def why_no_cluster() -> str:
    """Return why no clusters can run here; empty if they can."""
    if not ROWS:
        return "make interop-cluster builds Kubernetes and runs it"
    if shutil.which("kubectl") is None or shutil.which("openssl") is None:
        return "there is no kubectl or no openssl"
    few = "" if len(LocalNode.online()) > 1 else "one CPU cannot be both held and shared"
    node = why_no_machine() if any(map(has_emulated_node, ROWS)) else few
    return why_not() or why_no_control_plane() or why_no_image() or node


def has_emulated_node(row: str) -> bool:
    """Whether the node of a row is an emulated machine."""
    return row.endswith(_EMULATED)


@contextlib.contextmanager
def running(row: str, archive: Path, gates: str = "") -> Iterator[Cluster]:
    """Run the cluster of a row with our image and these feature gates, such as `DRAListTypeAttributes=true`."""
    release, version, *emulated = row.split("/")
    containerd = build(version)
    program = busybox()
    assert program is not None
    # The folder's path is short because sockets are in it.
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp", ignore_cleanup_errors=True) as name:
        shutil.copy(archive, Path(name) / "driver.tar")
        folder = Path(name)
        node = EmulatedNode(containerd) if emulated else LocalNode(containerd, folder)
        made = Cluster(release, node, folder, program, gates)
        try:
            yield made
        finally:
            made.close()
