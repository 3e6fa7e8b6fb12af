"""The chart beside the manifests: `helm` renders what `kubectl apply -k` applies, also under other names."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.helm import CHART
from tests.interop.helm import build as build_helm
from tests.kubernetes_schemas import problems

ROOT = Path(__file__).parents[2]
# Without a version, Helm assumes a cluster as old as Helm.
VERSION = ("--kube-version", "1.37.0")

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def helm() -> Path:
    if not os.environ.get("INTEROP"):
        pytest.skip("make interop builds helm")
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl, whose kustomize the chart is compared with")
    return build_helm()


def rendered(helm: Path, *values: str, name: str = "dranode", namespace: str = "dranode") -> dict[str, dict[str, Any]]:
    """Return the objects that the chart renders, without hooks, by kind and name."""
    settings = [word for value in values for word in ("--set", value)]
    command = [str(helm), "template", name, str(CHART), *VERSION, "--namespace", namespace, "--no-hooks", *settings]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return by_name(answer.stdout)


def by_name(text: str) -> dict[str, dict[str, Any]]:
    documents = [document for document in yaml.safe_load_all(text) if document]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in documents}


def kustomized(folder: Path) -> dict[str, dict[str, Any]]:
    answer = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True)
    return by_name(answer.stdout)


def test_the_chart_gives_what_the_manifests_give(helm: Path) -> None:
    # Null is a section whose keys are all comments.
    values = ("namespace.create=true", "config=null", "driverNames=null")
    assert rendered(helm, *values) == kustomized(ROOT / "deploy")


def test_the_charts_values_give_what_the_components_give(helm: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("chart"))
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "kustomization.yaml").write_text(
        "resources: [../deploy]\ncomponents: [../deploy/components/memory, ../deploy/components/gpu, "
        "../deploy/components/network-policy]\n"
    )
    values = ("namespace.create=true", "drivers={cpu,memory,gpu}", "networkPolicy.create=true")
    assert rendered(helm, *values) == kustomized(tmp_path / "all")


@pytest.mark.parametrize(
    ("component", "values"),
    [
        ("k3s", ("runtimeConfigDir=/var/lib/rancher/k3s/agent/etc/containerd",)),
        ("rke2", ("runtimeConfigDir=/var/lib/rancher/rke2/agent/etc/containerd",)),
        ("k0s", ("kubeletRoot=/var/lib/k0s/kubelet", "runtimeConfigDir=/etc/k0s")),
        (
            "microk8s",
            (
                "kubeletRoot=/var/snap/microk8s/common/var/lib/kubelet",
                "runtimeConfigDir=/var/snap/microk8s/current/args",
            ),
        ),
        ("talos", ("runtimeConfigDir=/etc/cri",)),
        ("openshift", ("openshift.create=true",)),
        ("podmonitor", ("metrics.podMonitor.create=true",)),
        ("alerts", ("metrics.alerts.create=true",)),
        ("isolation", ("cpu.maxIsolation=partition",)),
    ],
)
def test_a_component_and_the_values_of_the_manual_give_the_same(
    helm: Path, tmp_path: Path, component: str, values: tuple[str, ...]
) -> None:
    manual = (ROOT / "docs" / "install.md").read_text()
    assert [value for value in values if f"`{value}`" not in manual] == []
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("chart"))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "kustomization.yaml").write_text(
        f"resources: [../deploy]\ncomponents: [../deploy/components/{component}]\n"
    )
    assert rendered(helm, "namespace.create=true", *values) == kustomized(tmp_path / "one")


def test_a_rename_reaches_everything_that_names_another_object(helm: Path) -> None:
    objects = rendered(helm, "networkPolicy.create=true", "metrics.podMonitor.create=true", name="b", namespace="n")
    assert not [name for name in objects if name.endswith(("dranode", "dranode-slices"))]
    binding = objects["ClusterRoleBinding b"]
    assert binding["roleRef"]["name"] == "b"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "b", "namespace": "n"}]
    assert objects["ValidatingAdmissionPolicyBinding b-slices"]["spec"]["policyName"] == "b-slices"
    pod = objects["DaemonSet b"]["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == "b"
    for kind, place in (("NetworkPolicy", "podSelector"), ("PodMonitor", "selector")):
        assert objects[f"{kind} b"]["spec"][place]["matchLabels"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("values", "published"),
    [
        (("drivers={cpu,fpga}",), "dra.fpga"),
        (("drivers={cpu,fans}", "driverNames.fans=fans.example.com"), "fans.example.com"),
    ],
)
def test_a_third_party_driver_has_its_rights_and_slices(helm: Path, values: tuple[str, ...], published: str) -> None:
    objects, plain = rendered(helm, *values), rendered(helm)
    names = ["dra.cpu", "dra.gpu", "dra.memory", published]
    rules = objects["ClusterRole dranode"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [names, names]
    variables = objects["ValidatingAdmissionPolicy dranode-slices"]["spec"]["variables"]
    assert json.loads(variables[0]["expression"]) == names
    changed = {name for name in plain if plain[name] != objects[name]}
    assert changed == {"ClusterRole dranode", "ValidatingAdmissionPolicy dranode-slices", "DaemonSet dranode"}


def test_another_kubelet_root_moves_mounts_folders_and_the_option(helm: Path) -> None:
    objects = rendered(helm, "kubeletRoot=/var/lib/k0s/kubelet", "nriDir=/run/k0s/nri", "cpu.reservedCPUs=0-1\\,8")
    text = yaml.safe_dump(objects["DaemonSet dranode"])
    assert "/var/lib/kubelet" not in text
    assert "/var/run/nri" not in text
    (container,) = objects["DaemonSet dranode"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][2:] == [
        "--reserved-cpus=0-1,8",
        "--nri-socket=/run/k0s/nri/nri.sock",
        "--kubelet-root=/var/lib/k0s/kubelet",
    ]


def test_a_configuration_file_of_another_drivers_chart_is_a_file_here_too(helm: Path) -> None:
    values = ("config.groupBy=socket", "config.publishNodeAllocatableResourceMapping=true")
    objects = rendered(helm, *values, name="dracpu", namespace="kube-system")
    text = objects["ConfigMap dracpu-config"]["data"]["config.yaml"]
    assert yaml.safe_load(text) == {"groupBy": "socket", "publishNodeAllocatableResourceMapping": True}
    template = objects["DaemonSet dracpu"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (argument,) = [each for each in container["args"] if each.startswith("--config=")]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert argument == f"--config={mounts['config']}/config.yaml"
    volumes = {each["name"]: each for each in template["spec"]["volumes"]}
    assert volumes["config"]["configMap"] == {"name": "dracpu-config"}
    other = rendered(helm, "config.groupBy=machine", name="dracpu")["DaemonSet dracpu"]["spec"]["template"]
    assert other["metadata"]["annotations"] != template["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *(
            (f"config.{key}", f".* follow the value {re.escape(value)}; set that one")
            for key, value in (
                *(("kubeletRootDir", "kubeletRoot"), ("cdiDir", "cdiDir"), ("nriSocket", "nriDir")),
                *(("maxIsolation", "cpu.maxIsolation"), ("plugins.cpu.hostRoot", "cpu.maxIsolation")),
                *(("bindAddress", "probes.port"), ("metricsAddress", "metrics.port")),
            )
        ),
        ("config.hostnameOverride", "the pod has it from the API server"),
        ("driverNames.fans", "drivers does not have this driver"),
    ],
)
def test_a_value_that_the_pod_would_not_follow_is_refused(helm: Path, value: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=rf"{re.escape(value)}: {reason}"):
        rendered(helm, f"{value}=x")


@pytest.mark.parametrize(
    ("values", "formats"),
    [(("config.logFormat=text",), 0), (("extraEnv[0].name=DRANODE_LOG_FORMAT", "extraEnv[0].value=text"), 1)],
)
def test_no_variable_wins_over_a_key_of_the_file_or_is_given_twice(
    helm: Path, values: tuple[str, ...], formats: int
) -> None:
    objects = rendered(helm, *values)
    (container,) = objects["DaemonSet dranode"]["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in container["env"]].count("DRANODE_LOG_FORMAT") == formats


@pytest.mark.parametrize(
    ("values", "image"),
    [
        (("image.tag=sha256:01",), "dranode@sha256:01"),
        (("image.tag=1.0@sha256:01",), "dranode:1.0@sha256:01"),
        (("image.repository=r.example:5000/d@sha256:01",), "r.example:5000/d@sha256:01"),
    ],
)
def test_an_image_may_be_named_by_its_digest(helm: Path, values: tuple[str, ...], image: str) -> None:
    (container,) = rendered(helm, *values)["DaemonSet dranode"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image


@pytest.mark.parametrize("value", ["fullnameOverride=", "config.groupBy=socket", "cpu.maxIsolation=quiet"])
def test_openshifts_constraints_admit_every_pod_that_needs_them(helm: Path, value: str) -> None:
    command = [str(helm), "template", "d", str(CHART), *VERSION, "--set", f"openshift.create=true,{value}"]
    objects = by_name(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    scc = objects["SecurityContextConstraints d"]
    assert scc["volumes"] == sorted(scc["volumes"])
    bindings = [each for each in objects.values() if each.get("roleRef", {}).get("name") == "d-scc"]
    accounts = {subject["name"] for binding in bindings for subject in binding["subjects"]}
    for name in ("DaemonSet d", "DaemonSet d-drain", "Job d-drain"):
        pod = objects[name]["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] in accounts, name
        kinds = {key for volume in pod.get("volumes", ()) for key in volume if key != "name"}
        assert kinds <= set(scc["volumes"]), name
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            added = container["securityContext"]["capabilities"].get("add", [])
            assert set(added) <= set(scc["allowedCapabilities"]), name


def test_the_metrics_are_beside_the_probes_where_their_ports_are_the_same(helm: Path) -> None:
    objects = rendered(helm, "metrics.port=8080", "networkPolicy.create=true", "metrics.podMonitor.create=true")
    (container,) = objects["DaemonSet dranode"]["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    assert "DRANODE_METRICS_ADDRESS" not in [each["name"] for each in container["env"]]
    assert objects["PodMonitor dranode"]["spec"]["podMetricsEndpoints"][0]["port"] == "http"
    assert objects["NetworkPolicy dranode"]["spec"]["ingress"][0]["ports"] == [{"port": "http"}]


@pytest.mark.parametrize(
    "value",
    [
        *("cpu.groupBy=numa", "cpu.reservedCPUs=a", "drivers={}", "kubletRoot=/x", "fullnameOverride=A_b"),
        *("config.groupBy=soket", "config.gropBy=socket", "config.plugins.memory.groupBy=numanode"),
        *("memory.reservedMemory=1Gi", "config.plugins.memory.reservedMemory=1Gi"),
        # A section whose keys are all comments is null, and kubelet expands $( ) in an argument and in no mount.
        *("cpu=null", "metrics=null", "kubeletRoot=/mnt/$(NODE)/kubelet", "cdiDir=/$(NODE)/cdi"),
        *("metrics.alerts=null", "drivers=null", "kubeletRoot=null"),
        # Kubernetes would silently drop the first three, and refuse the last.
        *(
            "resources.limit.cpu=1",
            "tolerations[0].efect=NoSchedule",
            "affinity.nodeAffinty.x=1",
            "nodeSelector.gpu=true",
        ),
        # Server-side apply refuses what is there twice; so do tools that read the rendered YAML strictly.
        *("extraEnv[0].name=POD_IP", r"podLabels.app\.kubernetes\.io/name=x", "podAnnotations.checksum/config=x"),
        *(r"metrics.alerts.labels.app\.kubernetes\.io/part-of=x", r"metrics.podMonitor.labels.release=1"),
    ],
)
def test_a_value_that_means_nothing_is_refused(helm: Path, value: str) -> None:
    answer = subprocess.run(
        [helm, "template", CHART, *VERSION, "--set", value], capture_output=True, text=True, check=False
    )
    assert answer.returncode != 0
    assert "values don't meet the specifications of the schema" in answer.stderr


def test_everything_that_is_rendered_follows_kubernetes_schemas_and_every_pod_the_values(helm: Path) -> None:
    # A name and a namespace that YAML could take for numbers.
    command = [str(helm), "template", "1e3", str(CHART), *VERSION, "--namespace", "456"]
    command += ["--set", "imagePullSecrets[0].name=s,networkPolicy.create=true", "--set-string"]
    command += ["priorityClassName=7,podLabels.inject=false,podAnnotations.inject=false,resources.limits.cpu=2"]
    objects = by_name(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    wrong = {name: problems(each) for name, each in objects.items()}
    assert {name: found for name, found in wrong.items() if found} == {}
    templates = [each["spec"].get("template", each) for each in objects.values() if "spec" in each]
    pods = [each["spec"] for each in templates if "containers" in each["spec"]]
    assert [(pod["imagePullSecrets"], pod["tolerations"]) for pod in pods] == [
        ([{"name": "s"}], [{"operator": "Exists"}])
    ] * 4
    # A mesh's proxy must not be added to a hook's pod, and a quota may require limits of every container.
    about = [each["metadata"] for each in templates if "containers" in each["spec"]]
    assert [(each["labels"]["inject"], each["annotations"]["inject"]) for each in about] == [("false", "false")] * 4
    containers = [each for pod in pods for each in (*pod["containers"], *pod.get("initContainers", ()))]
    assert [each["resources"]["limits"] for each in containers] == [{"cpu": "2"}] * 5
    secured = [each["securityContext"] for each in containers]
    assert all(each["readOnlyRootFilesystem"] and each["capabilities"] == {"drop": ["ALL"]} for each in secured)
    # The claim of the test's pod finds the node.
    nodes = [(pod["nodeSelector"], pod["affinity"]) for pod in pods if "resourceClaims" not in pod]
    assert nodes == [nodes[0]] * 3
