"""`explain` says at which station a claim stopped, and only that."""

import errno
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from dranode.api.documents import decode, encode
from dranode.api.errors import UsageError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Prepared
from dranode.driver.kube.errors import ApiError
from dranode.driver.local.store import Store
from dranode.driver.node.node import NodeClaims
from dranode.driver.plugins import load_plugins
from dranode.sim.machines.forms import open_machine
from dranode.tools.cli.explain import command
from tests.fakes.apiserver import ApiServer, Fault
from tests.fakes.doctor import DRIVER, KUBELET, MACHINE, SOCKET, FakeNode, forbid
from tests.fakes.drivers import allocated_claim, plain, reference
from tests.fakes.lifecycle import KubeletPods
from tests.fakes.machine import write_machine

CONTAINER = "ab" * 32
PAUSE = "cd" * 32


@dataclass
class Trace:
    """A claim on a node where everything goes well, until a test breaks something."""

    node: FakeNode
    folder: Path
    claim: ResourceClaim = field(init=False)
    pods: KubeletPods = field(init=False)
    causes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        write_machine(self.folder)
        (self.folder / KUBELET / "pod-resources" / "kubelet.sock").unlink()
        self.pods = KubeletPods(self.folder / KUBELET / "pod-resources" / "kubelet.sock")
        self.node.stack.callback(self.pods.close)
        self.put(self.node.prepare("a"))
        self.pods.run("pod-a", "a", self.claim.metadata.uid)
        self.cgroup(CONTAINER, "1,5")
        self.cgroup(PAUSE, "0,2-4,6-7")

    def put(self, claim: ResourceClaim) -> None:
        self.claim = claim
        Store(self.folder / "store").put(claim)

    def cgroup(self, container: str, cpus: str) -> None:
        pod = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podpod_uid_a.slice"
        self.node.write(f"sys/fs/cgroup/{pod}/cri-containerd-{container}.scope/cpuset.cpus.effective", f"{cpus}\n")

    def changed(self, **status: Any) -> None:
        self.put(msgspec.structs.replace(self.claim, status=msgspec.structs.replace(self.claim.status, **status)))

    def explain(self, name: str = "default/a", *arguments: str) -> tuple[int, list[tuple[str, str, str]], str]:
        """Returns the exit status, the stations with name, result and text, and the last station's fix."""
        nowhere = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": "", "HOME": str(self.folder)}
        ran = CliRunner(env=nowhere).invoke(
            command,
            [
                *(name, "--root", str(self.folder), "--node-name", "node", "-o", "json"),
                *(arguments or ("--store", str(self.folder / "store"))),
            ],
        )
        assert ran.stdout, ran.exception
        page = json.loads(ran.stdout)
        self.causes = [each["cause"] for each in page["causes"]]
        answer = page["ways"][-1]
        steps = [(one["name"], one["passed"], one["what"]) for one in answer["stations"]]
        stopped = [name for name, passed, _ in steps if passed == "stopped"]
        assert stopped == ([answer["stopped"]] if answer["stopped"] else [])
        return ran.exit_code, steps, answer["stations"][-1]["fix"] or ""


@pytest.fixture
def trace() -> Iterator[Trace]:
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="d") as folder:
        yield Trace(FakeNode(Path(folder), stack), Path(folder))


def ledger(trace: Trace) -> Path:
    return trace.folder / KUBELET / "plugins" / DRIVER / "ledger.db"


def change(trace: Trace, statement: str) -> None:
    with closing(sqlite3.connect(ledger(trace))) as db, db:
        db.execute(statement)


def stop(trace: Trace, *arguments: str) -> tuple[str, str, str]:
    """Where the claim stops, why, and what to do."""
    status, steps, fix = trace.explain("default/a", *arguments)
    assert status == 1
    name, passed, what = steps[-1]
    assert passed == "stopped"
    assert fix
    return name, what, fix


def test_a_claim_that_passed_every_station_is_reported(trace: Trace) -> None:
    status, steps, _ = trace.explain()
    assert status == 0
    assert [(name, passed) for name, passed, _ in steps] == [
        ("allocation", "passed"),
        ("driver", "passed"),
        ("record", "passed"),
        ("CDI spec", "passed"),
        ("container", "passed"),
        ("CPUs", "passed"),
    ]
    whats = {name: what for name, _, what in steps}
    assert whats["allocation"] == "cpudevnuma000 of node node, reserved for pod-a"
    assert whats["record"] == "prepared with CPUs 1,5"
    assert whats["container"] == "pod-a/main"
    assert whats["CPUs"].endswith(f"cri-containerd-{CONTAINER}.scope on 1,5")


def test_a_claim_that_does_not_exist(trace: Trace) -> None:
    status, steps, fix = trace.explain("default/b")
    assert (status, steps) == (1, [("claim", "stopped", "there is no pod or claim default/b")])
    assert "the namespace and the name" in fix


def test_a_claim_that_was_deleted_while_it_was_prepared(trace: Trace) -> None:
    (trace.folder / "store" / "resourceclaims" / "default.a.yaml").unlink()
    name, what, fix = stop(trace)
    assert (name, "still has it on record" in what, "drain" in fix) == ("allocation", True, True)


def test_a_claim_that_is_not_allocated(trace: Trace) -> None:
    trace.changed(allocation=None)
    name, what, fix = stop(trace)
    assert (name, what) == ("allocation", "the scheduler has not allocated it")
    assert "dranode allocate" in fix


def test_a_claim_on_another_node_is_not_judged_by_this_nodes_record(trace: Trace) -> None:
    change(trace, "DELETE FROM claims")
    status, steps, fix = trace.explain("default/a", "--store", str(trace.folder / "store"), "--node-name", "other")
    assert (status, steps[-1]) == (
        0,
        ("node", "unseen", "what node node has recorded about it cannot be seen from here"),
    )
    assert steps[0] == ("allocation", "passed", "cpudevnuma000 of pool node, reserved for pod-a")
    assert "--node-name node" in fix


def test_a_claim_of_another_driver_is_shown_and_not_judged(trace: Trace) -> None:
    document = encode(trace.claim)
    for result in document["status"]["allocation"]["devices"]["results"]:
        result["driver"] = "nic.example.com"
    trace.put(decode(ResourceClaim, document))
    status, steps, _ = trace.explain()
    assert (status, [name for name, _, _ in steps]) == (0, ["allocation", "driver", "node"])
    assert steps[1][2] == "nic.example.com does not report anything about it in status.devices, which is optional"


def test_a_pod_can_be_named_if_claims_are_on_record_for_it(trace: Trace) -> None:
    status, steps, _ = trace.explain("default/pod-a")
    assert (status, steps[2]) == (0, ("record", "passed", "prepared with CPUs 1,5"))


def test_a_pod_groups_claim_is_followed_to_the_containers_of_its_pods(trace: Trace) -> None:
    """The record does not say which pods these are; kubelet does, and their containers have the claim's variables."""
    trace.put(trace.node.prepare("g", grouped=True))
    uid = trace.claim.metadata.uid
    trace.pods.run("crew-0", "g", uid)
    cgroup = f"kubepods.slice/kubepods-podmember.slice/cri-containerd-{'ef' * 32}.scope"
    trace.node.write(f"sys/fs/cgroup/{cgroup}/cpuset.cpus.effective", "2,6\n")
    trace.node.write("proc/500/status", "Name:\tmain\nState:\tS\nPPid:\t1\nCpus_allowed_list:\t2,6\n")
    trace.node.write("proc/500/cgroup", f"0::/{cgroup}\n")
    trace.node.write("proc/500/environ", f"DRA_CPUSET_{uid}=2,6\0")
    status, steps, _ = trace.explain("default/g")
    whats = {name: what for name, _, what in steps}
    assert (status, steps[-1][:2]) == (0, ("CPUs", "passed"))
    assert whats["allocation"] == "cpudevnuma000 of node node, reserved for podgroup crew"
    assert whats["container"] == "crew-0/main"
    assert whats["CPUs"] == f"/sys/fs/cgroup/{cgroup} on 2,6"


def test_a_pod_group_is_not_a_pod_that_is_on_record(trace: Trace) -> None:
    trace.node.prepare("g", grouped=True)
    beside = "claim default/g is reserved for podgroup crew, whose pods are not on record"
    for pod in ("crew", "crew-0"):
        _, steps, _ = trace.explain(f"default/{pod}", "--drivers", "cpu")
        what = f"nothing is on record here about default/{pod}, and there is no cluster to ask; {beside}"
        assert steps == [("record", "unseen", what)]


def test_a_claim_that_no_pod_uses(trace: Trace) -> None:
    trace.changed(reserved_for=())
    assert stop(trace)[:2] == ("allocation", "it has been allocated cpudevnuma000, but is not reserved for any pod")


def test_a_claim_that_waits_for_its_driver(trace: Trace) -> None:
    (trace.folder / KUBELET / "plugins_registry" / SOCKET).unlink()
    change(trace, "DELETE FROM claims")
    name, what, fix = stop(trace)
    assert (name, "dra.cpu does not run on this node" in what, "doctor" in fix) == ("driver", True, True)


def test_a_claim_that_is_not_prepared(trace: Trace) -> None:
    change(trace, "DELETE FROM claims")
    name, what, fix = stop(trace)
    assert (name, what) == ("record", "it is not prepared, although nothing on this node prevents it")
    assert "FailedPrepareDynamicResources" in fix


def test_a_claim_whose_name_is_still_held_by_its_predecessor(trace: Trace) -> None:
    old = trace.claim.metadata.uid
    trace.put(msgspec.structs.replace(trace.claim, metadata=msgspec.structs.replace(trace.claim.metadata, uid="new")))
    assert stop(trace)[:2] == ("record", f"an older claim of the same name (UID {old}) is still prepared")


def test_a_claim_whose_record_is_damaged(trace: Trace) -> None:
    change(trace, "UPDATE claims SET checksum = 0")
    name, what, _ = stop(trace)
    assert (name, what) == ("record", "its record is quarantined: the row does not match its checksum")


def test_a_claim_that_was_allocated_again_since_it_was_recorded(trace: Trace) -> None:
    document = encode(trace.claim)
    document["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {"dra.cpu/cpu": "4"}
    trace.put(decode(ResourceClaim, document))
    assert stop(trace)[:2] == ("record", "it was prepared for a different allocation than it has now")


def test_a_claim_without_its_cdi_spec(trace: Trace) -> None:
    (spec,) = (trace.folder / "run" / "cdi").iterdir()
    spec.unlink()
    name, what, fix = stop(trace)
    assert name == "CDI spec"
    assert what.startswith(f"/var/run/cdi/{spec.name}: it does not exist")
    assert fix.startswith("restart the driver")


def test_a_claim_whose_cdi_spec_no_runtime_loads(trace: Trace) -> None:
    (spec,) = (trace.folder / "run" / "cdi").iterdir()
    spec.write_text(spec.read_text().replace("dra.k8s.io/cpu", "dra.k8s.io"))
    assert "no runtime loads it" in stop(trace)[1]


def test_a_claim_whose_cdi_spec_belongs_to_another_claim(trace: Trace) -> None:
    (spec,) = (trace.folder / "run" / "cdi").iterdir()
    spec.write_text(spec.read_text().replace('"name":"claim-', '"name":"other-'))
    assert f"lacks the devices dra.k8s.io/cpu=claim-{trace.claim.metadata.uid}" in stop(trace)[1]


def test_a_claim_that_no_container_uses_yet(trace: Trace) -> None:
    trace.pods.end("pod-a")
    name, what, fix = stop(trace)
    assert (name, what) == ("container", "kubelet has not given it to any container yet")
    assert "resources.claims" in fix


def test_a_container_on_other_cpus_than_its_claims(trace: Trace) -> None:
    trace.cgroup(CONTAINER, "0-7")
    name, what, fix = stop(trace)
    assert name == "CPUs"
    assert f"cri-containerd-{CONTAINER}.scope on 0-7 rather than 1,5" in what
    assert "NRI" in fix


def test_an_unnamed_container_with_two_claims_runs_on_the_cpus_of_both(trace: Trace) -> None:
    other = trace.node.prepare("b", pod="a")
    trace.pods.also("pod-a", "b", other.metadata.uid)
    trace.cgroup(CONTAINER, "1-2,5-6")
    status, steps, _ = trace.explain()
    assert (status, steps[-1][1]) == (0, "passed")
    assert steps[-1][2].endswith(f"cri-containerd-{CONTAINER}.scope on 1-2,5-6")
    trace.cgroup(CONTAINER, "0-7")
    assert f"cri-containerd-{CONTAINER}.scope on 0-7 rather than 1-2,5-6" in stop(trace)[1]


def test_a_container_with_two_claims_is_ok_without_kubelets_answer(trace: Trace) -> None:
    trace.node.prepare("b", pod="a")
    trace.pods.close()
    for cpus, passed in (("1,5", "passed"), ("1-2,5-6", "passed"), ("1-3,5-6", "stopped")):
        trace.cgroup(CONTAINER, cpus)
        assert trace.explain()[1][-1][:2] == ("CPUs", passed)


def test_a_container_is_not_judged_by_its_name_alone(trace: Trace) -> None:
    trace.pods.close()
    sidecar = "ef" * 32
    trace.cgroup(sidecar, "0-7")
    names = {"main": CONTAINER, "sidecar": sidecar}
    statuses = [{"name": name, "containerID": f"containerd://{id_}"} for name, id_ in names.items()]
    with ApiServer() as api:
        api.put("resourceclaims", plain(trace.claim))
        api.put(
            "pods", {"metadata": {"namespace": "default", "name": "pod-a"}, "status": {"containerStatuses": statuses}}
        )
        status, steps, _ = trace.explain("default/a", "--kubeconfig", api.kubeconfig(trace.folder / "kubeconfig"))
    assert (status, steps[-2][1], steps[-1][1]) == (0, "unseen", "passed")


def test_a_hidden_cgroup_is_not_a_stop(trace: Trace) -> None:
    for path in (trace.folder / "sys/fs/cgroup").rglob("cpuset.cpus.effective"):
        path.unlink()
    status, steps, _ = trace.explain()
    assert (status, steps[-1][:2]) == (0, ("CPUs", "unseen"))


def test_without_an_api_server_only_the_node_is_inspected(trace: Trace) -> None:
    status, steps, _ = trace.explain("default/a", "--drivers", "cpu")
    assert (status, steps[0][1], steps[-1][:2]) == (0, "unseen", ("CPUs", "passed"))


def test_hidden_processes_only_hide_the_cpus(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [name for name, passed, _ in trace.explain()[1] if passed == "unseen"] == []
    forbid(monkeypatch, trace.folder / "proc" / "2")
    status, steps, _ = trace.explain()
    ((name, what),) = [(name, what) for name, passed, what in steps if passed == "unseen"]
    assert (status, name) == (0, "CPUs")
    assert what.startswith("/proc/2/status cannot be read, so it is unknown which processes run where: Permission")


def test_a_damaged_ledger_hides_only_what_this_node_holds(trace: Trace) -> None:
    ledger(trace).write_bytes(b"nonsense" * 512)
    status, ((name, passed, what),), _ = trace.explain()
    assert (status, name, passed) == (0, "node", "unseen")
    assert what.startswith("the ledger ")


@pytest.mark.parametrize("name", ["default/a", "default/pod-a"])
def test_an_unreadable_ledger_is_not_taken_for_an_empty_one(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    forbid(monkeypatch, ledger(trace).parent)
    status, steps, _ = trace.explain(name, "--drivers", "cpu")
    ((step, passed, what),) = steps
    assert (status, step, passed) == (0, "record", "unseen")
    assert what.startswith("whether ")
    assert what.endswith(f"{ledger(trace)} cannot be used: Permission denied")


def test_an_unreadable_registry_is_not_a_stop(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, trace.folder / KUBELET / "plugins_registry")
    change(trace, "DELETE FROM claims")
    status, steps, _ = trace.explain()
    assert steps[1] == ("driver", "unseen", "it cannot be seen from here whether dra.cpu runs")
    assert (status, steps[2][:2]) == (1, ("record", "stopped"))


@pytest.mark.parametrize(
    ("path", "unseen"),
    [
        (f"{KUBELET}/plugins", "record"),
        (f"{KUBELET}/plugins/{DRIVER}/ledger.db", "record"),
        (f"{KUBELET}/plugins_registry", "driver"),
        (f"{KUBELET}/pod-resources/kubelet.sock", "container"),
        (f"{KUBELET}/pod-resources", "container"),
        ("sys", "CPUs"),
        (KUBELET, "driver"),
    ],
)
def test_what_cannot_be_seen_is_not_a_stop(trace: Trace, path: str, unseen: str) -> None:
    gone = trace.folder / path
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink()
        gone.with_name("ledger.db-copy").unlink(missing_ok=True)
    status, steps, _ = trace.explain()
    assert (status, next(name for name, passed, _ in steps if passed == "unseen")) == (0, unseen)


def test_a_lost_ledger_with_a_copy_is_not_taken_for_an_empty_one(trace: Trace) -> None:
    (trace.folder / f"{KUBELET}/plugins/{DRIVER}/ledger.db").unlink()
    ((name, passed, sentence),) = trace.explain()[1]
    assert (name, passed) == ("node", "unseen")
    assert "ledger.db-copy lies beside it" in sentence


def test_an_unreadable_cdi_spec_is_not_a_stop(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    (spec,) = (trace.folder / "run" / "cdi").iterdir()
    real = os.open

    def refused(path: str | Path, *arguments: Any) -> int:
        if Path(path) == spec:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refused)
    status, steps, _ = trace.explain()
    name, passed, what = steps[3]
    assert (status, name, passed) == (0, "CDI spec", "unseen")
    assert what == f"/var/run/cdi/{spec.name} cannot be read: Permission denied"


def test_a_missing_api_is_an_error_and_not_a_missing_claim(trace: Trace) -> None:
    with ApiServer() as api:
        api.put("resourceclaims", plain(trace.claim))
        api.faults.append(Fault(path="/resourceclaims/a", status=404, body="404 page not found", times=9))
        arguments = ["default/a", "--kubeconfig", api.kubeconfig(trace.folder / "kubeconfig")]
        ran = CliRunner().invoke(command, [*arguments, "--root", str(trace.folder), "--node-name", "node"])
    assert isinstance(ran.exception, ApiError)
    assert "404 page not found" in str(ran.exception)


def test_conmon_is_not_a_container_of_the_pod(trace: Trace) -> None:
    pod = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podpod_uid_a.slice"
    (trace.folder / "sys/fs/cgroup" / pod / f"cri-containerd-{CONTAINER}.scope").rename(
        trace.folder / "sys/fs/cgroup" / pod / f"crio-{CONTAINER}.scope"
    )
    trace.node.write(f"sys/fs/cgroup/{pod}/crio-conmon-{CONTAINER}.scope/cpuset.cpus.effective", "0,2-4,6-7\n")
    status = [{"name": "main", "containerID": f"cri-o://{CONTAINER}"}]
    with ApiServer() as api:
        api.put("resourceclaims", plain(trace.claim))
        api.put(
            "pods", {"metadata": {"namespace": "default", "name": "pod-a"}, "status": {"containerStatuses": status}}
        )
        done, steps, _ = trace.explain("default/a", "--kubeconfig", api.kubeconfig(trace.folder / "kubeconfig"))
    assert (done, steps[-1]) == (0, ("CPUs", "passed", "main on 1,5"))


@pytest.mark.parametrize("text", ["a/", "/a", "a/b/c/d", "node/default/a"])
def test_what_is_not_a_name_is_refused(trace: Trace, text: str) -> None:
    ran = CliRunner(env={"HOME": str(trace.folder)}).invoke(command, [text])
    assert isinstance(ran.exception, UsageError)


def test_an_api_server_gives_claims_and_the_names_of_containers(trace: Trace) -> None:
    sidecar = "ef" * 32
    trace.cgroup(sidecar, "0-7")
    names = {"main": CONTAINER, "sidecar": sidecar}
    statuses = [{"name": name, "containerID": f"containerd://{id_}"} for name, id_ in names.items()]
    with ApiServer() as api:
        kubeconfig = api.kubeconfig(trace.folder / "kubeconfig")
        status, steps, _ = trace.explain("default/a", "--kubeconfig", kubeconfig)
        assert (status, steps[0][2].partition(",")[0]) == (1, "there is no claim default/a")
        api.put("resourceclaims", plain(trace.claim))
        api.put(
            "pods", {"metadata": {"namespace": "default", "name": "pod-a"}, "status": {"containerStatuses": statuses}}
        )
        status, steps, _ = trace.explain("default/a", "--kubeconfig", kubeconfig)
        # The sidecar has no claim, so its CPUs do not matter here.
        assert (status, steps[-1]) == (0, ("CPUs", "passed", "main on 1,5"))
        trace.cgroup(CONTAINER, "1-2,5")
        name, what, _ = stop(trace, "--kubeconfig", kubeconfig)
        assert (name, what) == ("CPUs", "the kernel runs main on 1-2,5 rather than 1,5")


def test_a_claim_that_prepare_would_refuse_gets_the_same_message(trace: Trace) -> None:
    big = allocated_claim("big", DRIVER, ["cpudevnuma000"], consumedCapacity={"dra.cpu/cpu": "8"}, shareID="share-big")
    Store(trace.folder / "store").put(big)
    status, steps, fix = trace.explain("default/big")
    (plugin,) = load_plugins(("cpu",), open_machine(MACHINE), {})
    serving = NodeClaims(plugin, trace.folder / KUBELET / "plugins" / DRIVER, trace.folder / "run" / "cdi")
    serving.open()
    (answer,) = serving.prepare({reference(big): big}).values()
    serving.close()
    assert not isinstance(answer, Prepared)
    assert steps[-1] == ("record", "stopped", str(answer))
    assert "1,5 held by default/a" in str(answer)
    assert (status, fix) == (1, "fix this; kubelet tries again by itself")


def test_a_device_that_other_options_publish_is_not_a_stop(trace: Trace) -> None:
    other = allocated_claim("other", DRIVER, ["cpudev003"])
    Store(trace.folder / "store").put(other)
    status, steps, _ = trace.explain("default/other")
    assert (status, steps[-1][1]) == (0, "unseen")
    assert "with these options dra.cpu has no device cpudev003 here" in steps[2][2]


@pytest.mark.parametrize(
    ("nri", "cri", "cause", "what"),
    [
        ({}, {"enable_cdi": False}, "cdi-off", "CDI"),
        ({"disable": True}, {}, "nri-off", "NRI is off in containerd"),
    ],
)
def test_a_feature_that_is_off_in_the_runtime_is_named(
    trace: Trace, nri: dict[str, Any], cri: dict[str, Any], cause: str, what: str
) -> None:
    trace.node.containerd(nri, cri)
    trace.node.silence()
    shutil.rmtree(trace.folder / "sys/fs/cgroup/kubepods.slice")
    with ApiServer() as api:
        api.put("resourceclaims", plain(trace.claim))
        name, said, fix = stop(trace, "--kubeconfig", api.kubeconfig(trace.folder / "kubeconfig"))
    assert (name, what in said) == ("runtime", True)
    assert "restart containerd" in fix
    assert trace.causes == [cause]


def test_a_claim_that_is_not_prepared_because_nri_is_off_says_so(trace: Trace) -> None:
    new = allocated_claim("late", DRIVER, ["cpudevnuma000"], consumedCapacity={"dra.cpu/cpu": "1"})
    trace.node.silence()
    with ApiServer() as api:
        api.put("resourceclaims", plain(new))
        arguments = ("--kubeconfig", api.kubeconfig(trace.folder / "kubeconfig"))
        _, steps, _ = trace.explain("default/late", *arguments)
    assert steps[-1][:2] == ("record", "stopped")
    assert "claims are not enforced, and none is prepared" in steps[-1][2]
    assert trace.causes == ["nri-off"]


def test_a_runtime_that_works_is_not_judged_by_its_file(trace: Trace) -> None:
    trace.node.containerd({"disable": True}, {"enable_cdi": False})
    trace.node.silence()
    with ApiServer() as api:
        api.put("resourceclaims", plain(trace.claim))
        assert trace.explain("default/a", "--kubeconfig", api.kubeconfig(trace.folder / "kubeconfig"))[0] == 0


def test_a_local_run_does_not_use_the_machines_runtime(trace: Trace) -> None:
    trace.node.containerd({}, {"cdi_spec_dirs": ["/elsewhere"]})
    shutil.rmtree(trace.folder / "sys/fs/cgroup/kubepods.slice")
    assert trace.explain()[0] == 0


def test_a_container_whose_processes_inherited_an_affinity_is_named(trace: Trace) -> None:
    cgroup = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podpod_uid_a.slice"
    cgroup = f"{cgroup}/cri-containerd-{CONTAINER}.scope"
    trace.node.write("proc/500/status", "Name:\tmain\nState:\tS\nPPid:\t1\nCpus_allowed_list:\t1\n")
    trace.node.write("proc/500/cgroup", f"0::/{cgroup}\n")
    trace.node.write("proc/500/environ", "")
    _, steps, _ = trace.explain()
    assert steps[-1][:2] == ("CPUs", "stopped")
    assert "no process on 5" in steps[-1][2]
    assert trace.causes == ["wrong-cpus"]
    trace.node.write("proc/500/status", "Name:\tmain\nState:\tS\nPPid:\t1\nCpus_allowed_list:\t1,5\n")
    assert trace.explain()[0] == 0
