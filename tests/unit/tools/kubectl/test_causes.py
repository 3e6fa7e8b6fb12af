"""Every cause is set up as a real cluster shows it, and `explain` names that cause and no other, with the remedy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dranode.tools.diagnosis.steps import StopCause
from tests.fakes.pods import CPU, FAILED_PREPARE, GPU, PodCluster, cpus, request, result, running, waiting

NO_CPUS = (
    "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 cannot "
)
NO_CPUS += "allocate all claims. still not schedulable, preemption: 0/3 nodes are available."


def allocated(cluster: PodCluster, name: str = "app-cpus-x7k2p", pod: str = "app", **more: Any) -> None:
    """A claim that was made for a pod, allocated on worker-1 and reserved."""
    entry = name.removeprefix(f"{pod}-").rpartition("-")[0]
    results = more.pop("results", [result("cpudevnuma000", CPU, "worker-1", consumedCapacity={f"{CPU}/cpu": "2"})])
    cluster.made_claim(pod, entry, cpus("2"), results=results, node="worker-1", pods=[pod], **more)


def bound(cluster: PodCluster, *containers: Any, **more: Any) -> None:
    """A pod on worker-1 with its claim."""
    made = {"cpus": "app-cpus-x7k2p"}
    status = containers or (waiting("ContainerCreating"),)
    cluster.pod(templates={"cpus": "two-cpus"}, made=made, node="worker-1", containers=status, **more)


# --- the seeds: what a cluster looks like after each failure ---


def pod_missing(cluster: PodCluster) -> None:
    cluster.pod("other")


def evicted_by_kubelet(cluster: PodCluster) -> None:
    said = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi."
    bound(cluster, running(), status={"phase": "Failed", "reason": "Evicted", "message": said})


def rejected(cluster: PodCluster) -> None:
    said = "Pod was rejected: Node didn't have enough resource: cpu, requested: 9000, used: 0, capacity: 8000"
    cluster.pod(node="worker-1", status={"phase": "Failed", "reason": "OutOfcpu", "message": said})


def ended(cluster: PodCluster) -> None:
    allocated(cluster)
    terminated = {"name": "main", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}
    bound(cluster, terminated, status={"phase": "Failed"})


def evicted_by_a_device_taint(cluster: PodCluster) -> None:
    allocated(cluster)
    said = "Device Taint manager: deleting due to NoExecute taint"
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByDeviceTaintManager",
        "message": said,
    }
    cluster.event("DeviceTaintManagerEviction", "Marking for deletion", source="device-taint-eviction", kind="Normal")
    bound(
        cluster,
        running(),
        status={"conditions": [condition], "metadata": {"deletionTimestamp": "2026-11-22T07:01:00Z"}},
    )


def unprepare_waits(cluster: PodCluster) -> None:
    allocated(cluster)
    cluster.api.objects.remove("resourceslices", f"00000-{CPU}-worker-1-abcde")
    terminated = {"name": "main", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    bound(cluster, terminated, status={"metadata": {"deletionTimestamp": "2026-11-22T07:01:00Z"}})


def pod_not_ending(cluster: PodCluster) -> None:
    allocated(cluster)
    bound(cluster, running(), status={"metadata": {"deletionTimestamp": "2026-11-22T07:01:00Z"}})
    cluster.event("FailedKillPod", 'error killing pod: failed to "KillPodSandbox": context deadline exceeded')


def template_missing(cluster: PodCluster) -> None:
    cluster.pod(templates={"cpus": "two-cpus"})
    missing = 'resource claim template "two-cpus": resourceclaimtemplate.resource.k8s.io "two-cpus" not found'
    cluster.event("FailedResourceClaimCreation", f"PodResourceClaim cpus: {missing}", source="resource_claim")


def quota_exceeded(cluster: PodCluster) -> None:
    cluster.template("two-cpus", cpus("2"))
    cluster.pod(templates={"cpus": "two-cpus"})
    said = 'create ResourceClaim : resourceclaims.resource.k8s.io "app-cpus-x7k2p" is forbidden: exceeded quota: cpus, '
    said += "requested: count/resourceclaims.resource.k8s.io=1, used: count/resourceclaims.resource.k8s.io=4, limited: "
    said += "count/resourceclaims.resource.k8s.io=4"
    cluster.event("FailedResourceClaimCreation", f"PodResourceClaim cpus: {said}", source="resource_claim")


def claim_refused(cluster: PodCluster) -> None:
    cluster.template("admin", request(adminAccess=True))
    cluster.pod(templates={"cpus": "admin"})
    said = (
        "create ResourceClaim : admin access to devices requires the `resource.kubernetes.io/admin-access: true` label "
    )
    said += "on the containing namespace"
    cluster.event("FailedResourceClaimCreation", f"PodResourceClaim cpus: {said}", source="resource_claim")


def claim_not_created(cluster: PodCluster) -> None:
    cluster.template("two-cpus", cpus("2"))
    cluster.pod(templates={"cpus": "two-cpus"})


def claim_missing(cluster: PodCluster) -> None:
    said = '0/3 nodes are available: resourceclaim.resource.k8s.io "shared" not found.'
    cluster.pod(claims={"cpus": "shared"}, status=cluster.unschedulable(said))


def claim_being_deleted(cluster: PodCluster) -> None:
    cluster.claim("shared", cpus("2"), deletionTimestamp="2026-11-22T07:00:00Z")
    cluster.pod(claims={"cpus": "shared"})


def claim_of_another_pod(cluster: PodCluster) -> None:
    cluster.made_claim("earlier", "cpus", cpus("2"))
    cluster.pod(templates={"cpus": "two-cpus"}, made={"cpus": "earlier-cpus-x7k2p"})


def scheduling_gated(cluster: PodCluster) -> None:
    cluster.made_claim("app", "cpus", cpus("2"))
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    cluster.pod(templates={"cpus": "t"}, made={"cpus": "app-cpus-x7k2p"}, schedulingGates=gates)


def no_scheduler(cluster: PodCluster) -> None:
    cluster.claim("shared", cpus("2"))
    cluster.pod(claims={"cpus": "shared"}, schedulerName="volcano")


def class_missing(cluster: PodCluster) -> None:
    cluster.claim("shared", request(device_class="fast-cpus"))
    said = "0/3 nodes are available: request r: device class fast-cpus does not exist."
    cluster.pod(claims={"cpus": "shared"}, status=cluster.unschedulable(said))


def nothing_published(cluster: PodCluster) -> None:
    cluster.device_class("nic", selectors=[{"cel": {"expression": 'device.driver == "nic.example.com"'}}])
    cluster.claim("shared", request(device_class="nic"))
    cluster.pod(claims={"nic": "shared"}, status=cluster.unschedulable(NO_CPUS))


def pool_incomplete(cluster: PodCluster) -> None:
    cluster.device_class("nic", selectors=[{"cel": {"expression": 'device.driver == "nic.example.com"'}}])
    for node in ("worker-1", "worker-2"):
        for driver in (CPU, GPU):
            cluster.api.objects.remove("resourceslices", f"00000-{driver}-{node}-abcde")
        cluster.slice(node, "nic.example.com", [{"name": "nic-0"}], resourceSliceCount=2)
    cluster.claim("shared", request(device_class="nic"))
    cluster.pod(claims={"nic": "shared"}, status=cluster.unschedulable(NO_CPUS))


def selector_fails(cluster: PodCluster) -> None:
    expression = f'device.attributes["{GPU}"].model == "a100"'
    cluster.claim("shared", request(device_class=GPU, selectors=[{"cel": {"expression": expression}}]))
    cluster.pod(claims={"gpu": "shared"})


def devices_do_not_fit(cluster: PodCluster) -> None:
    cluster.made_claim("app", "cpus", cpus("64"))
    status = cluster.unschedulable(NO_CPUS)
    cluster.pod(templates={"cpus": "t"}, made={"cpus": "app-cpus-x7k2p"}, status=status)


def devices_in_use(cluster: PodCluster) -> None:
    for number, node in enumerate(("worker-1", "worker-2")):
        taken = [result(f"gpu-{index}", GPU, node) for index in range(2)]
        cluster.claim(
            f"train-{number}", request(device_class=GPU, count=2), results=taken, node=node, pods=[f"t{number}"]
        )
    cluster.claim("mine", request(device_class=GPU))
    cluster.pod(claims={"gpu": "mine"}, status=cluster.unschedulable(NO_CPUS))


def cpus_in_use(cluster: PodCluster) -> None:
    for number, node in enumerate(("worker-1", "worker-2")):
        taken = [result("cpudevnuma000", CPU, node, shareID=f"s{number}", consumedCapacity={f"{CPU}/cpu": "6"})]
        cluster.claim(f"busy-{number}", cpus("6"), results=taken, node=node, pods=[f"b{number}"])
    cluster.claim("mine", cpus("4"))
    cluster.pod(claims={"cpus": "mine"}, status=cluster.unschedulable(NO_CPUS))


def devices_tainted(cluster: PodCluster) -> None:
    rule = {"deviceSelector": {"driver": GPU}, "taint": {"key": "maintenance", "effect": "NoSchedule"}}
    cluster.api.put("devicetaintrules", {"metadata": {"name": "gpus-off"}, "spec": rule})
    cluster.claim("mine", request(device_class=GPU))
    cluster.pod(claims={"gpu": "mine"}, status=cluster.unschedulable(NO_CPUS))


def constraint_unmet(cluster: PodCluster) -> None:
    constraint = {"requests": ["a", "b"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    requests = (request("a", GPU), request("b", GPU))
    cluster.claim("mine", *requests, constraints=[constraint])
    cluster.pod(claims={"gpu": "mine"}, status=cluster.unschedulable(NO_CPUS))


def claim_on_another_node(cluster: PodCluster) -> None:
    allocated(cluster, "shared-cpus-x7k2p", pod="shared")
    hostname = {"kubernetes.io/hostname": "worker-2"}
    cluster.pod(claims={"cpus": "shared-cpus-x7k2p"}, nodeSelector=hostname)


def claim_full(cluster: PodCluster) -> None:
    taken = [result("cpudevnuma000", CPU, "worker-1")]
    cluster.claim("shared", cpus("1"), results=taken, node="worker-1", pods=[f"p{number}" for number in range(256)])
    cluster.pod(
        claims={"cpus": "shared"}, status=cluster.unschedulable("0/3 nodes are available: resourceclaim in use.")
    )


def nodes_excluded(cluster: PodCluster) -> None:
    cluster.claim("mine", cpus("1"))
    cluster.pod(claims={"cpus": "mine"}, nodeSelector={"zone": "b"})


def unschedulable(cluster: PodCluster) -> None:
    cluster.claim("mine", cpus("1"))
    cluster.pod(
        claims={"cpus": "mine"}, status=cluster.unschedulable("0/3 nodes are available: 3 Insufficient memory.")
    )


def binding_waits(cluster: PodCluster) -> None:
    conditions: dict[str, Any] = {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    cluster.claim(
        "mine",
        request(device_class=GPU),
        results=[result("gpu-0", GPU, "worker-1", **conditions)],
        node="worker-1",
        pods=["app"],
    )
    cluster.pod(claims={"gpu": "mine"})


def failed_to_bind(cluster: PodCluster) -> None:
    binding_waits(cluster)
    said = {"type": "broken", "status": "True", "reason": "Cable", "message": "the cable is out"}
    device = {"driver": GPU, "pool": "worker-1", "device": "gpu-0", "conditions": [said]}
    cluster.api.objects.edit(
        "resourceclaims", "mine", lambda claim: claim["status"].update(devices=[device]), "default"
    )


def bound_to_another_node(cluster: PodCluster) -> None:
    cluster.claim("mine", request(device_class=GPU), results=[result("gpu-0", GPU, "worker-1")], node="worker-1")
    cluster.pod(claims={"gpu": "mine"}, node="worker-2")


def node_missing(cluster: PodCluster) -> None:
    cluster.pod(node="worker-9")


def node_not_ready(cluster: PodCluster) -> None:
    cluster.api.objects.remove("nodes", "worker-1")
    cluster.node("worker-1", ready="Unknown", message="Kubelet stopped posting node status.")
    allocated(cluster)
    bound(cluster)


def claim_not_allocated(cluster: PodCluster) -> None:
    cluster.made_claim("app", "cpus", cpus("2"))
    bound(cluster)


def claim_not_reserved(cluster: PodCluster) -> None:
    allocated(cluster, "shared-cpus-x7k2p", pod="shared")
    cluster.pod(claims={"cpus": "shared-cpus-x7k2p"}, node="worker-1", containers=[waiting("ContainerCreating")])


def driver_not_registered(cluster: PodCluster) -> None:
    allocated(cluster)
    cluster.event("FailedPrepareDynamicResources", f"{FAILED_PREPARE}DRA driver {CPU} is not registered")
    bound(cluster)


def driver_not_answering(cluster: PodCluster) -> None:
    allocated(cluster)
    said = "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    cluster.event("FailedPrepareDynamicResources", f"{FAILED_PREPARE}{said}")
    bound(cluster)


def prepare_refused(cluster: PodCluster) -> None:
    allocated(cluster)
    said = 'request "r" was granted 8 CPUs of cpudevnuma000, which has 3 left: 5-7'
    text = f"{FAILED_PREPARE}NodePrepareResources failed for ResourceClaim app-cpus-x7k2p: {said}"
    cluster.event("FailedPrepareDynamicResources", text)
    bound(cluster)


def refused_an_hour_ago(cluster: PodCluster) -> None:
    allocated(cluster)

    def said(claim: Any) -> None:
        message = "claim default/app-cpus-x7k2p was allocated device x, which claim default/b still holds"
        condition = {"type": "Ready", "status": "False", "reason": "PrepareFailed", "message": message}
        entry = {"driver": CPU, "pool": "worker-1", "device": "cpudevnuma000", "conditions": [condition]}
        claim["status"]["devices"] = [entry]

    cluster.api.objects.edit("resourceclaims", "app-cpus-x7k2p", said, "default")
    bound(cluster)


def claim_replaced(cluster: PodCluster) -> None:
    allocated(cluster)
    said = "old ResourceClaim with same name app-cpus-x7k2p and different UID 77 still exists (previous pod "
    said += "force-deleted?!)"
    cluster.event("FailedPrepareDynamicResources", f"{FAILED_PREPARE}{said}")
    bound(cluster)


def kubelet_error(cluster: PodCluster) -> None:
    allocated(cluster)
    said = "checkpoint ResourceClaim state: write /var/lib/kubelet/.dra_manager_state: no space left on device"
    cluster.event("FailedPrepareDynamicResources", f"{FAILED_PREPARE}{said}")
    bound(cluster)


def sandbox_failed(cluster: PodCluster) -> None:
    allocated(cluster)
    said = "Failed to create pod sandbox: rpc error: code = Unknown desc = "
    said += 'failed to setup network for sandbox "5f": no CNI'
    cluster.event("FailedCreatePodSandBox", said)
    bound(cluster)


def volume_failed(cluster: PodCluster) -> None:
    allocated(cluster)
    cluster.event("FailedMount", 'MountVolume.SetUp failed for volume "data" : secret "data" not found')
    bound(cluster)


def image_missing(cluster: PodCluster) -> None:
    allocated(cluster)
    bound(cluster, waiting("ImagePullBackOff", 'Back-off pulling image "app:1": not found'))


def container_config(cluster: PodCluster) -> None:
    allocated(cluster)
    bound(cluster, waiting("CreateContainerConfigError", 'configmap "settings" not found'))


def cdi_off(cluster: PodCluster) -> None:
    allocated(cluster)
    said = "the runtime did not inject its CDI device dra.k8s.io/cpu=claim-1 into container main"
    bound(cluster, waiting("CreateContainerError", said))


def cdi_unresolvable(cluster: PodCluster) -> None:
    allocated(cluster)
    said = "failed to create containerd container: CDI device injection failed: "
    said += 'unresolvable CDI devices "dra.k8s.io/cpu=claim-1"'
    bound(cluster, waiting("CreateContainerError", said))


def nri_plugin_missing(cluster: PodCluster) -> None:
    allocated(cluster)
    said = f'failed to create container: validation failed: required plugin "{CPU}" not present'
    bound(cluster, waiting("CreateContainerError", said))


def claim_in_use(cluster: PodCluster) -> None:
    allocated(cluster)
    said = (
        'claim default/app-cpus-x7k2p is in use by container "one" of pod default/app, so container two cannot have it'
    )
    bound(cluster, waiting("CreateContainerError", said))


def claim_in_use_by_another_pod(cluster: PodCluster) -> None:
    allocated(cluster)
    said = (
        'claim default/app-cpus-x7k2p is in use by container "one" of pod default/other, so container two cannot have '
        "it: only containers of one pod may share it; give each pod a claim of its own (a ResourceClaimTemplate)"
    )
    bound(cluster, waiting("CreateContainerError", said))


def resource_missing(cluster: PodCluster) -> None:
    cluster.pod()
    wants = {"requests": {"example.com/fpga": "1"}}
    cluster.api.objects.edit("pods", "app", lambda pod: pod["spec"]["containers"][0].update(resources=wants), "default")


def no_shared_cpus(cluster: PodCluster) -> None:
    said = "claims hold every CPU (0-7), so none is left for container main, which has no claim: set --reserved-cpus"
    cluster.pod(node="worker-1", containers=[waiting("CreateContainerError", said)])


def container_refused(cluster: PodCluster) -> None:
    allocated(cluster)
    bound(cluster, waiting("RunContainerError", 'exec: "app": executable file not found in $PATH'))


def container_ends(cluster: PodCluster) -> None:
    allocated(cluster)
    crashing = waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container")
    bound(
        cluster, {**crashing, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "restartCount": 7}
    )


def container_not_ready(cluster: PodCluster) -> None:
    allocated(cluster)
    bound(cluster, running(ready=False), status={"phase": "Running"})
    cluster.event("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")


def device_unhealthy(cluster: PodCluster) -> None:
    allocated(cluster)
    health = {"resourceID": "gpu.example.com/gpu=0", "health": "Unhealthy", "message": "XID 79"}
    bound(
        cluster,
        running(allocatedResourcesStatus=[{"name": "claim:cpus/r", "resources": [health]}]),
        status={"phase": "Running"},
    )


class Seed(NamedTuple):
    """A cause, what a cluster looks like with it, and pieces of the sentence and of the fix."""

    cause: StopCause
    seed: Callable[[PodCluster], None]
    what: str
    fix: str


SEEDS = (
    Seed(StopCause.POD_MISSING, pod_missing, "no pod or claim default/app", "the namespace and the name"),
    Seed(StopCause.POD_EVICTED, evicted_by_kubelet, "low on resource: memory", "ran short of"),
    Seed(StopCause.POD_REJECTED, rejected, "OutOfcpu", "recreate the pod"),
    Seed(StopCause.POD_ENDED, ended, "exit code 2", "kubectl logs"),
    Seed(StopCause.DEVICE_TAINT_EVICTION, evicted_by_a_device_taint, "NoExecute taint", "tainted"),
    Seed(StopCause.POD_NOT_ENDING, pod_not_ending, "KillPodSandbox", "as long as its containers run"),
    Seed(StopCause.UNPREPARE_WAITS, unprepare_waits, f"because {CPU} does not run there", "start the driver"),
    Seed(StopCause.TEMPLATE_MISSING, template_missing, '"two-cpus" in namespace default', "create the template"),
    Seed(StopCause.QUOTA_EXCEEDED, quota_exceeded, "exceeded quota: cpus", "kubectl describe quota -n default"),
    Seed(StopCause.CLAIM_REFUSED, claim_refused, "admin access to devices requires", "template"),
    Seed(
        StopCause.CLAIM_NOT_CREATED,
        claim_not_created,
        "not been created from the template two-cpus",
        "kube-controller-manager",
    ),
    Seed(StopCause.CLAIM_MISSING, claim_missing, "no claim default/shared", "resourceClaimName"),
    Seed(StopCause.CLAIM_BEING_DELETED, claim_being_deleted, "shared is being deleted", "wait until"),
    Seed(
        StopCause.CLAIM_OF_ANOTHER_POD,
        claim_of_another_pod,
        "earlier-cpus-x7k2p was not created for",
        "recreate it",
    ),
    Seed(StopCause.SCHEDULING_GATED, scheduling_gated, "kueue.x-k8s.io/admission", "Kueue"),
    Seed(StopCause.NO_SCHEDULER, no_scheduler, "schedulerName is volcano", "leave schedulerName out"),
    Seed(StopCause.CLASS_MISSING, class_missing, "fast-cpus", "DeviceClass"),
    Seed(StopCause.NOTHING_PUBLISHED, nothing_published, "class nic", "install or start the driver"),
    Seed(StopCause.POOL_INCOMPLETE, pool_incomplete, "is not complete", "wait for the driver"),
    Seed(StopCause.SELECTOR_FAILS, selector_fails, "model", "orValue()"),
    Seed(
        StopCause.DEVICES_DO_NOT_FIT, devices_do_not_fit, "worker-1 (1 more like it). Request r needs", "request less"
    ),
    Seed(StopCause.DEVICES_IN_USE, devices_in_use, "default/train-0 (t0) holds gpu-0, gpu-1", "end a pod"),
    Seed(StopCause.DEVICES_IN_USE, cpus_in_use, "default/busy-0 (b0) holds cpudevnuma000 (6 dra.cpu/cpu)", "end a pod"),
    Seed(StopCause.DEVICES_TAINTED, devices_tainted, "maintenance:NoSchedule", "tolerate"),
    Seed(StopCause.CONSTRAINT_UNMET, constraint_unmet, "pcieRoot", "constraint"),
    Seed(StopCause.CLAIM_ON_ANOTHER_NODE, claim_on_another_node, "shared-cpus-x7k2p is allocated elsewhere", "node"),
    Seed(StopCause.CLAIM_FULL, claim_full, "reserved for 256 pods", "another claim"),
    Seed(StopCause.NODES_EXCLUDED, nodes_excluded, "nodeSelector requires zone=b", "nodeSelector"),
    Seed(StopCause.UNSCHEDULABLE, unschedulable, "fit on worker-1, worker-2, but default-scheduler says", "memory"),
    Seed(StopCause.BINDING_WAITS, binding_waits, "condition attached of device gpu-0", "controller"),
    Seed(StopCause.UNSCHEDULABLE, failed_to_bind, "failed to bind (broken, Cable, the cable is out)", "dranode fit"),
    Seed(StopCause.CLAIM_ON_ANOTHER_NODE, bound_to_another_node, "has devices of worker-1", "leave spec.nodeName out"),
    Seed(StopCause.NODE_MISSING, node_missing, "no node worker-9", "nodeName"),
    Seed(StopCause.NODE_NOT_READY, node_not_ready, "Kubelet stopped posting", "fix the node"),
    Seed(StopCause.CLAIM_NOT_ALLOCATED, claim_not_allocated, "bypasses kube-scheduler", "nodeSelector"),
    Seed(StopCause.CLAIM_NOT_RESERVED, claim_not_reserved, "not reserved for the pod", "leave spec.nodeName out"),
    Seed(
        StopCause.DRIVER_NOT_REGISTERED, driver_not_registered, f"no driver {CPU} registered", "spec.nodeName=worker-1"
    ),
    Seed(StopCause.DRIVER_NOT_ANSWERING, driver_not_answering, "within 45 s", "log"),
    Seed(StopCause.PREPARE_REFUSED, prepare_refused, "which has 3 left: 5-7", "what the driver reports"),
    Seed(
        StopCause.PREPARE_REFUSED,
        refused_an_hour_ago,
        "which claim default/b still holds",
        "fix this; kubelet tries again",
    ),
    Seed(StopCause.CLAIM_REPLACED, claim_replaced, "UID 77", "wait"),
    Seed(StopCause.KUBELET_ERROR, kubelet_error, "no space left on device", "journalctl"),
    Seed(StopCause.SANDBOX_FAILED, sandbox_failed, "no CNI", "claims are not the reason"),
    Seed(StopCause.VOLUME_FAILED, volume_failed, 'secret "data" not found', "volume"),
    Seed(StopCause.IMAGE_MISSING, image_missing, "ImagePullBackOff", "image"),
    Seed(StopCause.CONTAINER_CONFIG, container_config, 'configmap "settings" not found', "ConfigMap"),
    Seed(StopCause.CDI_OFF, cdi_off, "CDI is off in the runtime on worker-1", "enable_cdi"),
    Seed(StopCause.CDI_UNRESOLVABLE, cdi_unresolvable, "dra.k8s.io/cpu=claim-1", "doctor"),
    Seed(StopCause.NRI_PLUGIN_MISSING, nri_plugin_missing, CPU, "start the driver"),
    Seed(StopCause.CLAIM_IN_USE, claim_in_use, "is in use by", "sharing: pod"),
    Seed(StopCause.CLAIM_IN_USE, claim_in_use_by_another_pod, "is in use by", "ResourceClaimTemplate"),
    Seed(StopCause.RESOURCE_MISSING, resource_missing, "example.com/fpga", "extendedResourceName"),
    Seed(StopCause.NO_SHARED_CPUS, no_shared_cpus, "claims hold every CPU", "reserve"),
    Seed(StopCause.CONTAINER_REFUSED, container_refused, "executable file not found", "runtime"),
    Seed(StopCause.CONTAINER_ENDS, container_ends, "OOMKilled", "kubectl logs"),
    Seed(StopCause.CONTAINER_NOT_READY, container_not_ready, "statuscode: 503", "what the probe tests"),
    Seed(StopCause.DEVICE_UNHEALTHY, device_unhealthy, "XID 79", "hardware"),
)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed.cause}-{seed.seed.__name__}")
def test_only_the_seeded_cause_is_named(cluster: PodCluster, explain: Any, seed: Seed) -> None:
    seed.seed(cluster)
    status, page = explain()
    assert [one["cause"] for one in page["causes"]][:1] == [seed.cause], page
    assert {one["cause"] for one in page["causes"]} == {seed.cause}
    assert seed.what in "\n".join((page["causes"][0]["what"], *page["causes"][0]["details"]))
    assert seed.fix in page["causes"][0]["fix"]
    assert status == 1


# Seeded on a node, since they are about records, specs, a runtime's configuration or cgroups.
ON_NODE = {
    StopCause.NOT_PREPARED,
    StopCause.RECORD_UNUSABLE,
    StopCause.CDI_SPEC_UNUSABLE,
    StopCause.NRI_OFF,
    StopCause.WRONG_CPUS,
    StopCause.WRONG_MEMORY,
}
# Seeded where they stop nothing, or concern only a claim.
ELSEWHERE = {StopCause.CLAIM_UNNAMED, StopCause.CLAIM_UNUSED, StopCause.CLAIM_NOT_RELEASED}


def test_every_cause_is_seeded() -> None:
    assert {seed.cause for seed in SEEDS} | ON_NODE | ELSEWHERE == set(StopCause)
