"""A runtime that is missing, disconnects, rejects the plug-in or sends garbage: when the client retries and logs."""

import logging
import socket
import struct
import time
from pathlib import Path

import pytest

from dranode.driver.nri import client as attempts_module
from dranode.driver.nri.client import Attempts, NRIClient, delay
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.process.threads import Wake
from dranode.sim.machines.forms import open_machine
from tests.fakes.nri import FakeRuntime
from tests.fakes.nri_client import Bench, Node
from tests.fakes.waiting import PATIENCE, eventually


def test_a_socket_that_is_not_there_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "later.sock"
    enforcer = Enforcer(Node(), open_machine("sockets=1,cores=2"))
    client = NRIClient(str(path), enforcer, name="dra.cpu", fatal=pytest.fail, jitter=lambda: 1.0)
    client.start()
    eventually(lambda: "No such file or directory" in caplog.text)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(PATIENCE)
        listener.bind(str(path))
        listener.listen()
        with listener.accept()[0] as sock:
            FakeRuntime(sock).handshake()
            eventually(lambda: client.synchronized)
    client.stop()
    assert caplog.text.count("No such file or directory") == 1


def test_delays_between_rejections_double_to_a_low_limit_and_are_jittered() -> None:
    assert [delay(attempt, 0.0) for attempt in range(1, 5)] == [0.1, 0.2, 0.4, 0.8]
    assert delay(9, 0.0) == delay(10_000, 0.0) == 2.0
    assert delay(4, 1.0) == 0.4


def test_a_runtime_that_comes_back_after_bad_connections_is_connected_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts_module, "_FIRST_DELAY", 3600.0)
    monkeypatch.setattr(attempts_module, "_LONGEST_DELAY", 3600.0)
    bench.client.start()
    bench.accept().sock.close()
    with socket.socket(socket.AF_UNIX) as another:
        another.settimeout(PATIENCE)
        another.bind(f"{bench.path}.new")
        another.listen()
        Path(f"{bench.path}.new").rename(bench.path)
        with another.accept()[0] as sock:
            FakeRuntime(sock).handshake()
            eventually(lambda: bench.client.synchronized)


def test_alternating_reasons_are_logged_once_each_and_garbage_does_not_fill_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bench.client.start()
    for number in range(24):
        runtime = bench.accept()
        runtime.wait_for("RegisterPlugin")
        if number % 2:
            runtime.sock.sendall(struct.pack(">II", 1, 0xFFFF0000 + number))
        runtime.sock.close()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)
    assert caplog.text.count("the runtime closed the connection") == 1
    assert len(caplog.records) == 8


@pytest.mark.parametrize("left", [False, True], ids=["no-socket", "nobody-listens"])
def test_delays_do_not_grow_while_a_runtime_is_away_for_long(tmp_path: Path, *, left: bool) -> None:
    path = tmp_path / "nri.sock"
    if left:
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(path))
    attempts = Attempts(str(path), time.monotonic, lambda: 0.0)
    wake = Wake()
    with socket.socket(socket.AF_UNIX) as sock:
        for _ in range(40):
            attempts.begin()
            with pytest.raises(OSError, match=r"No such file|refused") as failed:
                sock.connect(str(path))
            attempts.failed(failed.value, synchronized=False)
    began = time.monotonic()
    attempts.wait(wake, lambda: False)
    assert time.monotonic() - began < 1.0
    wake.close()
