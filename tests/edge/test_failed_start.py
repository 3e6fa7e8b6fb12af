"""A failed start of the real program: its exit status, and that it leaves nothing behind."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.kubeconfig import write_kubeconfig
from tests.fakes.waiting import PATIENCE

PROGRAM = Path(sys.executable).with_name("dranode")


@pytest.fixture
def folder() -> Iterator[Path]:
    # pytest's own folders can be too long for a socket path.
    with tempfile.TemporaryDirectory(prefix="start-") as path:
        yield Path(path)


def serve(folder: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    place = ("--kubelet-root", folder / "kubelet", "--cdi-dir", folder / "cdi", "--machine", "cores=2")
    rest = ("--nri-socket", "none", "--http-address", "none")
    command = [PROGRAM, "serve", *place, *rest, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"{", "kubeconfig is not YAML"), (b"current-context: missing", "kubeconfig cannot be used: it has no contexts")],
)
def test_an_invalid_kubeconfig_is_a_usage_error_and_creates_no_folder(
    folder: Path, content: bytes, sentence: str
) -> None:
    (folder / "kubeconfig").write_bytes(content)
    done = serve(folder, "--kubeconfig", folder / "kubeconfig")
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert left(folder) == {"kubeconfig"}


def test_a_kubelet_root_without_its_folders_is_left_unchanged(folder: Path) -> None:
    kubeconfig = write_kubeconfig(folder, 1, {})
    done = serve(folder, "--kubeconfig", kubeconfig)
    assert done.returncode == 1
    assert "cannot be bound; its folder must exist" in done.stderr
    assert left(folder) == {"kubeconfig"}
    # As on a node: with the folder of plug-ins and other plug-ins' files.
    (folder / "kubelet" / "plugins" / "other").mkdir(parents=True)
    before = left(folder)
    assert serve(folder, "--kubeconfig", kubeconfig).returncode == 1
    assert serve(folder, "--kubeconfig", kubeconfig, "--pod-uid", "u").returncode == 1
    assert left(folder) == before


@pytest.mark.parametrize("options", [("--reserved-cpus", "0-9"), ("--reserved-cpus", "0-1", "--pod-uid", "u")])
def test_options_that_do_not_fit_the_hardware_leave_no_folder(folder: Path, options: tuple[str, ...]) -> None:
    for name in ("plugins", "plugins_registry"):
        (folder / "kubelet" / name).mkdir(parents=True)
    (folder / "store").mkdir()
    before = left(folder)
    done = serve(folder, "--store", folder / "store", *options)
    assert done.returncode == 2, done.stderr
    assert "--reserved-cpus" in done.stderr
    assert left(folder) == before


def test_no_driver_leaves_a_folder_if_one_of_several_cannot_start(folder: Path) -> None:
    registry = folder / "kubelet" / "plugins_registry"
    registry.mkdir(parents=True)
    # Another process listens on the second driver's socket.
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(registry / "dra.memory-reg.sock"))
        taken.listen()
        before = left(folder)
        (folder / "store").mkdir()
        drivers = ("--drivers", "cpu", "--drivers", "memory")
        done = serve(folder, "--store", folder / "store", *drivers)
    assert done.returncode == 2, done.stderr
    assert "another process listens on" in done.stderr
    assert left(folder) == before | {"store"}


def test_a_folder_that_holds_records_stays_when_a_start_fails(folder: Path) -> None:
    data = folder / "kubelet" / "plugins" / "dra.cpu"
    data.mkdir(parents=True)
    (data / "ledger.db").write_bytes(b"")
    assert serve(folder, "--kubeconfig", write_kubeconfig(folder, 1, {})).returncode == 1
    assert (data / "ledger.db").exists()
