"""Drain unprepares what no container uses, says what would be stranded, and never acts behind a driver's back."""

import errno
import json
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from dranode.api.errors import DranodeError
from dranode.api.resource import ResourceClaim
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.local.cluster import FolderCluster
from dranode.driver.local.store import Store
from dranode.driver.plugins import load_plugins
from dranode.driver.process.locks import FileLock
from dranode.driver.serve.service import DriverService
from dranode.show.ledger_reading import read_ledger
from dranode.sim.machines.forms import open_machine
from dranode.tools.cli.drain import _draw, command
from tests.fakes.doctor import DRIVER, KUBELET, MACHINE, SOCKET, FakeNode, forbid
from tests.fakes.lifecycle import KubeletPods
from tests.fakes.settings import Kernel, interrupt


class Leaving:
    """A node with two claims, from which the driver is about to be removed."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.node = FakeNode(folder, stack)
        self.kubelet = folder / KUBELET
        self.cdi = folder / "run" / "cdi"
        (self.kubelet / "pod-resources" / "kubelet.sock").unlink()
        self.pods = KubeletPods(self.kubelet / "pod-resources" / "kubelet.sock")
        stack.callback(self.pods.close)
        self.a, self.b = self.node.prepare("a"), self.node.prepare("b")
        self.checkpoint()

    @property
    def on_record(self) -> set[str]:
        contents = read_ledger(self.kubelet / "plugins" / DRIVER / "ledger.db")
        return {record.name for record in contents.records} | {row.uid for row in contents.damaged}

    def checkpoint(self, *claims: ResourceClaim, driver: str = DRIVER) -> None:
        # The format of tests/vectors/kubelet, which kubelet's own code wrote.
        states = [
            {
                "ClaimUID": claim.metadata.uid,
                "ClaimName": claim.metadata.name,
                "Namespace": "default",
                "PodUIDs": {f"pod-uid-{claim.metadata.name}": {}},
                "DriverState": {driver: {"Devices": []}},
            }
            for claim in claims
        ]
        data = json.dumps({"kind": "DRACheckpoint", "ClaimInfoStateList": states})
        checkpoint = {"Data": data, "Checksum": zlib.crc32(data.encode())}
        (self.kubelet / "dra_manager_state").write_text(json.dumps(checkpoint))

    def drain(self, *arguments: str) -> tuple[int, dict[str, str], list[str]]:
        """Returns the exit status, claims with their state, and what would be stranded."""
        ran = CliRunner().invoke(
            command,
            [
                *("--machine", MACHINE, "--kubelet-root", str(self.kubelet), "--cdi-dir", str(self.cdi)),
                *("-o", "json", *arguments),
            ],
        )
        if isinstance(ran.exception, DranodeError):
            raise ran.exception
        (row,) = json.loads(ran.stdout)
        claims = {claim["name"] or claim["uid"]: claim["state"] for claim in row["claims"]}
        return ran.exit_code, claims, [one["name"] for one in row["stranded"]]


@pytest.fixture
def leaving() -> Iterator[Leaving]:
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="d") as folder:
        yield Leaving(Path(folder), stack)


def test_claims_that_no_container_uses_are_unprepared(leaving: Leaving) -> None:
    assert leaving.drain() == (0, {"a": "unprepared", "b": "unprepared"}, [])
    assert leaving.on_record == set()
    assert list(leaving.cdi.iterdir()) == []
    assert leaving.drain() == (0, {}, [])


def test_metadata_files_of_an_earlier_version_are_removed(leaving: Leaving) -> None:
    older = leaving.kubelet / "plugins" / DRIVER / "dra-device-metadata"
    (older / "default_a" / "r").mkdir(parents=True)
    (older / "default_a" / "r" / "metadata.json").touch()
    assert leaving.drain()[0] == 0
    assert not older.exists()


def test_a_dry_run_changes_nothing(leaving: Leaving) -> None:
    assert leaving.drain("--dry-run") == (1, {"a": "left", "b": "left"}, [])
    assert leaving.on_record == {"a", "b"}
    assert len(list(leaving.cdi.iterdir())) == 2


def test_a_claim_that_a_container_uses_is_kept_unless_forced(leaving: Leaving) -> None:
    leaving.pods.run("pod-b", "b", leaving.b.metadata.uid)
    assert leaving.drain() == (1, {"a": "unprepared", "b": "in use"}, [])
    assert leaving.on_record == {"b"}
    assert leaving.drain("--force") == (0, {"b": "unprepared"}, [])


def test_everything_is_kept_if_kubelet_is_silent_unless_forced(leaving: Leaving) -> None:
    leaving.pods.close()
    assert leaving.drain() == (1, {"a": "unknown", "b": "unknown"}, [])
    assert leaving.on_record == {"a", "b"}
    assert leaving.drain("--force") == (0, {"a": "unprepared", "b": "unprepared"}, [])


def change(leaving: Leaving, statement: str) -> None:
    with closing(sqlite3.connect(leaving.kubelet / "plugins" / DRIVER / "ledger.db")) as db, db:
        db.execute(statement, (leaving.b.metadata.uid,))
    (leaving.kubelet / "plugins" / DRIVER / "ledger.db-copy").unlink()


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("UPDATE claims SET checksum = 0 WHERE uid = ?", id="a damaged row"),
        pytest.param("DELETE FROM claims WHERE uid = ?", id="a CDI spec without a row"),
    ],
)
def test_a_claim_without_a_record_is_identified_by_its_uid(leaving: Leaving, statement: str) -> None:
    change(leaving, statement)
    uid = leaving.b.metadata.uid
    leaving.pods.run("pod-b", "b", uid)
    assert leaving.drain() == (1, {"a": "unprepared", uid: "in use"}, [])
    leaving.pods.end("pod-b")
    assert leaving.drain() == (0, {uid: "unprepared"}, [])
    assert leaving.on_record == set()
    assert list(leaving.cdi.iterdir()) == []


def test_claims_on_record_in_kubelet_would_be_stranded(leaving: Leaving) -> None:
    leaving.checkpoint(leaving.b)
    assert leaving.drain("--dry-run")[2] == ["b"]
    assert leaving.drain() == (1, {"a": "unprepared", "b": "unprepared"}, ["b"])


def test_the_claims_of_other_drivers_are_not_stranded(leaving: Leaving) -> None:
    leaving.checkpoint(leaving.b, driver="gpu.example.com")
    assert leaving.drain()[2] == []


def test_a_malformed_record_of_kubelet_is_an_error(leaving: Leaving) -> None:
    (leaving.kubelet / "dra_manager_state").write_text("{}")
    with pytest.raises(DranodeError, match="dra_manager_state has no Data"):
        leaving.drain("--dry-run")


def test_a_hidden_record_of_kubelet_is_not_taken_for_empty(
    leaving: Leaving, capsys: pytest.CaptureFixture[str]
) -> None:
    (leaving.kubelet / "dra_manager_state").unlink()
    arguments = ["--machine", MACHINE, "--kubelet-root", str(leaving.kubelet), "--cdi-dir", str(leaving.cdi)]
    (row,) = json.loads(CliRunner().invoke(command, [*arguments, "-o", "json"]).stdout)
    assert row["stranded"] is None
    _draw([row])
    assert "dra_manager_state in --kubelet-root) cannot be seen" in " ".join(capsys.readouterr().out.split())


def test_nothing_is_unprepared_while_a_driver_serves(leaving: Leaving) -> None:
    lock = FileLock(leaving.kubelet / "plugins" / DRIVER / "active.lock")
    with lock.held(0):
        with pytest.raises(DranodeError, match=r"a driver serves dra\.cpu from .*--through-driver"):
            leaving.drain()
        assert leaving.drain("--dry-run")[0] == 1
    assert leaving.on_record == {"a", "b"}


def test_a_serving_driver_unprepares_the_claims_itself(leaving: Leaving) -> None:
    (leaving.kubelet / "plugins_registry" / SOCKET).unlink()
    (plugin,) = load_plugins(("cpu",), open_machine(MACHINE), {})
    service = DriverService(
        plugin,
        FolderCluster(Store(leaving.node.folder / "store"), "node"),
        Listener(
            DRIVER, "node", socket_paths(leaving.kubelet, DRIVER), leaving.kubelet / "plugins" / DRIVER, pytest.fail
        ),
        cdi=leaving.cdi,
    )
    service.start()
    try:
        leaving.pods.run("pod-b", "b", leaving.b.metadata.uid)
        assert leaving.drain("--through-driver") == (1, {"a": "unprepared", "b": "in use"}, [])
        assert {record.name for record in service.node.records()} == {"b"}
    finally:
        service.stop()


def test_through_driver_is_an_error_if_no_driver_serves(leaving: Leaving) -> None:
    (leaving.kubelet / "plugins_registry" / SOCKET).unlink()
    with pytest.raises(DranodeError, match="leave out --through-driver"):
        leaving.drain("--through-driver")


def test_an_unreadable_root_is_reported(leaving: Leaving, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, leaving.kubelet)
    arguments = ["--machine", MACHINE, "--kubelet-root", str(leaving.kubelet), "--cdi-dir", str(leaving.cdi)]
    ran = CliRunner().invoke(command, arguments)
    assert isinstance(ran.exception, DranodeError)
    assert str(ran.exception).endswith("plugins/dra.cpu cannot be read: Permission denied; try as root")


def test_a_wrong_root_is_reported(leaving: Leaving) -> None:
    with pytest.raises(DranodeError, match="check --kubelet-root"):
        leaving.drain("--kubelet-root", "/nowhere")


def test_the_text_output_says_what_to_do_about_what_is_left(leaving: Leaving) -> None:
    leaving.pods.run("pod-b", "b", leaving.b.metadata.uid)
    leaving.checkpoint(leaving.b)
    arguments = ["--machine", MACHINE, "--kubelet-root", str(leaving.kubelet), "--cdi-dir", str(leaving.cdi)]
    ran = CliRunner().invoke(command, arguments)
    assert ran.exit_code == 1
    assert "default/b" in ran.stdout
    assert "delete its pods, or pass --force" in ran.stdout
    assert "stranded without the driver: default/b of pod pod-uid-b" in ran.stdout


def test_a_reason_is_printed_literally(capsys: pytest.CaptureFixture[str]) -> None:
    claim = {"namespace": "default", "name": "a", "uid": "u", "users": [], "state": "failed"}
    failed = {**claim, "error": "the switch [/dev/lamp-0] sticks"}
    _draw([{"driver": DRIVER, "stranded": [], "settings": None, "claims": [failed]}])
    assert "the switch [/dev/lamp-0] sticks" in capsys.readouterr().out


def changed_settings(leaving: Leaving, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A kernel in which claims have moved an interrupt, and those claims are gone."""
    kernel = Kernel()
    kernel.files[interrupt(24)] = "0-1"
    noted = {"boot": "first", "settings": {interrupt(24): {"original": "0-7", "given": ["0-1"], "owner": "eth0"}}}
    with closing(sqlite3.connect(leaving.kubelet / "plugins" / DRIVER / "ledger.db")) as db, db:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('notes', ?)", (json.dumps(noted),))
    (leaving.kubelet / "plugins" / DRIVER / "ledger.db-copy").unlink(missing_ok=True)
    plugin = CPUPlugin(open_machine(MACHINE), CPUOptions(), host=kernel)
    monkeypatch.setattr("dranode.tools.cli.drain.load_plugins", lambda *_: [plugin])
    return kernel


def test_settings_that_outlive_their_claims_are_restored(leaving: Leaving, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving.drain()
    kernel = changed_settings(leaving, monkeypatch)
    assert leaving.drain("--dry-run") == (1, {}, [])
    assert kernel.files[interrupt(24)] == "0-1"
    assert leaving.drain() == (0, {}, [])
    assert kernel.files[interrupt(24)] == "0-7"
    assert leaving.drain("--dry-run") == (0, {}, [])


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(errno.EROFS, "cannot be written: Read-only file system"), (errno.ENOSPC, "or reboot the node")],
)
def test_settings_that_cannot_be_restored_fail_the_command(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    leaving.drain()
    kernel = changed_settings(leaving, monkeypatch)
    kernel.refuses[interrupt(24)] = number
    arguments = ["--machine", MACHINE, "--kubelet-root", str(leaving.kubelet), "--cdi-dir", str(leaving.cdi)]
    ran = CliRunner().invoke(command, arguments)
    assert ran.exit_code == 1
    assert sentence in " ".join(ran.stdout.split())
    assert "nothing is left" not in ran.stdout
