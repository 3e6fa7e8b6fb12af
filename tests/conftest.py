"""For all tests: no time limit on a generated example, and patience with peers, so that a busy machine fails none."""

import gc
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
    "dranode.driver.serve.enforcement._KUBELET_SECONDS",
    "dranode.tools.readers.node._TIMEOUT",
    "dranode.sim.local.kubelet._NOTIFY_SECONDS",
)


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
