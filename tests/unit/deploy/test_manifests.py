"""The manifests of `deploy/` are valid, ask for as little as possible, and agree with what the driver does."""

import re
from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.driver.cli.serve import command as serve
from dranode.tools.diagnosis.facts import Right
from dranode.tools.diagnosis.live_objects import LiveDaemonSet, LiveNode
from dranode.tools.diagnosis.runtime import TOLERANCE
from dranode.tools.diagnosis.scheduler import daemon_excluded_by
from dranode.tools.readers.cluster import RIGHTS
from tests.fakes.kustomize import COMPONENTS, DEPLOY, KUSTOMIZATION_KEYS, built, by_kubectl, kustomization, pod, the
from tests.kubernetes_schemas import documents, problems

# Kinds of operators and of OpenShift, for which Kubernetes publishes no schema.
ELSEWHERE = ("monitoring.coreos.com/v1", "security.openshift.io/v1")
DISTRIBUTIONS = ("k0s", "k3s", "microk8s", "rke2", "talos")


def is_ours(document: dict[str, Any]) -> bool:
    return document["apiVersion"] not in ELSEWHERE


@pytest.mark.parametrize("folder", [DEPLOY, *COMPONENTS], ids=lambda path: path.name)
def test_every_manifest_follows_kubernetes_schemas(folder: Path) -> None:
    found = {f"{one['kind']} {one['metadata']['name']}": problems(one) for one in built(folder) if is_ours(one)}
    assert len(found) >= 9
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_the_schemas_refuse_what_an_api_server_would_refuse() -> None:
    manifest = the("DaemonSet", "dranode")
    manifest["spec"]["template"]["spec"]["containers"][0]["privilegd"] = True
    del manifest["spec"]["selector"]
    assert [problem.partition(":")[0] for problem in problems(manifest)] == [
        "spec.selector",
        "spec.template.spec.containers.0.privilegd",
    ]


@pytest.mark.parametrize("distribution", ["", *DISTRIBUTIONS])
def test_all_components_can_be_combined_on_any_distribution(tmp_path: Path, distribution: str) -> None:
    together = [folder for folder in COMPONENTS if folder.name not in DISTRIBUTIONS or folder.name == distribution]
    (daemonset,) = [one for one in by_kubectl(tmp_path, together) if one["kind"] == "DaemonSet"]
    spec = daemonset["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/etc/containerd", "/etc/crio", "/dev"} < set(mounted.values())
    assert ("runtime" in mounted) == bool(distribution)
    assert len(mounted) == len(container["volumeMounts"]) == len(set(mounted.values()))
    assert {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume} == {
        name: path.removeprefix("/host") for name, path in mounted.items() if name != "tmp"
    }


@pytest.mark.parametrize("folder", [DEPLOY, *COMPONENTS], ids=lambda path: path.name)
def test_the_driver_looks_where_the_nodes_directories_are_mounted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (container,) = pod(folder)["containers"]
    monkeypatch.setenv("NODE_NAME", "n")
    parsed = serve.make_context("serve", container["args"][1:]).params
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"{parsed['kubelet_root']}/plugins" == mounted["plugins"]
    assert f"{parsed['kubelet_root']}/plugins_registry" == mounted["plugins-registry"]
    assert f"{parsed['kubelet_root']}/pod-resources" == mounted["pod-resources"]
    assert parsed["cdi_dir"] == mounted["cdi"]


@pytest.mark.parametrize("folder", [DEPLOY, *COMPONENTS], ids=lambda path: path.name)
def test_kubectl_builds_the_same_as_this_test(folder: Path, tmp_path: Path) -> None:
    components = [] if folder == DEPLOY else [folder]
    theirs = {(one["kind"], one["metadata"]["name"]): one for one in by_kubectl(tmp_path, components)}
    label = {"app.kubernetes.io/part-of": "dranode"}
    for one in built(folder):
        one["metadata"]["labels"] = {**one["metadata"].get("labels", {}), **label}
        assert theirs.pop((one["kind"], one["metadata"]["name"])) == one
    assert theirs == {}


def test_every_file_is_part_of_a_kustomization() -> None:
    for folder in (DEPLOY, *COMPONENTS):
        spec = kustomization(folder)
        assert set(spec) <= KUSTOMIZATION_KEYS
        named = {*spec.get("resources", ()), *spec.get("configurations", ()), "kustomization.yaml"}
        assert {path.name for path in folder.glob("*.yaml")} == named


def test_deploy_has_no_symbolic_links() -> None:
    # In a zip archive, in a raw download or on Windows, a symbolic link becomes a file that contains a path.
    assert [path for path in DEPLOY.rglob("*") if path.is_symlink()] == []
    (daemonset,) = documents(DEPLOY / "daemonset.yaml")
    assert daemonset["kind"] == "DaemonSet"


def test_only_namespaced_objects_have_a_namespace() -> None:
    named = {one["kind"] for one in built(DEPLOY) if "namespace" in one["metadata"]}
    assert named == {"ServiceAccount", "DaemonSet"}
    assert the("PodMonitor", "dranode", DEPLOY / "components" / "podmonitor")["metadata"]["namespace"] == "dranode"
    assert (
        the("NetworkPolicy", "dranode", DEPLOY / "components" / "network-policy")["metadata"]["namespace"] == "dranode"
    )


def test_the_network_policy_matches_the_daemonsets_port_and_pods() -> None:
    spec = the("NetworkPolicy", "dranode", DEPLOY / "components" / "network-policy")["spec"]
    daemonset = the("DaemonSet", "dranode")["spec"]
    assert spec["podSelector"] == daemonset["selector"]
    (container,) = daemonset["template"]["spec"]["containers"]
    (rule,) = spec["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["metrics"]
    assert "metrics" in [port["name"] for port in container["ports"]]
    (endpoint,) = the("PodMonitor", "dranode", DEPLOY / "components" / "podmonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"
    assert spec["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize("folder", [DEPLOY, *COMPONENTS], ids=lambda path: path.name)
def test_the_driver_has_no_privilege_that_it_does_not_need(folder: Path) -> None:
    spec = pod(folder)
    (container,) = spec["containers"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    context = container["securityContext"]
    assert (context["runAsUser"], context["privileged"], context["allowPrivilegeEscalation"]) == (0, False, False)
    assert context["readOnlyRootFilesystem"] is True
    isolates = folder.name == "isolation"
    assert context["capabilities"] == {"drop": ["ALL"], **({"add": ["NET_ADMIN"]} if isolates else {})}
    writable = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    more = {"host-irq", "host-sys", "host-irqbalance", "host-dbus"} if isolates else set()
    assert writable == {"plugins", "plugins-registry", "cdi", "nri", "tmp"} | more
    # Every other volume comes from the node.
    assert [volume["name"] for volume in spec["volumes"] if "hostPath" not in volume] == ["tmp"]


def test_isolation_gives_more_to_the_pod_and_nothing_to_the_account() -> None:
    without, isolating = (
        {(one["kind"], one["metadata"]["name"]): one for one in built(folder)}
        for folder in (DEPLOY, DEPLOY / "components" / "isolation")
    )
    assert {name for name in without | isolating if without.get(name) != isolating.get(name)} == {
        ("DaemonSet", "dranode")
    }


def test_every_mount_has_its_volume() -> None:
    for folder in (DEPLOY, *COMPONENTS):
        spec = pod(folder)
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize(
    ("labels", "excluded"),
    [
        ({}, False),
        ({"eks.amazonaws.com/compute-type": "ec2", "type": "gpu"}, False),
        ({"eks.amazonaws.com/compute-type": "fargate"}, True),
        ({"type": "virtual-kubelet"}, True),
        ({"type": "kwok"}, True),
    ],
)
def test_the_driver_runs_on_every_node_that_has_a_kubelet(labels: dict[str, str], *, excluded: bool) -> None:
    labels = {"kubernetes.io/os": "linux", **labels}
    taints = [{"key": "anything", "effect": "NoExecute"}]
    node = decode(LiveNode, {"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints}})
    daemonset = decode(LiveDaemonSet, the("DaemonSet", "dranode"))
    assert bool(daemon_excluded_by(node, daemonset.spec.template.spec)) is excluded


def test_openshifts_constraints_allow_the_pod_and_no_more() -> None:
    folder = DEPLOY / "components" / "openshift"
    scc = the("SecurityContextConstraints", "dranode", folder)
    (container,) = pod()["containers"]
    context = container["securityContext"]
    assert scc["allowPrivilegedContainer"] is context["privileged"]
    assert scc["allowPrivilegeEscalation"] is context["allowPrivilegeEscalation"]
    assert scc["readOnlyRootFilesystem"] is context["readOnlyRootFilesystem"]
    assert scc["requiredDropCapabilities"] == context["capabilities"]["drop"]
    assert scc["allowHostDirVolumePlugin"] is True
    assert [name for name, value in scc.items() if name.startswith("allowHost") and value] == [
        "allowHostDirVolumePlugin"
    ]
    kinds = {next(key for key in volume if key != "name") for volume in pod()["volumes"]}
    # The token of the pod's service account is a projected volume. OpenShift sorts them.
    assert sorted({*kinds, "projected"}) == scc["volumes"]


def test_openshifts_role_follows_a_renamed_account(tmp_path: Path) -> None:
    objects = by_kubectl(tmp_path, [DEPLOY / "components" / "openshift"], namespace="elsewhere", namePrefix="my-")
    (scc,) = [one for one in objects if one["kind"] == "SecurityContextConstraints"]
    (role,) = [one for one in objects if one["kind"] == "ClusterRole" and one["metadata"]["name"].endswith("-scc")]
    assert role["rules"][0]["resourceNames"] == [scc["metadata"]["name"]] == ["my-dranode"]


def test_the_new_driver_starts_before_the_old_one_stops() -> None:
    spec = the("DaemonSet", "dranode")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (container,) = pod()["containers"]
    assert "hostPort" not in container["ports"][0]
    fields = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if "valueFrom" in one}
    assert fields == {"NODE_NAME": "spec.nodeName", "POD_UID": "metadata.uid", "POD_IP": "status.podIP"}


def test_probes_reach_the_address_that_the_driver_listens_on() -> None:
    (container,) = pod()["containers"]
    values = {one["name"]: one.get("value") for one in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert values["DRANODE_HTTP_ADDRESS"] == f"[$(POD_IP)]:{ports['http']}"
    assert values["DRANODE_METRICS_ADDRESS"] == f"[$(POD_IP)]:{ports['metrics']}"
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"http"}
    assert probes["readinessProbe"]["path"] == "/readyz"
    assert probes["livenessProbe"]["path"] == "/healthz"


@pytest.mark.parametrize("folder", [DEPLOY, *COMPONENTS], ids=lambda path: path.name)
def test_serve_understands_the_arguments_and_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = pod(folder)["containers"]
    for one in container["env"]:
        monkeypatch.setenv(one["name"], one.get("value", "x"))
    program, *arguments = container["args"]
    assert program == "serve"
    parsed = serve.make_context("serve", arguments).params
    assert parsed["drivers"] == (("cpu", folder.name) if folder.name in ("gpu", "memory") else ("cpu",))
    assert parsed["pod_uid"] == parsed["node_name"] == "x"
    assert [parsed[name] for name in ("http_address", "metrics_address")] == ["[$(POD_IP)]:8080", "[$(POD_IP)]:8081"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {parsed["cdi_dir"], str(Path(parsed["nri_socket"]).parent)} < mounted


def test_the_role_has_only_what_the_driver_needs() -> None:
    rules = the("ClusterRole", "dranode")["rules"]
    allowed = {
        f"{group or 'core'}/{resource}": (sorted(rule["verbs"]), rule.get("resourceNames"))
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    drivers = ["dra.cpu", "dra.gpu", "dra.memory"]
    assert allowed == {
        "resource.k8s.io/resourceslices": (["create", "delete", "list", "update", "watch"], None),
        "resource.k8s.io/resourceclaims": (["get"], None),
        "resource.k8s.io/resourceclaims/status": (["patch"], None),
        "resource.k8s.io/resourceclaims/driver": (["associated-node:patch"], drivers),
        "resource.k8s.io/deviceclasses": (["get"], drivers),
        "core/nodes": (["get"], None),
        "events.k8s.io/events": (["create"], None),
        "dranode/own-slices": (["write"], None),
    }


def test_doctor_checks_the_rights_of_the_role() -> None:
    granted = {
        Right(verb, resource, group)
        for rule in the("ClusterRole", "dranode")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource not in ("deviceclasses", "resourceclaims/driver", "own-slices")
    }
    assert set(RIGHTS) == granted


def test_the_binding_names_the_daemonsets_account() -> None:
    (subject,) = the("ClusterRoleBinding", "dranode")["subjects"]
    account = the("ServiceAccount", "dranode")["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert pod()["serviceAccountName"] == account["name"]


def test_the_drivers_pod_starts_where_pod_security_is_enforced_and_the_runtime_requires_the_driver() -> None:
    metadata = the("DaemonSet", "dranode")["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {TOLERANCE: "true"}
    labels = the("Namespace", "dranode")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


# A row of the tables of mounts: the paths in its first cell, and whether any cell says that they are written to.
_ROW = re.compile(r"^\| (?P<paths>[^|]*`/[^|]*)\|(?P<rest>.*)\|$", re.MULTILINE)


@pytest.mark.parametrize("folder", [DEPLOY, *COMPONENTS], ids=lambda path: path.name)
def test_the_security_model_lists_every_mount_and_which_are_writable(folder: Path) -> None:
    text = (DEPLOY.parent / "docs" / "security.md").read_text()
    said: dict[str, bool] = {}
    for row in _ROW.finditer(text):
        written = "to write" in row["paths"] or row["rest"].rpartition("|")[2].strip() in ("yes", "connects")
        said |= dict.fromkeys(re.findall(r"`(/[^`]+)`", row["paths"]), written)
    (container,), (plain,) = (pod(each)["containers"] for each in (folder, DEPLOY))
    # Some distributions have the same directories elsewhere.
    usual = {one["name"]: one["mountPath"] for one in plain["volumeMounts"]}
    mounted = {
        usual.get(one["name"], one["mountPath"].removeprefix("/host")): not one.get("readOnly")
        for one in container["volumeMounts"]
    }
    assert mounted == {path: said.get(path) for path in mounted}
