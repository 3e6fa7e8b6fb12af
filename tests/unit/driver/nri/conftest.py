"""The NRI client shared by the tests of this folder."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.driver.nri import client as attempts_module
from dranode.driver.nri import client as client_module
from dranode.driver.nri.client import NRIClient
from dranode.driver.nri.enforcer import Enforcer
from dranode.sim.machines.forms import open_machine
from tests.fakes.nri_client import HELD, Bench, Node
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(client_module, "_TICK", 0.02)
    monkeypatch.setattr(client_module, "_IDLE", 0.02)
    monkeypatch.setattr(attempts_module, "_FIRST_DELAY", 0.005)
    (tmp_path / "sys" / "fs" / "cgroup").mkdir(parents=True)
    path = tmp_path / "nri.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(PATIENCE)
    listener.bind(str(path))
    listener.listen()
    node, now = Node(ledger=HELD), [0.0]
    fatal: list[str] = []
    enforcer = Enforcer(node, open_machine(str(tmp_path)), clock=lambda: now[0])
    client = NRIClient(str(path), enforcer, name="dra.cpu", fatal=fatal.append, jitter=lambda: 0.0)
    bench = Bench(path, listener, node, enforcer, client, fatal, now)
    yield bench
    client.stop()
    for sock in (listener, *bench.accepted):
        sock.close()
    assert fatal == []
    assert not [thread for thread in threading.enumerate() if thread.name == "nri-dra.cpu"]
