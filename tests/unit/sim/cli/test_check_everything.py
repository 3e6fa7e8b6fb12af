"""`check` shows all errors of all documents as sentences, and warns about what is probably misspelled."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dranode.driver.plugins import load_plugins
from dranode.driver.slices.publishable import publishable
from dranode.sim.cli.check import command
from dranode.sim.machines.forms import open_machine

DRA = "resource.k8s.io/v1"
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]},
}
SPREADS = "spec.topologySpreadConstraints[0]"
PREFERRED = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference"
REPLICAS = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "c"}}}}
LABELED = {"metadata": {"labels": {"a b": ""}}, "spec": {}}


def verdicts(folder: Path, *documents: dict[str, Any]) -> list[dict[str, Any]]:
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    result = CliRunner().invoke(command, [str(path), "-o", "json"])
    return list(json.loads(result.stdout))


def errors(folder: Path, *documents: dict[str, Any]) -> list[list[tuple[str, str]]]:
    return [[(each["path"], each["message"]) for each in verdict["errors"]] for verdict in verdicts(folder, *documents)]


def warnings(folder: Path, *documents: dict[str, Any]) -> list[str]:
    return [f"{each['path']}: {each['message']}" for each in verdicts(folder, *documents)[0]["warnings"]]


def claim(*requests: dict[str, Any], name: str = "c", version: str = DRA, **devices: Any) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def request(name: str = "r", device_class: Any = "dra.cpu", **exactly: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **exactly}}


def selector(expression: str) -> dict[str, Any]:
    return request(selectors=[{"cel": {"expression": expression}}])


def pod(kind: str = "Pod", **fields: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "x"}]
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "p"}, "spec": {"containers": containers, **fields}}


def preferring(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = [{"weight": 1, "preference": {"matchExpressions": list(expressions)}}]
    return pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}})


def test_errors_after_an_undecodable_field_are_shown_too(tmp_path: Path) -> None:
    document = claim(request("R", ["x"], count=-2), {"name": "s", "exactly": {"count": 1}}, request("T"))
    assert errors(tmp_path, document) == [
        [
            ("spec.devices.requests[0].exactly.deviceClassName", "a string is expected, not a list"),
            ("spec.devices.requests[1].exactly.deviceClassName", "it is required"),
            ("spec.devices.requests[0].name", '"R" is not a DNS label of at most 63 characters'),
            ("spec.devices.requests[0].exactly.count", "-2 must be greater than zero"),
            ("spec.devices.requests[2].name", '"T" is not a DNS label of at most 63 characters'),
        ]
    ]


def test_entries_of_a_mapping_that_do_not_decode_are_named(tmp_path: Path) -> None:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "lots", "memory": "more"}}}]
    found = errors(tmp_path, pod(containers=containers, nodeSelector=["a"], resourceClaims=[{"name": "Z"}]))
    assert [path for path, _ in found[0]] == [
        "spec.containers[0].resources.requests[cpu]",
        "spec.containers[0].resources.requests[memory]",
        "spec.nodeSelector",
        "spec.resourceClaims[0].name",
        "spec.resourceClaims[0]",
    ]


def test_all_invalid_amounts_of_a_node_are_shown(tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "w"}}
    found = errors(tmp_path, {**node, "status": {"allocatable": {"cpu": "x", "memory": "-1", "pods": "1"}}})
    assert [path for path, _ in found[0]] == ["status.allocatable[cpu]", "status.allocatable[memory]"]


def test_a_document_with_a_repeated_name_is_checked_too(tmp_path: Path) -> None:
    first, second = errors(tmp_path, claim(request()), claim(request("S")))
    assert first == []
    assert [path for path, _ in second] == ["metadata.name", "spec.devices.requests[0].name"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"threads": "some", "sharing": "bar", "nope": 1}, ["threads", "sharing", "nope"]),
        ({"spread": {"policy": "wide", "group": 0}, "l3": 5}, ["l3", "spread"]),
        ({"cpuset": "x", "memory": "far", "sharin": "pod"}, ["cpuset", "memory", "sharin"]),
    ],
)
def test_all_mistakes_of_a_configuration_are_shown(
    tmp_path: Path, parameters: dict[str, Any], words: list[str]
) -> None:
    whole = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", **parameters}
    config = [{"opaque": {"driver": "dra.cpu", "parameters": whole}}]
    (found,) = errors(tmp_path, claim(request(), config=config))
    assert len(found) == len(words)
    for word in words:
        assert any(word in f"{path}: {message.partition('; there are')[0]}" for path, message in found), (word, found)


def test_a_v1beta1_request_with_a_list_and_fields_is_one_error(tmp_path: Path) -> None:
    both = {"name": "r", "count": 2, "firstAvailable": [{"name": "x", "deviceClassName": "dra.cpu"}]}
    ((error,),) = errors(tmp_path, claim(both, version="resource.k8s.io/v1beta1"))
    assert error[0] == "spec.devices.requests[0]"
    assert error[1].startswith("set either firstAvailable or the request's own class")


def test_one_invalid_document_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    documents: tuple[dict[str, Any], ...] = (claim(request("R")), {"metadata": {}}, claim(request("S"), name="d"))
    text = "---\n".join(yaml.safe_dump(each) for each in documents)
    path.write_text(f"{text}---\nkind: [\n---\n{yaml.safe_dump(claim(request('T'), name='e'))}", encoding="utf-8")
    result = CliRunner().invoke(command, [str(path)])
    wrong = "document 2: this is not a Kubernetes document"
    for word in ('"R" is not', '"S" is not', '"T" is not', wrong, "is not YAML"):
        assert word in result.stdout, result.stdout


@pytest.mark.parametrize(
    "tolerations",
    [
        [{"effect": "NoExecute"}],
        [{}],
        [{"value": "x"}],
        [{"operator": "Equal"}],
        [{"key": "a"}] * 17,
        [{"operator": "Exists"}, {"key": "example.com/a", "operator": "Equal", "value": "b", "effect": "None"}],
    ],
)
def test_tolerations_are_validated_as_by_the_api_server(tmp_path: Path, tolerations: list[dict[str, Any]]) -> None:
    document = claim(request(tolerations=tolerations))
    assert errors(tmp_path, document) == [[]]
    vague = [each for each in tolerations if not each.get("key") and each.get("operator") != "Exists"]
    assert len([each for each in warnings(tmp_path, document) if "without a key" in each]) == len(vague)


@pytest.mark.parametrize(
    ("document", "warning"),
    [
        (
            selector('device.attributes["dra.cpu"].socketId == 0'),
            'no device has the attribute "socketId" of dra.cpu; did',
        ),
        (
            selector('device.attributes["dra.cpu"].numaNode == 0'),
            'no device has the attribute "numaNode" of dra.cpu; did you mean that of resource.kubernetes.io?',
        ),
        (selector('"smt" in device.attributes["dra.cpu"]'), 'no device has the attribute "smt" of dra.cpu'),
        (
            selector('device.attributes["dra.cpuu"].socketID == 0'),
            'no driver "dra.cpuu" is known; did you mean "dra.cpu"',
        ),
        (selector('device.attributes["resource.kubernetes.io"].numa == 0'), 'no device has the attribute "numa" of'),
    ],
)
def test_an_attribute_that_no_device_has_is_a_warning(tmp_path: Path, document: dict[str, Any], warning: str) -> None:
    (found,) = warnings(tmp_path, claim(document))
    assert warning in found


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["dra.cpu"].socketID == 0 && device.attributes["resource.kubernetes.io"].numaNode == 0',
        'device.attributes["gpu.example.com"].anything == 0',
        'device.attributes["dra.cpu"].all(name, true)',
    ],
)
def test_an_attribute_that_a_device_may_have_is_not_a_warning(tmp_path: Path, expression: str) -> None:
    assert warnings(tmp_path, claim(selector(expression))) == []


def test_empty_lists_and_nulls_of_a_slice_count_as_set(tmp_path: Path) -> None:
    pool = {"name": "w", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "w", "pool": pool}
    specs: list[dict[str, Any]] = [
        {"devices": [], "sharedCounters": []},
        {"devices": [{"name": "d", "attributes": {"a": None}}]},
    ]
    slices = [
        {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": f"s{number}"}, "spec": {**spec, **written}}
        for number, written in enumerate(specs)
    ]
    paths = [[path for path, _ in found] for found in errors(tmp_path, *slices)]
    assert paths == [["spec"], ["spec.devices[0].attributes[a]"]]


def test_attributes_are_compared_with_those_in_slices(tmp_path: Path) -> None:
    devices = [{"name": "d", "attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "8Gi"}}}]
    pool = {"name": "w", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "w", "pool": pool, "devices": devices}
    slice_ = {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    attribute = 'device.attributes["gpu.example.com"].modle == "x" && device.capacity["gpu.example.com"].mem != null'
    constraints = [{"matchAttribute": "gpu.example.com/model"}, {"matchAttribute": "other.example.com/x"}]
    found = warnings(tmp_path, claim(selector(attribute), constraints=constraints), slice_)
    where = "spec.devices.requests[0].exactly.selectors[0].cel.expression"
    assert [each.partition("; ")[0] for each in found] == [
        f'{where}: no device has the attribute "modle" of gpu.example.com',
        f'{where}: no device has the capacity "mem" of gpu.example.com',
        'spec.devices.constraints[1].matchAttribute: no device publishes "other.example.com/x"',
    ]


@pytest.mark.parametrize("name", ["dra.cpu/socketId", "resource.kubernetes.io/numaNodes", "dra.gpu/modle"])
def test_an_unpublished_attribute_in_a_constraint_is_a_warning(tmp_path: Path, name: str) -> None:
    (found,) = warnings(tmp_path, claim(request(), constraints=[{"matchAttribute": name}]))
    assert found.startswith(f'spec.devices.constraints[0].matchAttribute: no device publishes "{name}"; did you mean')


def test_an_unknown_class_next_to_known_ones_is_a_warning(tmp_path: Path) -> None:
    (found,) = warnings(tmp_path, claim(request(), request("s", "fpga")))
    assert 'no DeviceClass "fpga" is in these files' in found
    (found,) = warnings(tmp_path, claim(request("r", "dra.cpus")))
    assert 'did you mean "dra.cpu"?' in found
    assert warnings(tmp_path, claim(request("r", "gpu.nvidia.com"))) == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (pod(nodeSelectors={}), "spec.nodeSelectors"),
        (pod(containers=[{"name": "c", "resource": {}}]), "spec.containers[0].resource"),
        (pod(containers=[{"name": "c", "resources": {"claim": []}}]), "spec.containers[0].resources.claim"),
        (
            pod(
                resourceClaims=[{"name": "k", "resourceClaimName": "c"}],
                containers=[{"name": "c", "resources": {"claims": [{"name": "k", "requests": "r"}]}}],
            ),
            "spec.containers[0].resources.claims[0].requests",
        ),
        ({**pod(), "metadata": {"name": "p", "lables": {}}}, "metadata.lables"),
        (pod(resourceClaims=[{"name": "k", "source": {}}]), "spec.resourceClaims[0].source"),
        (pod(tolerations=[{"kye": "a"}]), "spec.tolerations[0].kye"),
        (preferring({"key": "a", "operator": "Exists", "value": "b"}), f"{PREFERRED}.matchExpressions[0].value"),
        ({**pod("Deployment", replica=1), "apiVersion": "apps/v1"}, "spec.replica"),
        (
            {**pod("Job"), "apiVersion": "batch/v1", "spec": {"template": {"spec": {"contianers": []}}}},
            "spec.template.spec.contianers",
        ),
    ],
)
def test_an_unknown_field_of_a_pod_is_a_warning(tmp_path: Path, document: dict[str, Any], path: str) -> None:
    found = warnings(tmp_path, document)
    assert any(each.startswith(f"{path}: there is no such field") for each in found), found


def test_a_pod_with_known_fields_has_no_warning(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "serviceAccount": "a",
        "securityContext": {"anything": 1},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"name": "c", "env": [{"name": "a"}], "ports": [{"containerPort": 80}], "tty": True}],
        "hostUsers": False,
    }
    assert warnings(tmp_path, pod(**fields)) == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_by": "socket"},
        {"group_by": "machine"},
        {"cpu_device_mode": "individual"},
        {"cpu_device_mode": "individual", "threads": "full-core"},
        {"compat_attributes": True},
    ],
)
def test_drivers_declare_all_attributes_that_they_publish(options: dict[str, Any]) -> None:
    machine = open_machine("sockets=2,numa=2,l3=1,cores=4,threads=2,memory=8,hugepages2m=4")
    for plugin in load_plugins(("cpu", "memory", "gpu"), machine, options):
        published = {name for device in publishable(plugin.discover()).devices for name in device.attributes}
        qualified = {name if "/" in name else f"{plugin.driver}/{name}" for name in published}
        assert qualified <= plugin.attribute_names(), plugin.driver


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({**pod(), "metadata": {"name": "p", "ownerReferences": True}}, "metadata.ownerReferences"),
        ({**pod(), "status": {"containerStatuses": {}}}, "status.containerStatuses"),
        ({**pod("Deployment", replicas=-1), "apiVersion": "apps/v1"}, "spec.replicas"),
        ({**pod("Job", completionMode="Indexed"), "apiVersion": "batch/v1"}, "spec.completions"),
        (
            {**pod("CronJob", jobTemplate={"spec": {"parallelism": "x"}}), "apiVersion": "batch/v1"},
            "spec.jobTemplate.spec.parallelism",
        ),
        ({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": []}}, "spec.selector"),
        ({"apiVersion": "v1", "kind": "Node", "metadata": {}}, "metadata.name"),
        ({**pod(), "metadata": {"name": "My_Pod"}}, "metadata.name"),
        ({**pod(), "metadata": {"generateName": "Bad-"}}, "metadata.generateName"),
        ({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n" * 254}}, "metadata.name"),
        ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}}, "metadata.name"),
        (
            pod(topologySpreadConstraints=[SPREAD]),
            "spec.topologySpreadConstraints[0].labelSelector",
        ),
        (pod(topologySpreadConstraints=[{**SPREAD, "labelSelector": {}, "maxSkew": 0}]), f"{SPREADS}.maxSkew"),
        (pod(tolerations=[{"key": "a", "operator": "exists"}]), "spec.tolerations[0].operator"),
        (pod(tolerations=[{"value": "a"}]), "spec.tolerations[0].operator"),
        (preferring({"key": "a", "operator": "in", "values": ["b"]}), f"{PREFERRED}.matchExpressions[0].operator"),
        (pod(containers=[]), "spec.containers"),
        (pod(resourceClaims=[{"name": "k", "resourceClaimName": "C"}]), "spec.resourceClaims[0].resourceClaimName"),
        ({**pod(), "metadata": {"name": "P"}}, "metadata.name"),
        ({**pod("Deployment", **REPLICAS), "apiVersion": "apps/v1"}, "spec.template.metadata.labels"),
        ({**claim(request()), "sepc": {}}, "sepc"),
        ({**claim(request()), "metadata": {"name": "c", "lables": {}}}, "metadata.lables"),
        ({**claim(), "kind": "ResourceClaimTemplate", "spec": LABELED}, "spec.metadata.labels[a b]"),
        ({**claim(), "metadata": {"name": "c", "annotations": {"a b": ""}}}, "metadata.annotations[a b]"),
    ],
)
def test_a_document_that_the_api_server_refuses_is_invalid(tmp_path: Path, document: dict[str, Any], path: str) -> None:
    (found,) = errors(tmp_path, document)
    assert path in [where for where, _ in found]
