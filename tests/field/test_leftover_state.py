"""Reports about what a process, a pod or a node that is gone has left behind."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths

DRIVER = "lamps.example.com"
KILLED, OTHER, NEW = (f"{number}0000000-0000-0000-0000-000000000000" for number in range(3))


@pytest.fixture
def root() -> Iterator[Path]:
    # pytest's own folders can be too long for a socket's path.
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        (Path(name) / "plugins" / DRIVER).mkdir(parents=True)
        (Path(name) / "plugins_registry").mkdir()
        yield Path(name)


def bound(path: Path) -> socket.socket:
    """A socket of another process, which accepts callers once it listens."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    return made


def test_a_start_removes_the_sockets_of_instances_that_were_killed_and_no_others(root: Path) -> None:
    """Each pod of a rolling update has sockets of its own names, and kubelet dials those of a dead one for ever."""
    dead = socket_paths(root, DRIVER, KILLED)
    for path in dead:
        bound(path).close()
    # The names of this driver's pods alone are its own, dead or not.
    foreign = socket_paths(root, f"{DRIVER}-too", KILLED).registration
    bound(foreign).close()
    living = [bound(path) for path in socket_paths(root, DRIVER, OTHER)]
    for each in living:
        each.listen()
    listener = Listener(
        DRIVER, "node", socket_paths(root, DRIVER, NEW), root / "plugins" / DRIVER, pytest.fail, rolling=True
    )
    listener.start()
    try:
        assert [path.exists() for path in dead] == [False, False]
        staying = (foreign, *socket_paths(root, DRIVER, OTHER), *listener.sockets)
        assert [path.exists() for path in staying] == [True] * 5
    finally:
        listener.close()
        for each in living:
            each.close()
