"""`dranode claims` shows what is on record, who uses it and if it is enforced, from a fake /proc and /sys/fs/cgroup."""

import json
import re
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from dranode.api.errors import DranodeError, MachineError, UsageError
from dranode.cpu.options import CPUOptions, read_options
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.record import Record
from dranode.driver.node.ledger import Ledger
from dranode.driver.node.lost_ledger import LOST
from dranode.driver.node.node import NodeClaims
from dranode.driver.pinning.container_cgroups import container_cgroup
from dranode.sim.machines.forms import open_machine
from dranode.sim.machines.scratch import ScratchMachine
from dranode.tools.cli.claims import command
from tests.fakes.doctor import forbid
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import KubeletPods, leave_spec
from tests.fakes.recorded_machine import GROUP, PODS, RecordedMachine
from tests.fakes.settings import quiet_claim


@pytest.fixture
def machine() -> Iterator[RecordedMachine]:
    # pytest's own folders can be too long for a socket's path.
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        yield RecordedMachine(Path(name))


@pytest.fixture
def kubelet(machine: RecordedMachine) -> Iterator[KubeletPods]:
    pods = KubeletPods(machine.folder / "kubelet" / "pod-resources" / "kubelet.sock")
    yield pods
    pods.close()


def test_a_row_has_the_documented_keys(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    assert machine.run() == (
        [
            {
                "namespace": "default",
                "name": "a",
                "uid": "uid-a",
                "driver": "dra.cpu",
                "devices": [GROUP],
                "cpus": "0-1",
                "held": "0-1",
                "amounts": {},
                "state": "completed",
                "pods": ["pod-a"],
            }
        ],
        None,
    )


def test_the_cpus_of_each_request_are_shown(machine: RecordedMachine) -> None:
    machine.prepare("a", 2, 3)
    ((row,), _) = machine.run()
    assert (row["cpus"], row["requestCpus"]) == ("0-4", {"r0": "0-1", "r1": "2-4"})
    out = CliRunner().invoke(command, machine.options()).stdout
    assert "r0: 0-1" in out
    assert "r1: 2-4" in out


def test_a_kubelet_socket_that_may_not_be_looked_up_is_reported(
    machine: RecordedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.prepare("a", 2)
    folder = machine.folder / "kubelet" / "pod-resources"
    assert "who uses" not in CliRunner().invoke(command, machine.options()).stderr
    folder.mkdir()
    forbid(monkeypatch, folder)
    ran = CliRunner().invoke(command, machine.options())
    assert ran.exit_code == 0
    assert f"it is unknown who uses the claims: {folder}/kubelet.sock cannot be read: Permission" in ran.stderr


def test_claims_are_drawn_even_if_the_hardware_cannot_be_read(machine: RecordedMachine, tmp_path: Path) -> None:
    machine.prepare("a", 2)
    other = machine.data.parent / "gone.example.com"
    machine.data.rename(other)
    machine.run("--html", str(tmp_path / "claims.html"), "--svg", str(tmp_path / "claims.svg"))
    (text,) = re.findall(r'id="data">(.*?)</script>', (tmp_path / "claims.html").read_text(), re.DOTALL)
    page = json.loads(text)
    assert [claim[0] for claim in page["moments"][0]["claims"]] == ["default/a"]
    assert page["moments"][0]["claims"][0][3] == [[0, "0-1"]]
    assert "the devices of gone.example.com are unknown: no such driver is installed here" in page["notes"]
    assert "default/a" in (tmp_path / "claims.svg").read_text()


def test_a_claim_of_a_pod_group_is_drawn_with_a_note_of_the_group(machine: RecordedMachine, tmp_path: Path) -> None:
    machine.prepare("a", 2, grouped=True)
    machine.run("--html", str(tmp_path / "claims.html"))
    (text,) = re.findall(r'id="data">(.*?)</script>', (tmp_path / "claims.html").read_text(), re.DOTALL)
    (claim,) = json.loads(text)["moments"][0]["claims"]
    assert (claim[1], claim[-1]) == ([], ["is reserved for podgroup crew"])


def test_a_ledger_that_may_lack_claims_is_reported_with_the_remedy(
    machine: RecordedMachine,
) -> None:
    machine.prepare("a", 2)
    ledger = Ledger(machine.data / "ledger.db")
    with ledger.transaction():
        ledger.set_loss(LOST)
        ledger.commit(put=(Record(uid="uid-lost"),))
    ledger.close()
    done = CliRunner().invoke(command, [*machine.options(), "-o", "json"])
    assert [row["uid"] for row in json.loads(done.stdout)] == ["uid-lost", "uid-a"]
    missing, lost = done.stderr.splitlines()
    assert missing.startswith(f"dra.cpu: no new claims are prepared on this node: {LOST}")
    assert missing.endswith("run `dranode forget-lost --drivers dra.cpu`")
    assert "while the claim with UID uid-lost may hold anything" in lost


@pytest.mark.parametrize("folder", ["kubelet", "kubelet/plugins", "kubelet/plugins/dra.cpu"])
def test_records_that_may_not_be_read_are_an_error(
    machine: RecordedMachine, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    machine.prepare("a", 2)
    forbid(monkeypatch, machine.folder / folder)
    done = CliRunner().invoke(command, machine.options())
    assert isinstance(done.exception, DranodeError), done.output
    assert f"{machine.folder}/{folder}" in str(done.exception)
    assert str(done.exception).endswith("cannot be read: Permission denied; try as root")


def test_kubelet_says_who_uses_a_claim(machine: RecordedMachine, kubelet: KubeletPods) -> None:
    machine.prepare("a", 2)
    kubelet.run("pod-other", "a", "uid-a")
    ((row,), _) = machine.run()
    assert row["pods"] == ["pod-a", "pod-other"]


def test_a_claim_taken_over_without_a_name_gets_it_from_kubelet(machine: RecordedMachine, kubelet: KubeletPods) -> None:
    leave_spec(machine.folder / "cdi", "uid-left", "5-6")
    machine.prepare("a", 2)
    kubelet.run("pod-left", "left", "uid-left")
    node = NodeClaims(CPUPlugin(open_machine("sockets=1,cores=8"), CPUOptions()), machine.data, machine.folder / "cdi")
    node.finish((record, record) for record in node.unfinished())
    node.close()
    rows, _ = machine.run()
    assert [(row["name"], row["cpus"], row["pods"]) for row in rows] == [
        ("a", "0-1", ["pod-a"]),
        ("left", "5-6", ["pod-left"]),
    ]


def test_a_silent_kubelet_is_reported_and_the_record_is_shown(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    path = machine.folder / "nobody.sock"
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(path))
        done = CliRunner().invoke(command, [*machine.options(), "-o", "json", "--pod-resources-socket", str(path)])
    assert done.stderr.startswith(
        f"it is unknown who uses the claims: kubelet's pod-resources at {path} does not answer"
    )
    assert json.loads(done.stdout)[0]["pods"] == ["pod-a"]


def test_containers_on_their_cpus_are_ok(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    cgroup = machine.container(100, "a", "0-1", "PATH=/bin DRA_CPUSET_uid-a=0-1")
    machine.process(101, "child", "0", cgroup, env="PATH=/bin")
    machine.process(200, "daemon", "2-7")
    machine.process(300, "ended", "0-7", state="Z (zombie)")
    ((row,), failed) = machine.run("--verify")
    assert row["verify"] == {
        "ok": True,
        "containers": [{"pod": "pod-a", "cgroup": cgroup, "expected": "0-1", "found": "0-1", "ok": True}],
        "intruders": [],
    }
    assert failed is None
    assert "yes" in machine.table("--verify")


def test_a_container_that_inherited_an_affinity_is_not_ok(machine: RecordedMachine) -> None:
    machine.prepare("a", 4)
    env = "DRA_CPUSET_uid-a=0-3"
    cgroup = machine.container(100, "a", "0-1", env)
    machine.write(f"sys/fs/cgroup/{cgroup}/cpuset.cpus.effective", "0-3\n")
    machine.process(101, "child", "0-1", cgroup, env=env)
    ((row,), failed) = machine.run("--verify")
    (found,) = row["verify"]["containers"]
    assert (found["expected"], found["found"], found["unused"], found["ok"]) == ("0-3", "0-3", "2-3", False)
    assert row["verify"]["ok"] is False
    assert failed is not None
    assert "no process on 2-3" in " ".join(machine.table("--verify").split())
    # A process that pins itself to some of its CPUs leaves the other CPUs to the rest of the container.
    machine.process(102, "worker", "2-3", cgroup, env=env)
    ((row,), failed) = machine.run("--verify")
    assert (row["verify"]["ok"], failed) == (True, None)


def test_a_container_on_other_cpus_is_named_and_fails_the_command(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    machine.container(100, "a", "0-7", "DRA_CPUSET_uid-a=0-1")
    ((row,), failed) = machine.run("--verify")
    (found,) = row["verify"]["containers"]
    assert (row["verify"]["ok"], found["expected"], found["found"], found["ok"]) == (False, "0-1", "0-7", False)
    assert failed == ("a container with a claim does not run on the CPUs that it was given; see the driver's log")
    assert "NO" in machine.table("--verify")


def test_a_container_with_two_claims_may_run_on_the_cpus_of_both(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    machine.prepare("b", 2)
    machine.container(100, "a", "0-3", "DRA_CPUSET_uid-a=0-1 DRA_CPUSET_uid-b=2-3")
    rows, failed = machine.run("--verify")
    assert [(row["verify"]["ok"], row["verify"]["intruders"]) for row in rows] == [(True, []), (True, [])]
    assert failed is None


def test_cpus_that_are_offline_are_not_expected(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    machine.write("sys/devices/system/cpu/online", "0,2-7\n")
    machine.container(100, "a", "0", "DRA_CPUSET_uid-a=0-1")
    ((row,), _) = machine.run("--verify")
    assert row["verify"]["ok"] is True


def test_other_processes_on_exclusive_cpus_are_listed_except_kernel_threads(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    machine.container(100, "a", "0-1", "DRA_CPUSET_uid-a=0-1")
    machine.container(150, "forger", "0-7", "DRA_CPUSET_uid-a=0-1")
    machine.process(200, "daemon", "0-7")
    machine.process(201, "other[red]", "2-7")
    machine.process(3, "ksoftirqd/0", "0", parent="2")
    machine.process(2, "kthreadd", "0-7", parent="0")
    ((row,), failed) = machine.run("--verify")
    assert row["verify"]["intruders"] == [
        {"pid": 150, "name": "forger", "cpus": "0-7", "threadsLastThere": None},
        {"pid": 200, "name": "daemon", "cpus": "0-7", "threadsLastThere": None},
    ]
    assert failed is None
    assert "2 processes without a claim may run on CPUs that a claim holds" in machine.table("--verify")


def test_a_claim_of_a_pod_group_is_verified_in_every_pod(machine: RecordedMachine, kubelet: KubeletPods) -> None:
    machine.prepare("a", 2, grouped=True)
    machine.prepare("b", 2)
    ((row, _), _) = machine.run("--verify")
    assert (row["pods"], row["verify"]["ok"]) == (["podgroup crew"], None)
    kubelet.run("crew-0", "a", "uid-a")
    one = machine.container(100, "member", "0-1", "DRA_CPUSET_uid-a=0-1")
    two = machine.container(101, "another", "0-7", "DRA_CPUSET_uid-a=0-1")
    machine.container(102, "b", "2-3", "DRA_CPUSET_uid-b=2-3")
    machine.container(103, "stranger", "4-7", "PATH=/bin")
    ((row, other), failed) = machine.run("--verify")
    assert row["pods"] == ["podgroup crew", "crew-0"]
    # The record does not say which pod that is.
    assert [(each["pod"], each["cgroup"], each["ok"]) for each in row["verify"]["containers"]] == [
        ("pod-uid-another", two, False),
        ("pod-uid-member", one, True),
    ]
    assert (row["verify"]["intruders"], other["verify"]["ok"]) == ([], True)
    assert failed is not None


def test_a_pod_that_joins_a_prepared_claim_is_not_an_intruder(machine: RecordedMachine, kubelet: KubeletPods) -> None:
    machine.prepare("a", 2)
    kubelet.run("pod-a", "a", "uid-a")
    kubelet.run("pod-later", "a", "uid-a")
    machine.container(100, "a", "0-1", "DRA_CPUSET_uid-a=0-1")
    machine.container(101, "later", "0-1", "DRA_CPUSET_uid-a=0-1")
    ((row,), failed) = machine.run("--verify")
    assert [each["pod"] for each in row["verify"]["containers"]] == ["pod-a", "pod-uid-later"]
    assert (row["verify"]["ok"], row["verify"]["intruders"], failed) == (True, [], None)


def test_the_usage_of_a_pod_groups_claim_is_that_of_its_pods(machine: RecordedMachine) -> None:
    machine.prepare("a", 2, grouped=True)
    cgroup = machine.container(100, "member", "0-1", "DRA_CPUSET_uid-a=0-1")
    machine.write(f"sys/fs/cgroup/{cgroup}/cpu.stat", "usage_usec 1000000\n")
    ((row,), _) = machine.run("--usage", "--seconds", "0.1")
    assert [each["pod"] for each in row["usage"]["pods"]] == ["pod-uid-member"]


def test_containers_that_cannot_be_inspected_are_not_called_ok(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    ((row,), _) = machine.run("--verify")
    assert row["verify"]["ok"] is None
    uid = "pod_uid_a"
    machine.process(100, "secret", "0-1", f"{PODS}/kubepods-burstable-pod{uid}.slice/cri-containerd-1.scope")
    ((row,), failed) = machine.run("--verify")
    assert (row["verify"]["ok"], failed) == (None, None)
    # A container that is ok proves nothing about one that cannot be inspected.
    machine.container(101, "a", "0-1", "DRA_CPUSET_uid-a=0-1")
    ((row,), failed) = machine.run("--verify")
    assert (row["verify"]["ok"], failed) == (None, None)


@pytest.mark.parametrize(
    "files",
    [
        {"{cgroup}/cgroup.events": "populated 1\n", "{cgroup}/cpuset.cpus.effective": "0-1\n"},
        {
            "cpuset/{cgroup}/cgroup.procs": "",
            "cpuset/{cgroup}/cpuset.effective_cpus": "0-1\n",
            "pids/{cgroup}/pids.current": "1\n",
        },
    ],
    ids=["v2", "v1"],
)
def test_the_proc_of_a_pod_is_not_mistaken_for_the_nodes(machine: RecordedMachine, files: dict[str, str]) -> None:
    machine.prepare("a", 2)
    machine.process(1, "dranode", "0-7", "", env="PATH=/bin")
    cgroup = f"{PODS}/kubepods-burstable-podpod_uid_a.slice/cri-containerd-{'a1' * 32}.scope"
    for name, text in files.items():
        machine.write(f"sys/fs/cgroup/{name.format(cgroup=cgroup)}", text)
    done = CliRunner().invoke(command, [*machine.options(), "--verify"])
    assert isinstance(done.exception, MachineError), done.output
    assert "hostPID: true" in str(done.exception)
    machine.process(100, "main", "0-1", cgroup, env="DRA_CPUSET_uid-a=0-1")
    ((row,), failed) = machine.run("--verify")
    assert (row["verify"]["ok"], failed) == (True, None)


def test_processes_are_used_if_the_cgroup_cannot_be_read(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    cgroup = f"../../{PODS}/kubepods-burstable-podpod_uid_a.slice/crio-1.scope"
    machine.process(100, "main", "0", cgroup, env="DRA_CPUSET_uid-a=0-1")
    machine.process(101, "worker", "1", cgroup, env="DRA_CPUSET_uid-a=0-1")
    ((row,), _) = machine.run("--verify")
    (found,) = row["verify"]["containers"]
    assert (found["found"], found["ok"]) == ("0-1", True)


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        ("kubepods/burstable/pod1-2/c1", "kubepods/burstable/pod1-2/c1"),
        ("kubepods/burstable/pod1-2/c1/init.scope", "kubepods/burstable/pod1-2/c1"),
        ("kubepods.slice/kubepods-pod1_2.slice/crio-c1.scope", "kubepods.slice/kubepods-pod1_2.slice/crio-c1.scope"),
        ("kubepods/burstable/pod1-2", ""),
        ("kubepods/burstable/pod3-4/c1", ""),
    ],
)
def test_a_containers_cgroup_is_inside_that_of_its_pod(cgroup: str, container: str) -> None:
    assert container_cgroup(cgroup, "1-2") == container


def quiet(machine: RecordedMachine) -> str:
    """A prepared claim `a` with the quiet CPUs 0 and 1, and the cgroup of its container."""
    machine.write("proc/irq/24/smp_affinity_list", "0-7\n")
    read = read_options({"group_by": "machine", "max_isolation": "quiet"})
    plugin = CPUPlugin(open_machine("sockets=1,cores=8"), read, host=ScratchMachine(machine.folder))
    node = NodeClaims(plugin, machine.data, machine.folder / "cdi")
    node.open()
    claim = quiet_claim("a", "0-1")
    assert isinstance(node.prepare({reference(claim): claim})[claim.metadata.uid], Prepared)
    node.close()
    return machine.container(50, "a", "0-1", f"DRA_CPUSET_{claim.metadata.uid}=0-1")


def counted(machine: RecordedMachine, fired: int, ticks: int) -> None:
    heads, zeros = "".join(f" CPU{cpu}" for cpu in range(8)), " 0" * 7
    lines = f"{heads}\n 24: {fired}{zeros} PCI-MSI 1-edge  eth0\nLOC: {fired * 10}{zeros} Local timer interrupts\n"
    machine.write("proc/interrupts", lines)
    machine.write("proc/stat", f"cpu0 {ticks} 0 0 5\ncpu1 10 0 0 5\n")


def test_verify_shows_what_has_disturbed_quiet_cpus(machine: RecordedMachine) -> None:
    counted(machine, 5, 100)
    cgroup = quiet(machine)
    counted(machine, 8, 400)
    machine.write(f"sys/fs/cgroup/{cgroup}/cpu.stat", "usage_usec 1000000\n")
    machine.process(60, "sshd", "0-7")
    for thread, cpu in ((60, 1), (61, 5)):
        machine.write(f"proc/60/task/{thread}/stat", f"{thread} (a (b) c) S {' '.join(['0'] * 35)} {cpu} 0 0")
    ((row,), _) = machine.run("--verify")
    assert row["verify"]["disturbance"] == {
        "cpus": "0-1",
        "deviceInterrupts": 3,
        "interrupts": {"24 eth0": 3},
        "kernelInterrupts": {"LOC Local timer interrupts": 30},
        "busySeconds": 3.0,
        "ownSeconds": 1.0,
        "endedSeconds": 0.0,
        "othersSeconds": 2.0,
    }
    assert row["verify"]["intruders"] == [{"pid": 60, "name": "sshd", "cpus": "0-7", "threadsLastThere": 1}]
    drawn = machine.table("--verify")
    assert re.search(r"default/a +0-1 +3 +24 eth0: 3 +2\.00 s", drawn), drawn


def test_after_a_container_restart_the_time_of_others_is_an_upper_bound(machine: RecordedMachine) -> None:
    counted(machine, 5, 100)
    cgroup = quiet(machine)
    counted(machine, 5, 400)
    machine.write(f"sys/fs/cgroup/{cgroup}/cpu.stat", "usage_usec 1000000\n")
    machine.write(f"sys/fs/cgroup/{cgroup.rpartition('/')[0]}/cpu.stat", "usage_usec 2500000\n")
    ((row,), _) = machine.run("--verify")
    found = row["verify"]["disturbance"]
    assert (found["ownSeconds"], found["endedSeconds"], found["othersSeconds"]) == (1.0, 1.5, 2.0)
    assert "at most 2.00 s" in machine.table("--verify")


def test_verify_names_a_process_even_if_only_one_thread_may_run_there(machine: RecordedMachine) -> None:
    quiet(machine)
    machine.process(60, "sshd", "4-7")
    for tid, allowed, cpu in ((60, "4-7", 5), (61, "1", 1)):
        machine.write(f"proc/60/task/{tid}/status", f"Name:\tsshd\nPPid:\t1\nCpus_allowed_list:\t{allowed}\n")
        machine.write(f"proc/60/task/{tid}/stat", f"{tid} (sshd) S {' '.join(['0'] * 35)} {cpu} 0 0")
    ((row,), _) = machine.run("--verify")
    assert row["verify"]["intruders"] == [{"pid": 60, "name": "sshd", "cpus": "1,4-7", "threadsLastThere": 1}]


def test_unknown_facts_about_quiet_cpus_are_shown_as_unknown(machine: RecordedMachine) -> None:
    quiet(machine)
    ((row,), _) = machine.run("--verify")
    disturbance = row["verify"]["disturbance"]
    assert (disturbance["busySeconds"], disturbance["othersSeconds"]) == (None, None)
    assert (disturbance["deviceInterrupts"], disturbance["interrupts"]) == (None, None)
    assert re.search(r"default/a +0-1 +unknown +- +unknown", machine.table("--verify"))


def test_without_the_nodes_processes_intruders_are_unknown(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    machine.process(2, "bash", "0-7")
    ((row,), _) = machine.run("--verify")
    assert row["verify"]["intruders"] is None
    sentence = "it is unknown which processes without a claim may run on CPUs of claims: /proc shows no kernel threads"
    assert sentence in machine.table("--verify")


def test_claims_without_quiet_cpus_have_no_disturbance(machine: RecordedMachine) -> None:
    machine.prepare("a", 2)
    ((row,), _) = machine.run("--verify")
    assert "disturbance" not in row["verify"]


def test_damaged_notes_are_reported_and_the_claims_still_verified(machine: RecordedMachine) -> None:
    quiet(machine)
    with closing(sqlite3.connect(machine.data / "ledger.db")) as connection, connection:
        changed = connection.execute("UPDATE meta SET value = '{' WHERE key = 'notes'").rowcount
    assert changed == 1
    ((row,), _) = machine.run("--verify")
    assert "disturbance" not in row["verify"]
    assert row["verify"]["containers"]
    assert "dra.cpu: it is unknown what disturbed its claims: the driver's notes" in machine.table("--verify")


def test_drivers_have_a_full_and_a_short_name_and_typos_are_errors(
    machine: RecordedMachine,
) -> None:
    machine.prepare("a", 2)
    rows, _ = machine.run()
    for words in (["cpu"], ["dra.cpu"], ["memory,cpu"], ["memory", "--drivers", "dra.cpu"]):
        assert machine.run("--drivers", *words) == (rows, None)
    assert machine.run("--drivers", "memory") == ([], None)
    done = CliRunner().invoke(command, [*machine.options(), "--drivers", "cpuu"])
    assert str(done.exception).startswith("no driver cpuu is installed or has a record; known: dra.cpu, ")
    assert isinstance(done.exception, UsageError)
