"""The admission policies of `deploy/`: who may publish a node's devices, and who may have admin access."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.kustomize import DEPLOY, built, by_kubectl, the

# --- the admission policies, evaluated as an API server does ---


@cache
def program(expression: str) -> Any:
    from cel_expr_python import cel  # noqa: PLC0415 - only these tests evaluate

    config = cel.NewEnvConfigFromYaml("extensions:\n- {name: strings, version: 2}\n- {name: optional}\n")
    names = ("object", "oldObject", "request", "namespaceObject", "variables", "authorizer")

    question = cel.Type.Map(cel.Type.DYN, cel.Type.DYN)

    def step(name: str) -> Any:
        """A method of the authorizer's builders, which adds one word to the question."""
        two = cel.Overload(f"dyn_{name}", cel.Type.DYN, [question, cel.Type.STRING], is_member=True, impl=ask(name))
        return cel.FunctionDecl(name, [two])

    allowed = cel.Overload("dyn_allowed", cel.Type.BOOL, [question], is_member=True, impl=is_allowed)
    functions = [*map(step, ("group", "resource", "check")), cel.FunctionDecl("allowed", [allowed])]
    variables = dict.fromkeys(names, cel.Type.DYN)
    return cel.NewEnv(config=config, variables=variables, functions=functions).compile(expression)


def ask(word: str) -> Any:
    return lambda asked, value: {**asked, word: value}


def is_allowed(asked: Mapping[str, Any]) -> bool:
    """Whether a rule in `asked["rules"]` grants what is asked, by the rules of RBAC."""
    return any(
        all({"*", asked[word]} & set(rule[key]) for word, key in RULE_KEYS.items()) and not rule.get("resourceNames")
        for rule in asked["rules"]
    )


RULE_KEYS = {"group": "apiGroups", "resource": "resources", "check": "verbs"}


def rights(user: str, objects: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What an API server's authorizer knows of a user: the rules of the roles that these objects bind to the user."""
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
    """The messages with which a policy refuses a request; empty if it allows the request."""
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


def a_slice(node: str | None, driver: str = "dra.cpu", pool: str | None = None) -> dict[str, Any]:
    """A slice of a node, in the pool of that node unless another pool is named."""
    scope = {"allNodes": True} if node is None else {"nodeName": node}
    return {"spec": {"driver": driver, "pool": {"name": pool or node or "everywhere"}, **scope}}


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


# What one could do by adding to node b's pool from node a: a slice of a newer generation there hides b's own devices.
ON_NODE_A = {
    "the driver": request("CREATE", "a"),
    "another pod with rights": request("CREATE", "a", "system:serviceaccount:x:y"),
    "kubelet": request("CREATE", None, "system:node:a"),
}


@pytest.mark.parametrize("who", ON_NODE_A)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_nobody_on_a_node_writes_into_the_pool_of_another_node(who: str, operation: str) -> None:
    asked = {**ON_NODE_A[who], "operation": operation}
    user = asked["userInfo"]["username"]
    own, foreign = a_slice("a"), a_slice("a", pool="b")
    given: dict[str, Any] = {"request": asked, "oldObject": None if operation == "CREATE" else a_slice("a", "dra.gpu")}
    assert refusals("dranode-slices", object=own, **given) == []
    assert refusals("dranode-slices", object=foreign, **given) == [
        f'{user} on node "a" may not write a ResourceSlice of pool "b"; the pool of node "a" has its name'
    ]
    assert refusals("dranode-slices", object=a_slice("b"), **given) == [
        f'{user} on node "a" may not write a ResourceSlice of node "b"'
    ]


@pytest.mark.parametrize("who", ON_NODE_A)
@pytest.mark.parametrize(
    "old", [a_slice("b"), a_slice("a", pool="b"), a_slice(None), a_slice("b", "gpu.example.com")], ids=str
)
def test_no_update_takes_over_a_slice_of_another_node_or_pool(who: str, old: dict[str, Any]) -> None:
    asked = {**ON_NODE_A[who], "operation": "UPDATE"}
    (refusal, *_) = refusals("dranode-slices", request=asked, object=a_slice("a"), oldObject=old)
    assert 'on node "a" may not write a ResourceSlice of ' in refusal


def test_the_driver_takes_over_no_slice_of_another_driver() -> None:
    asked, old = request("UPDATE", "a"), a_slice("a", "gpu.example.com")
    assert refusals("dranode-slices", request=asked, object=a_slice("a"), oldObject=old) == [
        f'{ACCOUNT} may not write a ResourceSlice of driver "gpu.example.com"'
    ]


def test_a_driver_may_delete_its_nodes_slices_from_another_pool() -> None:
    asked = request("DELETE", "a")
    assert refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("a", pool="b")) == []


@pytest.mark.parametrize(
    "spec", [{}, {"driver": "dra.cpu"}, {"driver": "dra.cpu", "nodeName": "a", "pool": {}}], ids=str
)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_slice_without_the_compared_fields_is_refused_with_a_message(spec: dict[str, Any], operation: str) -> None:
    asked = request(operation, "a")
    old = None if operation == "CREATE" else a_slice("a")
    refused = refusals("dranode-slices", request=asked, object={"spec": spec}, oldObject=old)
    assert refused
    assert all("may not write a ResourceSlice of " in refusal for refusal in refused)


def test_users_without_a_name_or_a_node_are_judged_too() -> None:
    for user in ({}, {"username": ACCOUNT, "extra": {}}, {"username": ACCOUNT, "extra": {"a": ["b"]}}):
        asked = {"operation": "CREATE", "userInfo": user}
        refused = refusals(
            "dranode-slices",
            request=asked,
            object=a_slice("a"),
            oldObject=None,
            authorizer=rights(ACCOUNT, built(DEPLOY)),
        )
        assert refused[0].startswith("the token names no node")


def test_only_kubelets_user_name_counts_as_a_node() -> None:
    for user in ("system:node:", "system:nodes:a", "a", "system:serviceaccount:system:node:a"):
        asked = request("CREATE", None, user)
        mark = rights(ACCOUNT, built(DEPLOY))
        assert refusals("dranode-slices", request=asked, object=a_slice("a"), oldObject=None, authorizer=mark) != []


def test_a_driver_may_delete_only_the_slices_of_its_own_node() -> None:
    asked = request("DELETE", "a")
    assert refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("a")) == []
    assert len(refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("b"))) == 1


def test_a_driver_may_not_write_a_slice_of_another_driver() -> None:
    asked = request("CREATE", "a")
    assert refusals("dranode-slices", request=asked, object=a_slice("a", "gpu.example.com"), oldObject=None) == [
        f'{ACCOUNT} may not write a ResourceSlice of driver "gpu.example.com"'
    ]


def test_a_token_without_a_node_may_not_write_slices() -> None:
    first, _ = refusals("dranode-slices", request=request("CREATE", None), object=a_slice("a"), oldObject=None)
    assert first.startswith("the token names no node")


@pytest.mark.parametrize(
    "user", ["system:node:b", "kubernetes-admin", "system:serviceaccount:kube-system:generic-garbage-collector"]
)
def test_the_policy_does_not_limit_who_else_deletes_slices(user: str) -> None:
    for authorizer in (NOBODY, ADMINISTRATOR):
        asked = request("DELETE", None, user)
        assert (
            refusals("dranode-slices", request=asked, object=None, oldObject=a_slice("b"), authorizer=authorizer) == []
        )


def test_anyone_may_write_a_slice_without_changing_its_content() -> None:
    # As storage migration and garbage collection do.
    for user in ("system:serviceaccount:kube-system:storage-version-migrator-controller", "kubernetes-admin"):
        asked = request("UPDATE", "elsewhere", user)
        given: dict[str, Any] = {"object": a_slice("b"), "oldObject": a_slice("b"), "authorizer": ADMINISTRATOR}
        assert refusals("dranode-slices", request=asked, **given) == []


def test_other_vendors_drivers_publish_as_they_like() -> None:
    # Some have all rights, and some publish devices that belong to no node from a pod that runs on one.
    for authorizer in (NOBODY, ADMINISTRATOR):
        asked = request("CREATE", "a", "system:serviceaccount:vendor:driver")
        given: dict[str, Any] = {"object": a_slice(None, "gpu.example.com"), "oldObject": None}
        assert refusals("dranode-slices", request=asked, authorizer=authorizer, **given) == []


def renamed(namespace: str, prefix: str) -> list[dict[str, Any]]:
    """What kustomize does for `namespace:` and `namePrefix:`, as far as roles and accounts are concerned."""
    objects = list(built(DEPLOY))
    for one in objects:
        one["metadata"]["name"] = prefix + one["metadata"]["name"]
        if one["kind"] == "ClusterRoleBinding":
            one["roleRef"]["name"] = prefix + one["roleRef"]["name"]
            one["subjects"] = [
                {**each, "name": prefix + each["name"], "namespace": namespace} for each in one["subjects"]
            ]
    return objects


def test_kubectl_renames_as_these_tests_do(tmp_path: Path) -> None:
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
def test_no_service_account_publishes_another_nodes_devices(node: str | None) -> None:
    # One without the marker right, and one that may do everything.
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


UNLABELLED: list[dict[str, Any]] = [{"metadata": {}}, {"metadata": {"labels": {}}}, {}]


def admin(form: str, kind: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"adminAccess": True, "deviceClassName": "dra.gpu"}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "r", **({"exactly": asked} if form == "v1" else asked)}]}}
    return {"kind": kind, "spec": spec if kind == "ResourceClaim" else {"spec": spec}}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("form", ["v1", "v1beta1"])
def test_admin_access_is_for_labeled_namespaces(form: str, kind: str) -> None:
    labeled = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    unlabeled: dict[str, Any] = {"metadata": {}}
    for namespace in (unlabeled, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "false"}}}):
        (refusal,) = refusals("dranode-admin-access", object=admin(form, kind), namespaceObject=namespace)
        assert "label this one" in refusal
    assert refusals("dranode-admin-access", object=admin(form, kind), namespaceObject=labeled) == []


def test_claims_with_admin_access_can_be_removed_from_any_namespace() -> None:
    # Specs are immutable, and removing a claim's finalizer is an update.
    spec = the("ValidatingAdmissionPolicy", "dranode-admin-access")["spec"]
    assert [rule["operations"] for rule in spec["matchConstraints"]["resourceRules"]] == [["CREATE"]]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"devices": {}},
        {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "dra.cpu"}}]}},
        {"devices": {"requests": [{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "dra.cpu"}]}]}},
        None,
    ],
)
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_claims_without_admin_access_are_allowed_everywhere(spec: dict[str, Any] | None, kind: str) -> None:
    claim: dict[str, Any] = {"kind": kind}
    if spec is not None:
        claim["spec"] = spec if kind == "ResourceClaim" else {"spec": spec}
    for namespace in UNLABELLED:
        assert refusals("dranode-admin-access", object=claim, namespaceObject=namespace) == []


def test_one_request_with_admin_access_among_several_is_noticed() -> None:
    claim = admin("v1", "ResourceClaim")
    claim["spec"]["devices"]["requests"].insert(0, {"name": "first", "exactly": {"deviceClassName": "dra.cpu"}})
    for namespace in UNLABELLED:
        assert len(refusals("dranode-admin-access", object=claim, namespaceObject=namespace)) == 1
