"""The manifests of `deploy/`: valid, least, and saying what the driver does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranode.driver.cli.serve import command as serve
from dranode.driver.core.diagnosis.facts import Right
from dranode.driver.core.diagnosis.runtime import TOLERANCE
from dranode.driver.doctor.cluster import RIGHTS
from tests.kubernetes_schemas import documents, problems

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPONENTS = sorted(path.parent for path in DEPLOY.glob("components/*/kustomization.yaml"))
KUSTOMIZATION_KEYS = {"apiVersion", "kind", "resources", "labels", "patches", "images"}


def kustomization(folder: Path) -> dict[str, Any]:
    (document,) = documents(folder / "kustomization.yaml")
    return document


def built(folder: Path) -> Iterator[dict[str, Any]]:
    """What `deploy/` gives, with one component: resources and JSON patches of lists and maps."""
    spec = kustomization(folder)
    objects = [] if folder == DEPLOY else list(built(DEPLOY))
    for resource in spec.get("resources", ()):
        objects += list(documents(folder / resource))
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


@pytest.mark.parametrize("folder", [DEPLOY, *COMPONENTS], ids=lambda path: path.name)
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


def by_kubectl(place: Path, components: Sequence[Path] = (), **settings: str) -> list[dict[str, Any]]:
    """What kubectl makes of an overlay of somebody's own."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    place = place.resolve()
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(DEPLOY, place)],
        "components": [os.path.relpath(each, place) for each in components],
        **settings,
    }
    (place / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = subprocess.run([kubectl, "kustomize", place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_components_go_together(tmp_path: Path) -> None:
    (daemonset,) = [one for one in by_kubectl(tmp_path, COMPONENTS) if one["kind"] == "DaemonSet"]
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert {"/etc/containerd", "/etc/crio", "/dev"} < {mount["mountPath"] for mount in container["volumeMounts"]}


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
        assert {path.name for path in folder.glob("*.yaml")} == {*spec.get("resources", ()), "kustomization.yaml"}


def test_what_people_take_without_git_is_whole() -> None:
    # A link is a file with a path in it to whoever has a zip archive, a raw download or no symbolic links.
    assert [path for path in DEPLOY.rglob("*") if path.is_symlink()] == []
    (daemonset,) = documents(DEPLOY / "daemonset.yaml")
    assert daemonset["kind"] == "DaemonSet"


def test_the_kustomization_names_every_component() -> None:
    named = re.findall(r"#   - (components/\S+)", (DEPLOY / "kustomization.yaml").read_text())
    assert named == [f"components/{folder.name}" for folder in COMPONENTS]


def test_only_objects_of_a_namespace_name_one() -> None:
    named = {one["kind"] for one in built(DEPLOY) if "namespace" in one["metadata"]}
    assert named == {"ServiceAccount", "DaemonSet"}
    assert (
        the("NetworkPolicy", "dranode", DEPLOY / "components" / "network-policy")["metadata"]["namespace"] == "dranode"
    )


def test_the_network_policy_is_for_the_port_and_the_pods_of_the_daemonset() -> None:
    spec = the("NetworkPolicy", "dranode", DEPLOY / "components" / "network-policy")["spec"]
    daemonset = the("DaemonSet", "dranode")["spec"]
    assert spec["podSelector"] == daemonset["selector"]
    (container,) = daemonset["template"]["spec"]["containers"]
    (rule,) = spec["ingress"]
    assert [port["port"] for port in rule["ports"]] == [port["name"] for port in container["ports"]]
    assert spec["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize("folder", [DEPLOY, *COMPONENTS], ids=lambda path: path.name)
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
        "/tmp",
    }
    # Everything else that is mounted is the node's.
    assert [volume["name"] for volume in spec["volumes"] if "hostPath" not in volume] == ["tmp"]


def test_every_mount_has_its_volume() -> None:
    for folder in (DEPLOY, *COMPONENTS):
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


@pytest.mark.parametrize("folder", [DEPLOY, *COMPONENTS], ids=lambda path: path.name)
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
        "dranode/own-slices": (["write"], None),
    }


def test_doctor_asks_for_the_rights_of_the_role() -> None:
    granted = {
        Right(verb, resource, group)
        for rule in the("ClusterRole", "dranode")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource not in ("deviceclasses", "resourceclaims/driver", "own-slices")
    }
    assert set(RIGHTS) == granted


def test_the_binding_is_for_the_account_of_the_daemonset() -> None:
    (subject,) = the("ClusterRoleBinding", "dranode")["subjects"]
    account = the("ServiceAccount", "dranode")["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert pod()["serviceAccountName"] == account["name"]


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
    names = ("object", "oldObject", "request", "namespaceObject", "variables", "authorizer")

    question = cel.Type.Map(cel.Type.DYN, cel.Type.DYN)

    def step(name: str) -> Any:
        """A method of the authorizer's builders: the question with one more word of it."""
        two = cel.Overload(f"dyn_{name}", cel.Type.DYN, [question, cel.Type.STRING], is_member=True, impl=ask(name))
        return cel.FunctionDecl(name, [two])

    allowed = cel.Overload("dyn_allowed", cel.Type.BOOL, [question], is_member=True, impl=is_allowed)
    functions = [*map(step, ("group", "resource", "check")), cel.FunctionDecl("allowed", [allowed])]
    variables = dict.fromkeys(names, cel.Type.DYN)
    return cel.NewEnv(config=config, variables=variables, functions=functions).compile(expression)


def ask(word: str) -> Any:
    return lambda asked, value: {**asked, word: value}


def is_allowed(asked: Mapping[str, Any]) -> bool:
    """Whether a rule of `asked["rules"]` grants what is asked, as RBAC says."""
    return any(
        all({"*", asked[word]} & set(rule[key]) for word, key in RULE_KEYS.items()) and not rule.get("resourceNames")
        for rule in asked["rules"]
    )


RULE_KEYS = {"group": "apiGroups", "resource": "resources", "check": "verbs"}


def rights(user: str, objects: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What an API server's authorizer knows of a user: the rules of the roles that these objects bind to it."""
    objects = list(objects)
    bound = {
        one["roleRef"]["name"]
        for one in objects
        if one["kind"] == "ClusterRoleBinding"
        for subject in one["subjects"]
        if user == f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    }
    roles = [one for one in objects if one["kind"] == "ClusterRole" and one["metadata"]["name"] in bound]
    return {"rules": [rule for role in roles for rule in role["rules"]]}


def refusals(policy: str, **given: Any) -> list[str]:
    """The messages with which a policy refuses a request; empty if it lets it through."""
    spec = the("ValidatingAdmissionPolicy", policy)["spec"]
    assert "matchConditions" not in spec
    if "request" in given and "authorizer" not in given:
        given["authorizer"] = rights(given["request"]["userInfo"]["username"], built(DEPLOY))
    variables: dict[str, Any] = {}
    data = {**given, "variables": variables}
    for variable in spec["variables"]:
        variables[variable["name"]] = value_of(variable["expression"], data)
    return [
        value_of(rule["messageExpression"], data) if "messageExpression" in rule else rule["message"]
        for rule in spec["validations"]
        if not value_of(rule["expression"], data)
    ]


def value_of(expression: str, data: Mapping[str, Any]) -> Any:
    found = program(expression).eval(data=dict(data))
    assert "ERROR" not in found.type().name(), found
    return found.plain_value()


ACCOUNT = "system:serviceaccount:dranode:dranode"
NOBODY: dict[str, Any] = {"rules": []}
ADMINISTRATOR: dict[str, Any] = {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}


def request(operation: str, node: str | None, user: str = ACCOUNT) -> dict[str, Any]:
    extra = {} if node is None else {"extra": {"authentication.kubernetes.io/node-name": [node]}}
    return {"operation": operation, "userInfo": {"username": user, **extra}}


def a_slice(node: str | None, driver: str = "dra.cpu") -> dict[str, Any]:
    return {"spec": {"driver": driver, **({} if node is None else {"nodeName": node})}}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_driver_writes_the_slices_of_its_own_node(operation: str) -> None:
    asked = request(operation, "a")
    old = None if operation == "CREATE" else a_slice("a")
    assert refusals("dranode-slices", request=asked, object=a_slice("a"), oldObject=old) == []
    assert refusals("dranode-slices", request=asked, object=a_slice("b"), oldObject=old) == [
        f'{ACCOUNT} on node "a" may not write a ResourceSlice of node "b"'
    ]
    assert refusals("dranode-slices", request=asked, object=a_slice(None), oldObject=old) == [
        f'{ACCOUNT} on node "a" may not write a ResourceSlice of node ""'
    ]


def test_a_driver_deletes_the_slices_of_its_own_node() -> None:
    asked = request("DELETE", "a")
    assert refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("a")) == []
    assert len(refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("b"))) == 1


def test_a_driver_writes_no_slice_of_another_driver() -> None:
    asked = request("CREATE", "a")
    assert refusals("dranode-slices", request=asked, object=a_slice("a", "gpu.example.com"), oldObject=None) == [
        f'{ACCOUNT} may not write a ResourceSlice of driver "gpu.example.com"'
    ]


def test_a_token_of_no_node_writes_no_slice() -> None:
    first, _ = refusals("dranode-slices", request=request("CREATE", None), object=a_slice("a"), oldObject=None)
    assert first.startswith("the token names no node")


@pytest.mark.parametrize(
    "user", ["system:node:b", "kubernetes-admin", "system:serviceaccount:kube-system:generic-garbage-collector"]
)
def test_who_deletes_slices_for_a_reason_is_none_of_the_policys_business(user: str) -> None:
    for authorizer in (NOBODY, ADMINISTRATOR):
        asked = request("DELETE", None, user)
        assert (
            refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("b"), authorizer=authorizer) == []
        )


def test_who_changes_nothing_that_a_slice_says_may_write_it() -> None:
    # Storage migration and garbage collection do.
    for user in ("system:serviceaccount:kube-system:storage-version-migrator-controller", "kubernetes-admin"):
        asked = request("UPDATE", "elsewhere", user)
        given: dict[str, Any] = {"object": a_slice("b"), "oldObject": a_slice("b"), "authorizer": ADMINISTRATOR}
        assert refusals("dranode-slices", request=asked, **given) == []


def test_drivers_of_others_publish_as_they_like() -> None:
    # Some of them have all rights, and some publish devices of no node from a pod on one.
    for authorizer in (NOBODY, ADMINISTRATOR):
        asked = request("CREATE", "a", "system:serviceaccount:vendor:driver")
        given: dict[str, Any] = {"object": a_slice(None, "gpu.example.com"), "oldObject": None}
        assert refusals("dranode-slices", request=asked, authorizer=authorizer, **given) == []


def renamed(namespace: str, prefix: str) -> list[dict[str, Any]]:
    """What kustomize makes of `namespace:` and `namePrefix:`, as far as roles and accounts go."""
    objects = list(built(DEPLOY))
    for one in objects:
        one["metadata"]["name"] = prefix + one["metadata"]["name"]
        if one["kind"] == "ClusterRoleBinding":
            one["roleRef"]["name"] = prefix + one["roleRef"]["name"]
            one["subjects"] = [
                {**each, "name": prefix + each["name"], "namespace": namespace} for each in one["subjects"]
            ]
    return objects


def test_kubectl_renames_as_this_test_does(tmp_path: Path) -> None:
    theirs = by_kubectl(tmp_path, namespace="elsewhere", namePrefix="my-")
    ours = renamed("elsewhere", "my-")
    user = "system:serviceaccount:elsewhere:my-dranode"
    assert rights(user, theirs) == rights(user, ours)
    assert rights(user, ours)["rules"]
    policies = {one["metadata"]["name"]: one for one in theirs if one["kind"] == "ValidatingAdmissionPolicy"}
    assert policies["my-dranode-slices"]["spec"] == the("ValidatingAdmissionPolicy", "dranode-slices")["spec"]
    bindings = [one for one in theirs if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {one["spec"]["policyName"] for one in bindings} == set(policies)


@pytest.mark.parametrize("prefix", ["", "my-"])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_the_policy_follows_an_account_that_was_renamed(operation: str, prefix: str) -> None:
    user = f"system:serviceaccount:elsewhere:{prefix}dranode"
    authorizer = rights(user, renamed("elsewhere", prefix))

    def refused(node: str | None, target: str, driver: str = "dra.cpu") -> list[str]:
        old = None if operation == "CREATE" else a_slice(target, driver)
        new = None if operation == "DELETE" else a_slice(target, driver) | {"changed": True}
        asked = request(operation, node, user)
        return refusals("dranode-slices", request=asked, object=new, oldObject=old, authorizer=authorizer)

    assert refused("a", "a") == []
    assert len(refused("a", "b")) == 1
    assert refused(None, "a")[0].startswith("the token names no node")
    assert len(refused("a", "a", "gpu.example.com")) == 1


@pytest.mark.parametrize("node", ["a", None])
def test_no_service_account_says_what_another_node_has_whatever_its_rights_are(node: str | None) -> None:
    # A role of somebody's own that lacks the mark, or one that may do everything.
    for authorizer in (NOBODY, ADMINISTRATOR):
        for operation, old in (("CREATE", None), ("UPDATE", a_slice("b", "other"))):
            asked = request(operation, node, "system:serviceaccount:x:y")
            given: dict[str, Any] = {"object": a_slice("b"), "oldObject": old, "authorizer": authorizer}
            assert refusals("dranode-slices", request=asked, **given) != []


def test_no_policy_names_an_account_or_a_namespace() -> None:
    for policy in ("dranode-slices", "dranode-admin-access"):
        text = yaml.safe_dump(the("ValidatingAdmissionPolicy", policy)["spec"])
        assert "serviceaccount:dranode" not in text
        assert not re.search(r"username\s*==", text)


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
