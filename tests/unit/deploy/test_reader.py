"""The rights of `deploy/reader`: what `explain`, `report`, `fit` and the plug-in ask for, and no right to write."""

from dranode.api.documents import API_GROUP
from dranode.show.cluster_objects import RESOURCES, ROOTS
from tests.fakes.kustomize import DEPLOY
from tests.kubernetes_schemas import documents, problems

READER = DEPLOY / "reader"


def rights() -> set[tuple[str, str]]:
    (role,) = documents(READER / "reader.yaml")
    return {
        (group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if rule["verbs"] == ["get", "list"]
    }


def test_the_manifests_follow_kubernetes_schemas() -> None:
    (role,) = documents(READER / "reader.yaml")
    assert problems(role) == []
    (kustomization,) = documents(READER / "kustomization.yaml")
    assert kustomization["resources"] == sorted(
        path.name for path in READER.glob("*.yaml") if path.name != "kustomization.yaml"
    )


def test_no_rule_allows_writing() -> None:
    (role,) = documents(READER / "reader.yaml")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list"}


def test_the_rights_cover_exactly_what_is_read() -> None:
    groups = {"": API_GROUP, "/api/v1": ""}
    paths = {kind: path or ROOTS.get(kind, ("",))[0] for kind, (path, _) in RESOURCES.items()}
    asked = {
        (groups.get(paths[kind], paths[kind].removeprefix("/apis/").partition("/")[0]), name)
        for kind, (_, name) in RESOURCES.items()
    }
    assert rights() == asked
