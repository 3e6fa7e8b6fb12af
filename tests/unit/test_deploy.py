"""The manifests of `deploy/`: valid, least, and saying what the driver does."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranode.driver.cli.serve import command as serve
from dranode.driver.core.diagnosis import Right
from dranode.driver.core.diagnosis_runtime import TOLERANCE
from dranode.driver.doctor.cluster import RIGHTS
from tests.kubernetes_schemas import documents, problems

DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = sorted(path.parent for path in DEPLOY.glob("overlays/*/kustomization.yaml"))
KUSTOMIZATION_KEYS = {"apiVersion", "kind", "resources", "labels", "patches", "images"}


def kustomization(folder: Path) -> dict[str, Any]:
    (document,) = documents(folder / "kustomization.yaml")
    return document


def built(folder: Path) -> Iterator[dict[str, Any]]:
    """What a kustomization gives, as far as ours go: resources and JSON patches of lists and maps."""
    spec = kustomization(folder)
    objects: list[dict[str, Any]] = []
    for resource in spec["resources"]:
        path = (folder / resource).resolve()
        objects += list(built(path)) if path.is_dir() else list(documents(path))
    for patch in spec.get("patches", ()):
        (target,) = [
            one
            for one in objects
            if (one["kind"], one["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])
        ]
        for operation in yaml.safe_load(patch["patch"]):
            assert operation["op"] == "add"
            *way, last = operation["path"].strip("/").split("/")
            place: Any = target
            for step in way:
                place = place[int(step)] if isinstance(place, list) else place[step]
            if last == "-":
                place.append(operation["value"])
            else:
                place[last] = operation["value"]
    yield from objects


def the(kind: str, name: str, folder: Path = DEPLOY) -> dict[str, Any]:
    (found,) = [one for one in built(folder) if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod(folder: Path = DEPLOY) -> dict[str, Any]:
    spec: dict[str, Any] = the("DaemonSet", "dranode", folder)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("folder", [DEPLOY, *OVERLAYS], ids=lambda path: path.name)
def test_every_manifest_follows_kubernetes_schemas(folder: Path) -> None:
    found = {f"{one['kind']} {one['metadata']['name']}": problems(one) for one in built(folder)}
    assert len(found) >= 9
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_the_schemas_refuse_what_an_api_server_would() -> None:
    manifest = the("DaemonSet", "dranode")
    manifest["spec"]["template"]["spec"]["containers"][0]["privilegd"] = True
    del manifest["spec"]["selector"]
    assert [problem.partition(":")[0] for problem in problems(manifest)] == [
        "spec.selector",
        "spec.template.spec.containers.0.privilegd",
    ]


@pytest.mark.parametrize("folder", [DEPLOY, *OVERLAYS], ids=lambda path: path.name)
def test_kubectl_builds_the_same_as_this_test(folder: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True)
    theirs = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
    label = {"app.kubernetes.io/part-of": "dranode"}
    for one in built(folder):
        one["metadata"]["labels"] = {**one["metadata"].get("labels", {}), **label}
        assert theirs.pop((one["kind"], one["metadata"]["name"])) == one
    assert theirs == {}


def test_every_file_is_part_of_a_kustomization() -> None:
    folders = [DEPLOY, DEPLOY / "base", *OVERLAYS]
    for folder in folders:
        spec = kustomization(folder)
        assert set(spec) <= KUSTOMIZATION_KEYS
        named = {name for name in spec["resources"] if name.endswith(".yaml")}
        files = {path.name for path in folder.glob("*.yaml") if not path.is_symlink()}
        assert files == named | {"kustomization.yaml"}


def test_only_objects_of_a_namespace_name_one() -> None:
    named = {one["kind"] for one in built(DEPLOY) if "namespace" in one["metadata"]}
    assert named == {"ServiceAccount", "DaemonSet"}


@pytest.mark.parametrize("folder", [DEPLOY, *OVERLAYS], ids=lambda path: path.name)
def test_the_driver_has_no_right_that_it_does_not_need(folder: Path) -> None:
    spec = pod(folder)
    (container,) = spec["containers"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    context = container["securityContext"]
    assert (context["runAsUser"], context["privileged"], context["allowPrivilegeEscalation"]) == (0, False, False)
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {
        "/var/lib/kubelet/plugins",
        "/var/lib/kubelet/plugins_registry",
        "/var/run/cdi",
        "/var/run/nri",
    }


def test_every_mount_has_its_volume() -> None:
    for folder in (DEPLOY, *OVERLAYS):
        spec = pod(folder)
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_a_new_driver_comes_before_the_old_one_goes() -> None:
    spec = the("DaemonSet", "dranode")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (container,) = pod()["containers"]
    assert "hostPort" not in container["ports"][0]
    fields = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if "valueFrom" in one}
    assert fields == {"NODE_NAME": "spec.nodeName", "POD_UID": "metadata.uid", "POD_IP": "status.podIP"}


def test_probes_reach_the_address_that_the_driver_listens_on() -> None:
    (container,) = pod()["containers"]
    (address,) = [one["value"] for one in container["env"] if one["name"] == "DRANODE_HTTP_ADDRESS"]
    (port,) = container["ports"]
    assert address == f"[$(POD_IP)]:{port['containerPort']}"
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert probes["readinessProbe"]["path"] == "/readyz"
    assert probes["livenessProbe"]["path"] == "/healthz"


@pytest.mark.parametrize("folder", [DEPLOY, *OVERLAYS], ids=lambda path: path.name)
def test_serve_takes_the_arguments_and_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = pod(folder)["containers"]
    for one in container["env"]:
        monkeypatch.setenv(one["name"], one.get("value", "x"))
    program, *arguments = container["args"]
    assert program == "serve"
    parsed = serve.make_context("serve", arguments).params
    assert parsed["drivers"] == (("cpu", "gpu") if folder.name == "gpu" else ("cpu",))
    assert parsed["pod_uid"] == parsed["node_name"] == "x"
    assert parsed["http_address"] == "[$(POD_IP)]:8080"
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {parsed["cdi_dir"], str(Path(parsed["nri_socket"]).parent)} < mounted


def test_the_role_is_the_least_one() -> None:
    rules = the("ClusterRole", "dranode")["rules"]
    allowed = {
        f"{group or 'core'}/{resource}": (sorted(rule["verbs"]), rule.get("resourceNames"))
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    drivers = ["dra.cpu", "dra.gpu"]
    assert allowed == {
        "resource.k8s.io/resourceslices": (["create", "delete", "list", "update", "watch"], None),
        "resource.k8s.io/resourceclaims": (["get"], None),
        "resource.k8s.io/resourceclaims/status": (["patch"], None),
        "resource.k8s.io/resourceclaims/driver": (["associated-node:patch"], drivers),
        "resource.k8s.io/deviceclasses": (["get"], drivers),
        "core/nodes": (["get"], None),
        "events.k8s.io/events": (["create"], None),
    }


def test_doctor_asks_for_the_rights_of_the_role() -> None:
    granted = {
        Right(verb, resource, group)
        for rule in the("ClusterRole", "dranode")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource not in ("deviceclasses", "resourceclaims/driver")
    }
    assert set(RIGHTS) == granted


def test_the_binding_is_for_the_account_of_the_daemonset() -> None:
    (subject,) = the("ClusterRoleBinding", "dranode")["subjects"]
    account = the("ServiceAccount", "dranode")["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert pod()["serviceAccountName"] == account["name"]
    (condition,) = the("ValidatingAdmissionPolicy", "dranode-slices")["spec"]["matchConditions"]
    assert f'"system:serviceaccount:{account["namespace"]}:{account["name"]}"' in condition["expression"]


def test_the_drivers_own_pod_starts_where_the_runtime_requires_the_driver() -> None:
    metadata = the("DaemonSet", "dranode")["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {TOLERANCE: "true"}


def test_the_namespace_lets_the_pod_in() -> None:
    labels = the("Namespace", "dranode")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


# --- admission policies, evaluated as an API server does ---


@cache
def program(expression: str) -> Any:
    from cel_expr_python import cel  # noqa: PLC0415 - only these tests evaluate

    config = cel.NewEnvConfigFromYaml("extensions:\n- {name: strings, version: 2}\n- {name: optional}\n")
    names = ("object", "oldObject", "request", "namespaceObject", "variables")
    return cel.NewEnv(config=config, variables=dict.fromkeys(names, cel.Type.DYN)).compile(expression)


def refusals(policy: str, **given: Any) -> list[str]:
    """The messages with which a policy refuses a request; empty if it lets it through."""
    spec = the("ValidatingAdmissionPolicy", policy)["spec"]
    for condition in spec.get("matchConditions", ()):
        if not program(condition["expression"]).eval(data=given).value():
            return []
    variables: dict[str, Any] = {}
    for variable in spec["variables"]:
        variables[variable["name"]] = (
            program(variable["expression"]).eval(data={**given, "variables": variables}).plain_value()
        )
    data = {**given, "variables": variables}
    return [
        program(rule["messageExpression"]).eval(data=data).value() if "messageExpression" in rule else rule["message"]
        for rule in spec["validations"]
        if not program(rule["expression"]).eval(data=data).value()
    ]


def request(operation: str, node: str | None, user: str = "system:serviceaccount:dranode:dranode") -> dict[str, Any]:
    extra = {} if node is None else {"extra": {"authentication.kubernetes.io/node-name": [node]}}
    return {"operation": operation, "userInfo": {"username": user, **extra}}


def a_slice(node: str | None, driver: str = "dra.cpu") -> dict[str, Any]:
    return {"spec": {"driver": driver, **({} if node is None else {"nodeName": node})}}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_driver_writes_the_slices_of_its_own_node(operation: str) -> None:
    asked = request(operation, "a")
    assert refusals("dranode-slices", request=asked, object=a_slice("a"), oldObject=None) == []
    assert refusals("dranode-slices", request=asked, object=a_slice("b"), oldObject=None) == [
        'dranode on node "a" may not write a ResourceSlice of node "b"'
    ]
    assert refusals("dranode-slices", request=asked, object=a_slice(None), oldObject=None) == [
        'dranode on node "a" may not write a ResourceSlice of node ""'
    ]


def test_a_driver_deletes_the_slices_of_its_own_node() -> None:
    asked = request("DELETE", "a")
    assert refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("a")) == []
    assert len(refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("b"))) == 1


def test_a_driver_writes_no_slice_of_another_driver() -> None:
    asked = request("CREATE", "a")
    assert refusals("dranode-slices", request=asked, object=a_slice("a", "gpu.example.com"), oldObject=None) == [
        'dranode may not write a ResourceSlice of driver "gpu.example.com"'
    ]


def test_a_token_of_no_node_writes_no_slice() -> None:
    first, _ = refusals("dranode-slices", request=request("CREATE", None), object=a_slice("a"), oldObject=None)
    assert first.startswith("the token names no node")


def test_slices_of_other_writers_are_none_of_the_policys_business() -> None:
    asked = request("DELETE", None, "system:node:b")
    assert refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("b")) == []


def admin(form: str, kind: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"adminAccess": True, "deviceClassName": "dra.gpu"}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "r", **({"exactly": asked} if form == "v1" else asked)}]}}
    return {"kind": kind, "spec": spec if kind == "ResourceClaim" else {"spec": spec}}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("form", ["v1", "v1beta1"])
def test_admin_access_is_for_labelled_namespaces(form: str, kind: str) -> None:
    labelled = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    unlabelled: dict[str, Any] = {"metadata": {}}
    for namespace in (unlabelled, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "false"}}}):
        (refusal,) = refusals("dranode-admin-access", object=admin(form, kind), namespaceObject=namespace)
        assert "label this one" in refusal
    assert refusals("dranode-admin-access", object=admin(form, kind), namespaceObject=labelled) == []


def test_claims_with_admin_access_can_go_whatever_became_of_their_namespace() -> None:
    # Specs are immutable, and who removes a claim's finalizer updates it.
    spec = the("ValidatingAdmissionPolicy", "dranode-admin-access")["spec"]
    assert [rule["operations"] for rule in spec["matchConstraints"]["resourceRules"]] == [["CREATE"]]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"devices": {}},
        {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "dra.cpu"}}]}},
        {"devices": {"requests": [{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "dra.cpu"}]}]}},
    ],
)
def test_claims_without_admin_access_pass_everywhere(spec: dict[str, Any]) -> None:
    claim = {"kind": "ResourceClaim", "spec": spec}
    assert refusals("dranode-admin-access", object=claim, namespaceObject={"metadata": {}}) == []


# --- the image ---


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY.parent / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = [line.strip() for line in lines.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined)]


def stages() -> list[list[tuple[str, str]]]:
    starts = [index for index, (name, _) in enumerate(instructions()) if name == "FROM"]
    return [instructions()[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_the_image_is_made_in_two_stages_from_one_pinned_base() -> None:
    (name, base), *_ = instructions()
    assert name == "ARG"
    assert re.fullmatch(r"BASE=python:3\.1\d\.\d+-slim-\w+", base)
    assert [stage[0][1] for stage in stages()] == ["${BASE} AS build", "${BASE}"]


def test_what_the_image_holds_is_pinned_and_compiled_before() -> None:
    build = " ".join(rest for _, rest in stages()[0])
    assert "--require-hashes -r requirements/serve.lock" in build
    assert "--only-binary=:all:" in build
    assert "compileall" in build
    installs = [each for each in re.findall(r"pip (?:--python \S+ )?install[^&]*", build) if "--no-index" not in each]
    assert len(installs) == 2
    assert all("--require-hashes" in each for each in installs)


def test_the_image_has_neither_compiler_nor_installer() -> None:
    _, final = stages()
    commands = [rest for name, rest in final if name == "RUN"]
    assert commands == ["pip uninstall -q -y --root-user-action=ignore setuptools wheel pip"]
    assert [rest for name, rest in final if name == "COPY"] == ["--from=build /opt/dranode /opt/dranode"]
    assert not any("apt" in rest or "gcc" in rest for _, rest in instructions())


def test_every_part_and_nothing_secret_is_copied() -> None:
    copied = {source for name, rest in stages()[0] if name == "COPY" for source in map(str, rest.split()[:-1])}
    listed = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    assert set(listed.values()) == {source.rstrip("/") for source in copied if source.endswith("/")} - {"requirements"}
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == {source.rstrip("/") for source in copied}


def test_the_image_starts_the_driver_as_root_without_writing() -> None:
    final = dict(stages()[1])
    assert (final["ENTRYPOINT"], final["CMD"], final["USER"]) == ('["dranode"]', '["serve"]', "0:0")
    assert "PYTHONDONTWRITEBYTECODE=1" in final["ENV"]


def test_the_daemonset_stands_where_people_look_for_it() -> None:
    assert yaml.safe_load((DEPLOY / "daemonset.yaml").read_text())["kind"] == "DaemonSet"
    assert (DEPLOY / "daemonset.yaml").resolve() == (DEPLOY / "base" / "daemonset.yaml").resolve()
