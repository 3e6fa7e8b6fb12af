"""Bug reports of users, permissions and sandboxes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.show.cluster_option import named_kubeconfig
from tests.fakes.recorded_machine import PODS, RecordedMachine

PROGRAM = Path(sys.executable).with_name("dranode")


def test_a_user_without_home_and_name_has_no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(RuntimeError):
        Path.home()
    assert named_kubeconfig() is None


# A user without root's capabilities and without root's group, which `hidepid` lets see everything.
_HIDDEN = """
mount -t proc -o hidepid=$1 proc "$2/proc" || exit 77
shift 2
exec setpriv --regid=65534 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""
_NO_MOUNT = 77


@pytest.fixture
def machine() -> Iterator[RecordedMachine]:
    # pytest's own folders can be too long for a socket path.
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        yield RecordedMachine(Path(name))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount /proc")
@pytest.mark.parametrize(
    ("hidepid", "reason"),
    [
        pytest.param(1, "/status cannot be read, so it is unknown which processes run where", id="noaccess"),
        pytest.param(2, "or hides other users' processes (hidepid)", id="invisible"),
    ],
)
def test_processes_hidden_by_hidepid_are_reported(machine: RecordedMachine, hidepid: int, reason: str) -> None:
    machine.prepare("a", 2)
    cgroup = f"{PODS}/kubepods-burstable-podpod_uid_a.slice/cri-containerd-{'a1' * 32}.scope"
    machine.write(f"sys/fs/cgroup/{cgroup}/cgroup.events", "populated 1\n")
    machine.write(f"sys/fs/cgroup/{cgroup}/cpuset.cpus.effective", "0-1\n")
    command = [str(PROGRAM), "claims", "--verify", *machine.options()]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", _HIDDEN, "sh", str(hidepid), machine.folder, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == _NO_MOUNT:
        pytest.skip(f"/proc cannot be mounted: {done.stderr.strip()}")
    assert reason in done.stderr
    assert (done.returncode, done.stdout) == (1, "")
