"""The folder in place of an API server: long names, and objects that cannot be read."""

from pathlib import Path

import pytest

from dranode.api.errors import DocumentError, DranodeError
from dranode.api.resource import ObjectMeta, ResourceClaim
from dranode.driver.claims.held import ClaimRef
from dranode.driver.local.store import Store

NAMESPACE = "s" * 63


def named(name: str) -> ResourceClaim:
    return ResourceClaim(metadata=ObjectMeta(namespace=NAMESPACE, name=name, uid=f"uid {name[-1]}"))


def test_the_longest_names_that_kubernetes_allows_are_kept_apart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("n" * 252 + "a", "n" * 252 + "b", "ü" * 253):
        store.put(named(name))
    assert len(store.list(ResourceClaim)) == 3
    found = store.find(ResourceClaim, NAMESPACE, "n" * 252 + "b")
    assert found is not None
    assert found.metadata.uid == "uid b"
    store.remove(ResourceClaim, NAMESPACE, "n" * 252 + "b")
    assert store.find(ResourceClaim, NAMESPACE, "n" * 252 + "b") is None


def test_an_unreadable_claim_is_an_error_for_that_claim(tmp_path: Path) -> None:
    (tmp_path / "resourceclaims").mkdir()
    (tmp_path / "resourceclaims" / "default.a.yaml").mkdir()
    (tmp_path / "resourceclaims" / "default.b.yaml").write_bytes(b"\xff: [")
    (tmp_path / "resourceclaims" / "default.c.yaml").write_text("[]")
    refs = tuple(ClaimRef("default", name, name) for name in ("a", "b", "c", "x/y"))
    answers = Store(tmp_path).get(refs)
    assert set(answers) == set(refs)
    assert all(isinstance(answer, DocumentError) for answer in answers.values())


def test_a_claim_with_a_repeated_key_is_refused_and_a_date_is_a_string(tmp_path: Path) -> None:
    path = tmp_path / "resourceclaims" / "default.a.yaml"
    path.parent.mkdir()
    head = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n"
    path.write_text(f"{head}metadata: {{name: a, namespace: default, uid: one, uid: two}}\n")
    with pytest.raises(DocumentError, match='the key "uid" is given twice'):
        Store(tmp_path).find(ResourceClaim, "default", "a")
    path.write_text(f"{head}metadata: {{name: a, namespace: default, uid: 2026-11-26}}\n")
    found = Store(tmp_path).find(ResourceClaim, "default", "a")
    assert found is not None
    assert found.metadata.uid == "2026-11-26"


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "resourceclaims").write_text("not a folder")
    with pytest.raises(DocumentError, match="resourceclaims cannot be read: Not a directory"):
        Store(tmp_path).list(ResourceClaim)


def test_an_object_that_is_removed_during_a_read_is_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("a", "b"):
        store.put(named(name))
    (tmp_path / "resourceclaims" / f"{NAMESPACE}.gone.yaml").symlink_to(tmp_path / "nowhere")
    assert [claim.metadata.name for claim in store.list(ResourceClaim)] == ["a", "b"]


def test_an_object_that_cannot_be_removed_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "resourceclaims" / "default.a.yaml").mkdir(parents=True)
    with pytest.raises(DranodeError, match=r"default\.a\.yaml cannot be removed: Is a directory"):
        Store(tmp_path).remove(ResourceClaim, "default", "a")
