"""`explain` from a laptop: it never blames what is healthy, and says which command shows what it cannot see."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dranode.driver.claims.answers import BY_OPTION, NOT_ENFORCED, NotEnforced, no_runtime
from dranode.driver.kube.errors import ApiError
from dranode.tools.cli.explain import command
from dranode.tools.diagnosis.steps import StopCause
from tests.fakes.apiserver import Fault
from tests.fakes.pods import CPU, FAILED_PREPARE, GPU, PodCluster, cpus, request, result, running, waiting


def steps(page: Any, trace: int = 0) -> list[tuple[str, str]]:
    return [(one["name"], one["passed"]) for one in page["ways"][trace]["stations"]]


def running_pod(cluster: PodCluster, **more: Any) -> None:
    taken = [result("cpudevnuma000", CPU, "worker-1", consumedCapacity={f"{CPU}/cpu": "2"})]
    cluster.made_claim("app", "cpus", cpus("2"), results=taken, node="worker-1", pods=["app"])
    status = {"phase": "Running"}
    made = {"cpus": "app-cpus-x7k2p"}
    cluster.pod(templates={"cpus": "t"}, made=made, node="worker-1", containers=[running()], status=status, **more)


def test_a_running_pod_is_followed_to_its_containers_without_causes(cluster: PodCluster, explain: Any) -> None:
    running_pod(cluster)
    status, page = explain()
    assert (status, page["causes"], page["unasked"]) == (0, [], [])
    assert steps(page) == [
        ("pod", "passed"), ("claims", "passed"), ("scheduler", "passed"), ("node", "passed"), ("prepare", "passed"),
        ("containers", "passed"),
    ]  # fmt: skip
    assert page["ways"][0]["stations"][1]["what"] == "app-cpus-x7k2p (cpus)"


def test_events_of_problems_that_are_over_are_not_causes(cluster: PodCluster, explain: Any) -> None:
    cluster.event(
        "FailedScheduling", "0/3 nodes are available: 3 cannot allocate all claims.", source="default-scheduler"
    )
    cluster.event("FailedPrepareDynamicResources", f"{FAILED_PREPARE}DRA driver {CPU} is not registered")
    cluster.event("FailedCreatePodSandBox", "Failed to create pod sandbox: no CNI")
    cluster.event("Pulled", "Container image already present on machine", kind="Normal")
    cluster.event("Started", "Started container main", kind="Normal")
    running_pod(cluster)
    assert explain()[1]["causes"] == []


def test_a_prepare_that_failed_at_first_is_not_a_cause(cluster: PodCluster, explain: Any) -> None:
    taken = [result("cpudevnuma000", CPU, "worker-1")]
    cluster.made_claim("app", "cpus", results=taken, node="worker-1", pods=["app"])
    cluster.event("FailedPrepareDynamicResources", f"{FAILED_PREPARE}DRA driver {CPU} is not registered")
    cluster.event("Pulling", 'Pulling image "app:1"', kind="Normal")
    made, creating = {"cpus": "app-cpus-x7k2p"}, waiting("ContainerCreating")
    cluster.pod(templates={"cpus": "t"}, made=made, node="worker-1", containers=[creating])
    status, page = explain()
    assert (status, page["causes"]) == (0, [])
    assert page["ways"][0]["stations"][-1] | {"what": ""} == {
        "name": "containers", "passed": "unseen", "what": "", "details": [], "cause": None,
        "fix": "journalctl -u kubelet, on worker-1",
    }  # fmt: skip


def test_events_of_an_earlier_pod_of_the_same_name_are_ignored(cluster: PodCluster, explain: Any) -> None:
    cluster.event("FailedPrepareDynamicResources", f"{FAILED_PREPARE}DRA driver {CPU} is not registered")
    taken = [result("cpudevnuma000", CPU, "worker-1")]
    cluster.claim("mine", results=taken, node="worker-1", pods=["app"])
    status = {"metadata": {"uid": "uid-new"}}
    cluster.pod(claims={"cpus": "mine"}, node="worker-1", containers=[waiting("ContainerCreating")], status=status)

    def reserve(claim: Any) -> None:
        claim["status"]["reservedFor"][0]["uid"] = "uid-new"

    cluster.api.objects.edit("resourceclaims", "mine", reserve, "default")
    assert explain()[1]["causes"] == []


def test_the_command_that_shows_another_nodes_record_is_given(cluster: PodCluster, explain: Any) -> None:
    running_pod(cluster)
    where = "what node worker-1 has recorded about it cannot be seen from here"
    _, page = explain()
    last = page["ways"][1]["stations"][-1]
    assert (last["name"], last["passed"], last["what"]) == ("node", "unseen", where)
    assert "--node-name worker-1" in last["fix"]
    pod = {"name": "dranode-x2v4k", "namespace": "dranode", "labels": {"app.kubernetes.io/name": "dranode"}}
    cluster.api.put("pods", {"metadata": pod, "spec": {"nodeName": "worker-1"}})
    _, page = explain()
    assert page["ways"][1]["stations"][-1]["fix"] == (
        "kubectl exec -n dranode dranode-x2v4k -- dranode explain claim/default/app-cpus-x7k2p"
    )


def test_the_claims_of_any_driver_are_followed(cluster: PodCluster, explain: Any) -> None:
    ready = [{"type": "Ready", "status": "True", "reason": "Attached"}]
    taken = [result("gpu-0", GPU, "worker-2"), result("nic-3", "nic.example.com", "rack-7", "nic")]
    cluster.claim("both", request(device_class=GPU), results=taken, node="worker-2", pods=["app"])

    def says(claim: Any) -> None:
        claim["status"]["devices"] = [{"driver": GPU, "pool": "worker-2", "device": "gpu-0", "conditions": ready}]

    cluster.api.objects.edit("resourceclaims", "both", says, "default")
    cluster.pod(claims={"gpu": "both"}, node="worker-2", containers=[running()], status={"phase": "Running"})
    status, page = explain()
    assert (status, [trace["driver"] for trace in page["ways"]]) == (0, [None, GPU, "nic.example.com"])
    told = {trace["driver"]: [one["what"] for one in trace["stations"]] for trace in page["ways"][1:]}
    assert told[GPU][:2] == ["gpu-0 of pool worker-2, reserved for app", f"{GPU} reports that its devices are ready"]
    assert told["nic.example.com"][0] == "nic-3 of pool rack-7, reserved for app"


def test_a_device_that_its_driver_reports_unhealthy_is_named(cluster: PodCluster, explain: Any) -> None:
    cluster.claim(
        "mine", request(device_class=GPU), results=[result("gpu-0", GPU, "worker-2")], node="worker-2", pods=["app"]
    )

    def says(claim: Any) -> None:
        condition = {"type": "Ready", "status": "False", "reason": "Degraded", "message": "link down"}
        claim["status"]["devices"] = [{"driver": GPU, "pool": "worker-2", "device": "gpu-0", "conditions": [condition]}]

    cluster.api.objects.edit("resourceclaims", "mine", says, "default")
    cluster.pod(claims={"gpu": "mine"}, node="worker-2", containers=[running()], status={"phase": "Running"})
    _, page = explain()
    assert [(one["cause"], one["what"]) for one in page["causes"]] == [(StopCause.DEVICE_UNHEALTHY, "link down")]


@pytest.mark.parametrize("why", [no_runtime("/run/nri/nri.sock", 30), BY_OPTION])
def test_a_claim_that_is_not_enforced_is_explained_from_a_laptop(
    cluster: PodCluster, explain: Any, why: NotEnforced
) -> None:
    devices = [result("cpudevnuma000", CPU, "worker-2", consumedCapacity={f"{CPU}/cpu": "2"})]
    cluster.claim("mine", cpus("2"), results=devices, node="worker-2", pods=["app"])

    def says(claim: Any) -> None:
        ready = "True" if why.chosen else "False"
        condition = {"type": "Ready", "status": ready, "reason": NOT_ENFORCED, "message": why.message}
        entry = {"driver": CPU, "pool": "worker-2", "device": "cpudevnuma000", "conditions": [condition]}
        claim["status"]["devices"] = [entry]

    cluster.api.objects.edit("resourceclaims", "mine", says, "default")
    cluster.pod(claims={"cpus": "mine"}, node="worker-2", containers=[running()], status={"phase": "Running"})
    _, page = explain()
    steps = [one for trace in page["ways"] for one in trace["stations"] if why.message in one["what"]]
    assert [one["passed"] for one in steps] == ["passed" if why.chosen else "stopped"]
    assert [one["cause"] for one in page["causes"]] == ([] if why.chosen else [StopCause.NRI_OFF])


def test_the_claim_that_kube_scheduler_made_for_extended_resources(cluster: PodCluster, explain: Any) -> None:
    name = "app-extended-resources-7m2kz"
    cluster.claim(
        name, request(device_class=GPU), results=[result("gpu-0", GPU, "worker-1")], node="worker-1", pods=["app"]
    )
    status = {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": []}}
    cluster.pod(node="worker-1", containers=[running()], status=status)
    _, page = explain()
    assert page["ways"][0]["stations"][1]["what"] == f"{name} (for extended resources)"
    assert page["ways"][1]["claim"] == f"default/{name}"


def test_missing_extended_resources_are_explained_like_their_claim(cluster: PodCluster, explain: Any) -> None:
    cluster.api.objects.edit(
        "deviceclasses", GPU, lambda one: one["spec"].update(extendedResourceName="example.com/gpu")
    )
    status = cluster.unschedulable("0/3 nodes are available: 3 cannot allocate all claims.")
    cluster.pod(status=status)

    def wants(count: str) -> Callable[[Any], None]:
        def edit(pod: Any) -> None:
            pod["spec"]["containers"][0]["resources"] = {"requests": {"example.com/gpu": count, "cpu": "1"}}

        return edit

    cluster.api.objects.edit("pods", "app", wants("3"), "default")
    (cause,) = explain()[1]["causes"]
    assert cause["cause"] == StopCause.DEVICES_DO_NOT_FIT
    assert "needs 3 devices of class gpu.example.com" in cause["what"]
    cluster.api.objects.edit("pods", "app", wants("2"), "default")
    assert explain()[1]["causes"][0]["cause"] == StopCause.UNSCHEDULABLE


def test_a_claim_is_followed_by_its_pods(cluster: PodCluster, explain: Any) -> None:
    running_pod(cluster)
    status, page = explain("default/app-cpus-x7k2p")
    assert (status, [trace["about"] for trace in page["ways"]]) == (
        0,
        ["pod default/app", "claim default/app-cpus-x7k2p"],
    )
    assert explain("claim/app-cpus-x7k2p", "-n", "default")[1]["ways"] == page["ways"]


def test_a_claim_by_name_finds_the_pod_that_will_use_it(cluster: PodCluster, explain: Any) -> None:
    cluster.claim("shared", cpus("64"))
    cluster.pod(claims={"cpus": "shared"})
    _, page = explain("shared")
    assert (page["ways"][0]["about"], page["causes"][0]["cause"]) == ("pod default/app", StopCause.DEVICES_DO_NOT_FIT)


def test_a_claim_that_no_pod_names(cluster: PodCluster, explain: Any) -> None:
    cluster.claim("shared", cpus("2"))
    assert explain("claim/shared", "-n", "default")[1]["causes"][0]["cause"] == StopCause.CLAIM_UNUSED


def test_a_claim_that_no_container_uses_is_reported_but_stops_nothing(cluster: PodCluster, explain: Any) -> None:
    running_pod(cluster, named=False)
    status, page = explain()
    last = page["ways"][0]["stations"][-1]
    assert (status, last["passed"], last["cause"]) == (0, "unseen", StopCause.CLAIM_UNNAMED)
    assert "name: cpus" in last["fix"]


def test_what_the_account_may_not_read_is_reported_and_not_judged(cluster: PodCluster, explain: Any) -> None:
    running_pod(cluster)
    body = '{"kind":"Status","message":"events is forbidden","code":403,"reason":"Forbidden"}'
    cluster.api.faults.append(Fault(path="/events", status=403, body=body, times=9))
    cluster.api.faults.append(Fault(path="/nodes/", status=403, body=body, times=9))
    status, page = explain()
    assert (status, page["causes"]) == (0, [])
    assert dict(steps(page))["node"] == "unseen"
    assert [sentence.partition(":")[0] for sentence in page["unasked"]] == [
        "the Node /worker-1",
        "the Events of namespace default",
    ]


def test_an_account_that_may_read_no_pods_still_follows_claims(cluster: PodCluster, explain: Any) -> None:
    running_pod(cluster)
    body = '{"kind":"Status","message":"pods is forbidden","code":403,"reason":"Forbidden"}'
    cluster.api.faults.append(Fault(path="/pods", status=403, body=body, times=9))
    status, page = explain("app-cpus-x7k2p")
    assert (status, page["ways"][0]["about"]) == (0, "claim default/app-cpus-x7k2p")
    assert any(sentence.startswith("the Pod default/app") for sentence in page["unasked"])


def test_a_silent_server_is_an_error(cluster: PodCluster, explain: Any) -> None:
    cluster.api.faults.append(Fault(path="/pods", status=404, body="404 page not found", times=9))
    with pytest.raises(ApiError, match="404 page not found"):
        explain()


def test_the_context_gives_the_cluster_and_the_namespace(cluster: PodCluster, tmp_path: Path) -> None:
    cluster.pod()
    kubeconfig = Path(cluster.api.kubeconfig(tmp_path / "kubeconfig"))
    document = yaml.safe_load(kubeconfig.read_text())
    (first,) = document["contexts"]
    document["contexts"].append({"name": "prod", "context": {**first["context"], "namespace": "elsewhere"}})
    kubeconfig.write_text(json.dumps(document))
    arguments = ["app", "--kubeconfig", str(kubeconfig), "--node-name", "laptop", "-o", "json"]
    arguments += ["--root", str(tmp_path), "--kubelet-root", str(tmp_path)]
    runner = CliRunner(env={"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": ""})
    assert json.loads(runner.invoke(command, arguments).stdout)["about"] == "default/app"
    assert json.loads(runner.invoke(command, [*arguments, "--context", "prod"]).stdout)["about"] == "elsewhere/app"
    ran = runner.invoke(command, [*arguments, "--context", "none"])
    assert f'there is no context "none"; there are prod, {first["name"]}' in str(ran.exception)


def test_the_text_output_has_causes_and_fixes(cluster: PodCluster, explain: Any) -> None:
    cluster.pod(templates={"cpus": "two-cpus"})
    status, text = explain(output="table")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert status == 1
    assert lines[:2] == ["pod default/app", "passed pod: Pending, on no node"]
    assert 'stopped claims: there is no ResourceClaimTemplate "two-cpus" in namespace default' in lines[2]
    assert "(template-missing)" in text
    assert "-> create the template in that namespace" in text


# --- what kubelet, kube-scheduler or the node have not reported ---


def said(page: Any, step: str) -> str:
    return str(next(one["what"] for one in page["ways"][0]["stations"] if one["name"] == step))


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        ([], "kubelet has not reported any container, and no Event says why"),
        (
            [Fault("GET", "/events", times=9, status=403)],
            "kubelet has not reported any container, and the Events could not be read",
        ),
    ],
)
def test_containers_that_were_not_reported_are_not_called_created(
    cluster: PodCluster, explain: Any, faults: list[Fault], sentence: str
) -> None:
    taken = [result("cpudevnuma000", CPU, "worker-1")]
    cluster.made_claim("app", "cpus", results=taken, node="worker-1", pods=["app"])
    cluster.pod(templates={"cpus": "t"}, made={"cpus": "app-cpus-x7k2p"}, node="worker-1")
    cluster.api.faults.extend(faults)
    assert said(explain()[1], "containers") == sentence


def test_a_node_without_conditions_is_not_called_ready(cluster: PodCluster, explain: Any) -> None:
    running_pod(cluster)
    cluster.api.objects.edit("nodes", "worker-1", lambda node: node["status"].pop("conditions"))
    assert ("node", "unseen") in steps(explain()[1])


def test_the_schedulers_event_counts_if_it_set_no_condition(cluster: PodCluster, explain: Any) -> None:
    cluster.made_claim("app", "cpus", cpus("2"))
    cluster.pod(templates={"cpus": "t"}, made={"cpus": "app-cpus-x7k2p"})
    cluster.event("FailedScheduling", "0/3 nodes are available: 3 Insufficient memory.", source="default-scheduler")
    assert "3 Insufficient memory" in said(explain()[1], "scheduler")


def test_each_container_is_shown_as_running_ended_or_unready(cluster: PodCluster, explain: Any) -> None:
    running_pod(cluster)
    ended = {"name": "once", "state": {"terminated": {"exitCode": 0}}}
    statuses = [running(), ended, running("late", ready=False)]
    cluster.api.objects.edit("pods", "app", lambda pod: pod["status"].update(containerStatuses=statuses), "default")
    assert said(explain()[1], "containers") == "main runs, once has ended, late runs, and is not ready"
