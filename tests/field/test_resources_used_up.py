"""Bug reports of exhausted descriptors, watches, processes and disks."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.local.store import Store
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.http_server import HTTPPages, Page
from dranode.sim.local.kubelet import StandInKubelet
from tests.fakes.drivers import Lamps, allocated_claim, reference
from tests.fakes.lifecycle import cpu_claim
from tests.fakes.waiting import PATIENCE, eventually

PROGRAM = Path(sys.executable).with_name("dranode")


class Starved(socket.socket):
    """A listening socket of a process that is out of descriptors for the first connections."""

    refused = 0

    def accept(self) -> Any:
        if self.refused < 4:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_a_process_without_descriptors_logs_it_once_and_answers_when_it_has_some(
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
def test_an_output_to_a_full_disk_is_reported_in_one_sentence(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=300, check=False)
    assert done.stderr == b"dranode: the output cannot be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("command", "status", "errors"),
    [
        ("topology --machine cores=2 >&-", 1, b"dranode: the output cannot be written: Bad file descriptor\n"),
        ("topolgy 2>&-", 2, b""),
        ("allocate - <&-", 1, b"dranode: - holds no document\n"),
    ],
)
def test_output_that_is_lost_is_an_error_and_a_closed_input_is_empty(command: str, status: int, errors: bytes) -> None:
    shell = ["sh", "-c", f'exec "$0" {command}', str(PROGRAM)]
    done = subprocess.run(shell, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, b"", errors)


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
    # Lazily, because a failing test leaves files open.
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with pytest.raises(OSError, match="No space left on device"):
        filler.write_bytes(b"x" * (2 << 20))
    return filler


def test_a_picture_for_which_the_disk_has_no_room_leaves_the_last_one(small_disk: Path) -> None:
    picture = small_disk / "a.svg"
    draw: list[str | Path] = [PROGRAM, "topology", "--machine", "cores=2", "--svg", picture]
    subprocess.run(draw, stdout=subprocess.DEVNULL, check=True)
    last = picture.read_bytes()
    fill(small_disk)
    done = subprocess.run(draw, capture_output=True, check=False)
    assert (done.returncode, b"a.svg cannot be written: No space" in done.stderr) == (1, True)
    assert (picture.read_bytes(), len(list(small_disk.iterdir()))) == (last, 2)


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
        assert (
            "ledger.db cannot be used: database or disk is full; no new claims are prepared until it can be used"
            in str(refused)
        )
    assert specs() == 1
    filler.unlink()
    assert isinstance(prepare(1), Prepared)
    filler = fill(small_disk)
    node.close()
    # A restart on the full disk knows both claims and answers kubelet's repeated call for one of them.
    node = opened()
    assert isinstance(prepare(1), Prepared)
    assert isinstance(prepare(2), Refused)
    filler.unlink()
    assert isinstance(prepare(2), Prepared)
    assert len(node.records()) == specs() == 3
    node.close()


# The limit is set in a user namespace, so that it affects no other process.
_WITHOUT_WATCHES = ["unshare", "--user", "--map-root-user", "sh", "-c"]
_LIMITED = 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$0" "$@"'


def test_specs_are_repaired_and_a_rolling_update_works_without_inotify_watches() -> None:
    tried = subprocess.run([*_WITHOUT_WATCHES, _LIMITED, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no user namespace can be made: {tried.stderr.strip()}")
    # pytest's own folders can be too long for a socket path.
    with tempfile.TemporaryDirectory(prefix="dranode-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        kubelet = StandInKubelet(folder / "kubelet" / "plugins_registry")
        stack.callback(kubelet.close)
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        claim = cpu_claim("a", "uid-a", "cpudevnuma000", 2)
        Store(folder / "store").put(claim)

        def log(uid: str) -> str:
            return (folder / f"log-{uid}").read_text()

        def start(uid: str) -> subprocess.Popen[bytes]:
            places = ["--store", "store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--machine", "cores=4"]
            rest = ["--node-name", "node", "--nri-socket", "none", "--http-address", "none", "--pod-uid", uid]
            command = [*_WITHOUT_WATCHES, _LIMITED, str(PROGRAM), "serve", *places, *rest]
            with (folder / f"log-{uid}").open("wb") as written:
                process = subprocess.Popen(command, cwd=folder, stderr=written)
            stack.callback(process.wait)
            stack.callback(process.kill)
            eventually(socket_paths(folder / "kubelet", "dra.cpu", uid).registration.is_socket, lambda: log(uid))
            return process

        def registered(uid: str) -> bool:
            # A socket exists before it listens.
            kubelet.register(["dra.cpu"], PATIENCE)
            return "registered driver" in log(uid)

        old = start("old")
        eventually(lambda: registered("old"), lambda: log("old"))
        answer = kubelet.prepare({reference(claim): frozenset({"dra.cpu"})})[reference(claim)]
        assert isinstance(answer, Prepared)
        (spec,) = (folder / "cdi").iterdir()
        spec.unlink()
        eventually(spec.exists, lambda: log("old"))
        start("new")
        eventually(lambda: registered("new") and "this instance publishes and pins" in log("new"), lambda: log("new"))
        old.terminate()
        assert old.wait(PATIENCE) == 0
        spec.unlink()
        eventually(spec.exists, lambda: log("new"))
