import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dranode.sim.cli.check import command

EXAMPLES = Path(__file__).parents[3] / "vectors" / "kep-4816.yaml"


def checked(*files: Path) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(command, [*map(str, files), "-o", "json"])
    return result.exit_code, json.loads(result.stdout)


def written(folder: Path, text: str) -> Path:
    path = folder / "claim.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_examples_of_kep_4816_are_valid_and_count_every_alternative() -> None:
    status, verdicts = checked(EXAMPLES)
    assert status == 0
    assert all(verdict["ok"] and not verdict["errors"] for verdict in verdicts)
    listed = {"rdma-nic": 1, "big-gpu": 1, "mid-gpu": 1, "small-gpu": 2}
    assert {verdict["name"]: verdict["quota"] for verdict in verdicts} == {
        "exactly-v1beta2": {"big-gpu": 1},
        "list-v1beta2": listed,
        "list-v1beta1": listed,
        "claim-cpu-10": {"dra.cpu": 1},
        "device-consumer": {},
    }


def test_paths_follow_the_api_version_of_the_document(tmp_path: Path) -> None:
    text = """
apiVersion: resource.k8s.io/%s
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: r, %s}]}}
"""
    _, flat = checked(written(tmp_path, text % ("v1beta1", "deviceClassName: gpu, count: -1")))
    _, nested = checked(written(tmp_path, text % ("v1", "exactly: {deviceClassName: gpu, count: -1}")))
    assert [error["path"] for error in flat[0]["errors"]] == ["spec.devices.requests[0].count"]
    assert [error["path"] for error in nested[0]["errors"]] == ["spec.devices.requests[0].exactly.count"]


def test_a_misplaced_alpha_field_is_an_unknown_field(tmp_path: Path) -> None:
    derived = 'derivedAttributes: [{name: d.example.com/a, expression: "1"}]'
    text = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: r, %s}]}}
"""
    right, _ = checked(written(tmp_path, text % f"exactly: {{deviceClassName: gpu, {derived}}}"))
    status, verdicts = checked(written(tmp_path, text % f"exactly: {{deviceClassName: gpu}}, {derived}"))
    assert (right, status) == (0, 1)
    assert [error["path"] for error in verdicts[0]["errors"]] == ["spec.devices.requests[0].derivedAttributes"]
    assert verdicts[0]["errors"][0]["message"].startswith("there is no such field; the fields are name, exactly, ")


def test_selectors_and_our_own_configurations_are_checked_with_their_path(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec:
  devices:
    requests: [{name: r, exactly: {deviceClassName: dra.cpu, selectors: [{cel: {expression: device.name == "x"}}]}}]
    config: [{requests: [r], opaque: {driver: dra.cpu, parameters: {cpuset: 9-3}}}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: cpu}
spec: {config: [{opaque: {driver: dra.cpu, parameters: {cpuset: 1-2}}}]}
""",
    )
    status, (claim, device_class) = checked(path)
    assert status == 1
    assert [error["path"] for error in claim["errors"]] == [
        "spec.devices.requests[0].exactly.selectors[0].cel.expression",
        "spec.devices.config[0].opaque.parameters.cpuset",
        "spec.devices.config[0].opaque.parameters.apiVersion",
    ]
    assert claim["errors"][0]["message"] == "compilation failed: undefined field 'name'"
    assert "9-3" in claim["errors"][1]["message"]
    assert device_class["errors"][0]["path"] == "spec.config[0].opaque.parameters"


def test_bare_opaque_parameters_are_valid_if_a_driver_takes_them(tmp_path: Path) -> None:
    forms = ('{"cpuset": "2-11"}', '{"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-11"}}')
    for form in forms:
        status, verdicts = checked(written(tmp_path, form))
        assert (status, [verdict["ok"] for verdict in verdicts]) == (0, [True])


def test_bare_opaque_parameters_that_no_driver_takes_name_every_driver(tmp_path: Path) -> None:
    path = written(tmp_path, '{"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "11-2"}}')
    status, (verdict,) = checked(path)
    assert status == 1
    errors = {error["path"]: error["message"] for error in verdict["errors"]}
    assert errors["cpuConfig.cpuset"].startswith('dra.cpu: opaque config: failed to parse cpuset "11-2"')
    assert any(error["message"].startswith("dra.gpu: ") for error in verdict["errors"])


def test_a_path_stays_a_path_whatever_a_driver_answers(tmp_path: Path) -> None:
    opaque = {"driver": "dra.gpu", "parameters": {"apiVersion": "v9", "kind": "GPUConfig"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a"},
        "spec": {"devices": {"config": [{"opaque": opaque}]}},
    }
    (error,) = checked(written(tmp_path, json.dumps(claim)))[1][0]["errors"]
    assert error["path"].startswith("spec.devices.config[0].opaque.parameters")
    assert " " not in error["path"]


def test_only_our_part_of_an_allocation_is_checked(tmp_path: Path) -> None:
    text = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}
status:
  allocation:
    devices:
      results: [{request: r, driver: %s, pool: p, device: d, consumedCapacity: {c: many}}]
      config: [{source: FromClaim, opaque: {driver: %s, parameters: {cpuset: x}}}]
"""

    def errors(result: str, config: str) -> list[str]:
        ((verdict,),) = (checked(written(tmp_path, text % (result, config)))[1],)
        return [error["path"] for error in verdict["errors"]]

    assert errors("other.example.com", "other.example.com") == []
    assert errors("dra.cpu", "other.example.com") == ["status.allocation.devices.results[0].consumedCapacity[c]"]
    assert errors("other.example.com", "dra.cpu") == [
        "status.allocation.devices.config[0].opaque.parameters.cpuset",
        "status.allocation.devices.config[0].opaque.parameters.apiVersion",
    ]


CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: gpu, firstAvailable: [{name: mid-gpu, deviceClassName: gpu}]}]}}
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims: [{name: gpus, resourceClaimName: c}]
  containers: [{name: a, resources: {claims: [%s]}}]
"""


@pytest.mark.parametrize(
    ("use", "field", "message"),
    [
        ("{name: gpus, request: gpu/mid-gpu}", ".request", '"gpu/mid-gpu" is not a DNS label: name the request;'),
        ("{name: gpus, request: cpu}", ".request", 'the claim has no request "cpu"; there are: gpu'),
        ("{name: gpu}", ".name", '"gpu" is not an entry of spec.resourceClaims; there are: gpus'),
    ],
)
def test_a_container_that_names_an_unknown_request_is_invalid(
    tmp_path: Path, use: str, field: str, message: str
) -> None:
    status, (claim, pod) = checked(written(tmp_path, CLAIM + POD % use))
    assert (status, claim["ok"]) == (1, True)
    assert [error["path"] for error in pod["errors"]] == [f"spec.containers[0].resources.claims[0]{field}"]
    assert message in pod["errors"][0]["message"]


def test_a_pod_that_uses_its_claims_correctly_is_valid(tmp_path: Path) -> None:
    status, verdicts = checked(written(tmp_path, CLAIM + POD % "{name: gpus, request: gpu}"))
    assert status == 0
    assert [(verdict["kind"], verdict["ok"]) for verdict in verdicts] == [("ResourceClaim", True), ("Pod", True)]
    assert checked(written(tmp_path, POD % "{name: gpus, request: elsewhere}"))[0] == 0, "the claim may be elsewhere"


def test_only_containers_use_claims_and_each_claim_once(tmp_path: Path) -> None:
    twice = written(
        tmp_path, POD % "{name: gpus}, {name: gpus, request: gpu}" + "  resources: {claims: [{name: gpus}]}"
    )
    _, (pod,) = checked(twice)
    assert [error["path"] for error in pod["errors"]] == [
        "spec.resources.claims",
        "spec.containers[0].resources.claims[1]",
    ]


@pytest.mark.parametrize(
    ("kind", "version", "path"),
    [
        ("Deployment", "apps/v1", "spec.template"),
        ("Job", "batch/v1", "spec.template"),
        ("CronJob", "batch/v1", "spec.jobTemplate.spec.template"),
    ],
)
def test_pod_templates_are_judged_like_pods(tmp_path: Path, kind: str, version: str, path: str) -> None:
    use = {"name": "c", "resources": {"claims": [{"name": "gpus", "request": "none"}]}}
    made: dict[str, Any] = {
        "spec": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}], "containers": [use]}
    }
    for name in reversed(path.split(".")):
        made = {name: made}
    document = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, **made}
    status, (_, verdict) = checked(written(tmp_path, CLAIM + json.dumps(document)))
    assert (status, verdict["kind"]) == (1, kind)
    assert f"{path}.spec.containers[0].resources.claims[0].request" in [error["path"] for error in verdict["errors"]]


SURROUNDED = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: %s}}]}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: shared}
spec: {selectors: [{cel: {expression: 'device.driver == "s.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: s.example.com
  pool: {name: w, generation: 1, resourceSliceCount: 1}
  nodeName: w
  devices:
    - name: d
      allowMultipleAllocations: true
      capacity: {s.example.com/units: {value: "8", requestPolicy: {default: "1", validRange: {min: "1", step: "1"}}}}
"""


@pytest.mark.parametrize(
    ("wanted", "path", "message"),
    [
        (
            "shared, count: 4",
            ".count",
            "this asks for 4 devices with 1 of s.example.com/units each, the default",
        ),
        (
            "shared, capacity: {requests: {units: 4}}",
            ".capacity.requests",
            'no device of class "shared" has a capacity "units"; they have s.example.com/units',
        ),
        ("shard", ".deviceClassName", 'no DeviceClass "shard" is in these files; did you mean "shared"?'),
    ],
)
def test_a_request_that_no_class_or_device_can_meet_is_a_warning(
    tmp_path: Path, wanted: str, path: str, message: str
) -> None:
    status, verdicts = checked(written(tmp_path, SURROUNDED % wanted))
    assert (status, verdicts[0]["ok"]) == (0, True)
    (warning,) = verdicts[0]["warnings"]
    assert warning["path"] == f"spec.devices.requests[0].exactly{path}"
    assert warning["message"].startswith(message)


@pytest.mark.parametrize(
    "wanted", ["shared", "shared, count: 4, capacity: {requests: {s.example.com/units: 2}}", "dra.cpu"]
)
def test_a_request_that_devices_can_meet_is_not_a_warning(tmp_path: Path, wanted: str) -> None:
    status, verdicts = checked(written(tmp_path, SURROUNDED % wanted))
    assert (status, verdicts[0]["warnings"]) == (0, [])


def test_a_count_of_the_groups_of_cpus_that_the_driver_publishes_is_explained(tmp_path: Path) -> None:
    text = SURROUNDED.partition("---")[0] % "dra.cpu, count: 4"
    _, verdicts = checked(written(tmp_path, text))
    assert "with 1 of dra.cpu/cpu each, the default; for 4 of dra.cpu/cpu" in verdicts[0]["warnings"][0]["message"]


def test_a_pod_that_misses_the_claim_in_its_file_is_a_warning(tmp_path: Path) -> None:
    pod = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {resourceClaims: [{name: a, resourceClaimName: cc}], containers: [{name: m, resources: {claims: [{name: a}]}}]}
---
"""
    status, verdicts = checked(written(tmp_path, pod + SURROUNDED % "shared"))
    assert status == 0
    assert verdicts[0]["warnings"] == [
        {
            "path": "spec.resourceClaims[0].resourceClaimName",
            "message": 'no ResourceClaim "default/cc" is in these files; did you mean "c"?',
        }
    ]


def test_a_selector_that_can_cost_too_much_is_refused_as_the_server_does(tmp_path: Path) -> None:
    costly = "lists.range(3000).all(a, lists.range(3000).all(b, a + b >= 0))"
    path = written(
        tmp_path,
        f"""
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: cpu}}
spec: {{selectors: [{{cel: {{expression: "{costly}"}}}}]}}
""",
    )
    status, (device_class,) = checked(path)
    assert status == 1
    assert device_class["errors"][0]["message"].startswith(
        "too complex, exceeds cost limit: it can cost up to 72,048,012"
    )


@pytest.mark.parametrize(
    ("selector", "effect", "warning"),
    [
        ("deviceSelector: {driver: a.example.com}, ", "NoExecute", None),
        (
            "deviceSelector: {}, ",
            "NoExecute",
            "it is empty, so the rule taints every device of the cluster, and evicts all pods that use one",
        ),
        ("deviceSelector: {}, ", "NoSchedule", "it is empty, so the rule taints every device of the cluster"),
        (
            "",
            "NoSchedule",
            "a rule without it selects no device, and before Kubernetes 1.37.1 every device for kube-scheduler",
        ),
    ],
    ids=["a driver", "empty and NoExecute", "empty and NoSchedule", "missing"],
)
def test_a_taint_rule_that_selects_all_devices_or_none_is_a_warning(
    tmp_path: Path, selector: str, effect: str, warning: str | None
) -> None:
    rule = f"{{{selector}taint: {{key: example.com/a, effect: {effect}}}}}"
    text = f"apiVersion: resource.k8s.io/v1\nkind: DeviceTaintRule\nmetadata: {{name: rule}}\nspec: {rule}\n"
    status, (verdict,) = checked(written(tmp_path, text))
    assert status == 0
    expected = [] if warning is None else [{"path": "spec.deviceSelector", "message": warning}]
    assert verdict["warnings"] == expected
