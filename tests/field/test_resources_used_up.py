"""Reports of descriptors, watches, processes and disks that were used up."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.http_server import HTTPPages, Page
from tests.fakes.drivers import Lamps, allocated_claim, reference


class Starved(socket.socket):
    """A listening socket of a process that has no descriptor left for the first times that somebody connects."""

    refused = 0

    def accept(self) -> Any:
        if self.refused < 4:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_a_process_without_descriptors_says_so_once_and_answers_when_it_has_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = Starved()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    pages = HTTPPages(listener, {"/healthz": lambda _: Page(b"ok\n")}, pytest.fail)
    pages.start()
    with socket.create_connection(("127.0.0.1", pages.port)) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        client.settimeout(15.0)
        assert client.recv(4096).startswith(b"HTTP/1.0 200")
    pages.stop()
    assert listener.refused == 4
    assert len([line for line in caplog.messages if "no connection can be accepted" in line]) == 1


@pytest.mark.parametrize("arguments", [("topology", "--machine", "cores=2"), ("slices", "-o", "json"), ("--help",)])
def test_an_output_that_the_disk_has_no_room_for_is_one_sentence(arguments: tuple[str, ...]) -> None:
    program = Path(sys.executable).with_name("dranode")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([program, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=300, check=False)
    assert done.stderr == b"dranode: the output cannot be written: No space left on device\n"
    assert done.returncode == 1


def test_an_output_that_is_closed_is_no_error() -> None:
    program = Path(sys.executable).with_name("dranode")
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" topology --machine cores=2 >&-', program],
        stderr=subprocess.PIPE,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.strip()}")
    yield disk
    # Lazily, because a test that fails leaves files open.
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with pytest.raises(OSError, match="No space left on device"):
        filler.write_bytes(b"x" * (2 << 20))
    return filler


def test_a_full_disk_refuses_claims_and_loses_none(small_disk: Path) -> None:
    (small_disk / "data").mkdir()

    def opened() -> NodeClaims:
        node = NodeClaims(Lamps(), small_disk / "data", small_disk / "cdi", pool="node")
        node.open()
        return node

    def prepare(number: int) -> Any:
        claim = allocated_claim(f"claim-{number}", Lamps.driver, [f"lamp-{number}"])
        return node.prepare({reference(claim): claim})[reference(claim).uid]

    def specs() -> int:
        return len(list((small_disk / "cdi").iterdir()))

    node = opened()
    assert isinstance(prepare(0), Prepared)
    filler = fill(small_disk)
    for _ in range(2):
        refused = prepare(1)
        assert isinstance(refused, Refused)
        assert "ledger.db cannot be used: database or disk is full; nothing is handed out until it can" in str(refused)
    assert specs() == 1
    filler.unlink()
    assert isinstance(prepare(1), Prepared)
    filler = fill(small_disk)
    node.close()
    # A restart on the full disk knows both claims, and answers kubelet's question for one of them again.
    node = opened()
    assert isinstance(prepare(1), Prepared)
    assert isinstance(prepare(2), Refused)
    filler.unlink()
    assert isinstance(prepare(2), Prepared)
    assert len(node.records()) == specs() == 3
    node.close()
