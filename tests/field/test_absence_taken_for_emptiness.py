"""Bug reports in which something unseen was taken for healthy or for nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.serve import service as service_module
from dranode.driver.serve.service import DriverService
from tests.fakes.cluster import MemoryCluster
from tests.fakes.drivers import Lamps
from tests.fakes.waiting import eventually


@pytest.mark.parametrize("which", ["dra", "registration"])
@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.replace(path.with_name("moved"))])
def test_a_driver_exits_when_its_socket_is_removed_so_that_its_restart_creates_a_new_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, which: str, lose: Callable[[Path], object]
) -> None:
    """kubelet deregisters a driver whose socket is removed, and the driver would wait for kubelet forever."""
    monkeypatch.setattr(service_module, "_HEALTH_SECONDS", 0.01)
    ended: list[str] = []
    sockets = socket_paths(root, Lamps.driver)
    service = DriverService(
        Lamps(),
        MemoryCluster(),
        Listener(Lamps.driver, "node", sockets, root / "plugins" / Lamps.driver, ended.append),
        cdi=root / "cdi",
    )
    service.start()
    try:
        path = getattr(sockets, which)
        lose(path)
        eventually(lambda: ended)
        assert str(path) in ended[0]
    finally:
        service.stop()
