"""Every rule of `doctor` finds the fault that was seeded for it, and says how to fix it."""

import pytest

from dranode.driver.node.ledger import Ledger
from dranode.tools.diagnosis.rules import RULES, diagnose
from tests.fakes.doctor import FakeNode, diagnosed, forbid
from tests.fakes.doctor_faults import ALSO, FAULTS
from tests.fakes.doctor_seeds import ledger, quiet_claim_since, thread


def test_a_healthy_node_has_no_findings_and_nothing_unseen(node: FakeNode) -> None:
    node.prepare()
    facts = node.facts()
    assert diagnose(facts) == ()
    assert [sentence for sentence in facts.unseen if "not root" not in sentence] == []


def test_threads_that_may_run_on_quiet_cpus_are_named(node: FakeNode) -> None:
    quiet_claim_since(node)
    (held,) = (each.held for each in Ledger(ledger(node)).read().records)
    first, elsewhere = held.first(), next(cpu for cpu in range(8) if cpu not in held)
    # One thread of a process that otherwise keeps off is pinned there; another has run there and no longer may.
    thread(node, 20, elsewhere, "main", str(elsewhere))
    thread(node, 20, first, "poller", str(first))
    thread(node, 21, first, "moved", str(elsewhere))
    # Kernel threads: one that may run anywhere, and one that belongs to the CPU.
    thread(node, 22, first, "jbd2/vda-8", "0-7", parent=2, ticks=900)
    thread(node, 23, first, "ksoftirqd/0", str(first), parent=2)
    (finding,) = diagnosed(node)
    assert finding.fault.what.endswith("last to run there: jbd2/vda-8 (kernel thread 22), poller (process 20)"), finding
    assert f"isolcpus={held}" in finding.fault.fix


def test_threads_of_a_pod_groups_containers_do_not_disturb_its_claim(node: FakeNode) -> None:
    quiet_claim_since(node, grouped=True)
    (record,) = Ledger(ledger(node)).read().records
    first = record.held.first()
    for pid, name, variable in ((20, "member", f"DRA_CPUSET_{record.uid}=x"), (21, "stranger", "PATH=/bin")):
        thread(node, pid, first, name, "0-7")
        node.write(f"proc/{pid}/cgroup", f"0::/kubepods.slice/kubepods-pod{name}.slice/cri-containerd-{pid}.scope\n")
        node.write(f"proc/{pid}/environ", f"{variable}\0")
    (finding,) = diagnosed(node)
    assert finding.fault.what.endswith("last to run there: stranger (process 21)"), finding


def test_what_cannot_be_seen_of_quiet_cpus_is_reported(node: FakeNode) -> None:
    quiet_claim_since(node, interrupts={"24": 3})
    node.write("proc/2/status", "Name:\tbash\nPPid:\t1\nCpus_allowed_list:\t0-7\n")
    facts = node.facts()
    assert diagnose(facts) == ()
    counts, threads = (sentence for sentence in facts.unseen if "wants quiet" in sentence or "want quiet" in sentence)
    assert counts.startswith("how often devices interrupted CPUs ")
    assert "the kernel does not count it for all of them (/proc/interrupts)" in counts
    assert threads.startswith("which threads ran on CPUs that claims want quiet: /proc shows no kernel threads")


@pytest.mark.parametrize("hidden", ["2", "20"])
def test_unreadable_threads_are_reported(node: FakeNode, monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    quiet_claim_since(node)
    thread(node, 20, 4, "poller", "0-7")
    forbid(monkeypatch, node.folder / "proc" / hidden)
    (sentence,) = (each for each in node.facts().unseen if each.startswith("which threads ran on CPUs"))
    assert f"/proc/{hidden}/" in sentence
    assert "Permission denied" in sentence


# What only `doctor --all-nodes` sees is tested in test_doctor_fleet.py.
OF_ALL_NODES = {"driver-pod-missing", "pods-unseen", "driver-left-out", "two-daemonsets"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_named_with_its_fix(fault: str, node: FakeNode) -> None:
    seed, code, fix = FAULTS[fault]
    seed(node)
    findings = diagnosed(node)
    assert {finding.code for finding in findings} == {code} | ALSO.get(fault, set())
    assert any(fix in finding.fault.fix for finding in findings if finding.code == code)


def test_every_rule_has_a_seeded_fault() -> None:
    seeded = {code for _, code, _ in FAULTS.values()}
    assert {rule.code for rule in RULES} - seeded == OF_ALL_NODES | {"socket-path-too-long"}
