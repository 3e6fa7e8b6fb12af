"""What `check` says about containers and pods that share a claim although its driver does not allow it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dranode.sim.cli.check import command

API = "resource.k8s.io/v1"


def _devices(driver_class: str = "dra.cpu", *, sharing: str | None = None, requests: tuple[str, ...] = ("r",)) -> Any:
    exactly = {"deviceClassName": driver_class}
    devices: dict[str, Any] = {"requests": [{"name": name, "exactly": exactly} for name in requests]}
    if sharing is not None:
        kind = {"dra.cpu": "CPUConfig", "dra.memory": "MemoryConfig"}[driver_class]
        parameters = {"apiVersion": f"{driver_class}/v1alpha1", "kind": kind, "sharing": sharing}
        devices["config"] = [{"opaque": {"driver": driver_class, "parameters": parameters}}]
    return devices


def _claim(devices: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": devices}}


def _template(devices: Any) -> dict[str, Any]:
    spec = {"spec": {"devices": devices}}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": "c"}, "spec": spec}


def _container(name: str, request: str | None = None, **more: Any) -> dict[str, Any]:
    entry = {"name": "mine"} | ({"request": request} if request else {})
    return {"name": name, "image": "i", "resources": {"claims": [entry]}, **more}


def _spec(*containers: dict[str, Any], template: bool = False, **more: Any) -> dict[str, Any]:
    field = "resourceClaimTemplateName" if template else "resourceClaimName"
    return {"resourceClaims": [{"name": "mine", field: "c"}], "containers": list(containers), **more}


def _pod(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _replicas(spec: dict[str, Any], number: int) -> dict[str, Any]:
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    made = {"replicas": number, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": made}


A, B = _container("a"), _container("b")
SIDECAR = _container("s", restartPolicy="Always")
TWO = "spec.containers[1].resources.claims[0]"
NAMED = "spec.resourceClaims[0].resourceClaimName"
CASES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "two containers": ([_claim(_devices()), _pod("p", _spec(A, B))], [TWO]),
    "two containers with a template": ([_template(_devices()), _pod("p", _spec(A, B, template=True))], [TWO]),
    "two containers of memory": ([_claim(_devices("dra.memory")), _pod("p", _spec(A, B))], [TWO]),
    "two containers that may": ([_claim(_devices(sharing="pod")), _pod("p", _spec(A, B))], []),
    "two containers that say what is the default": (
        [_claim(_devices(sharing="container")), _pod("p", _spec(A, B))],
        [TWO],
    ),
    "two containers with a GPU": ([_claim(_devices("dra.gpu")), _pod("p", _spec(A, B))], []),
    "a request each": (
        [_claim(_devices(requests=("x", "z"))), _pod("p", _spec(_container("a", "x"), _container("b", "z")))],
        [],
    ),
    "all and one of them": (
        [_claim(_devices(requests=("x", "z"))), _pod("p", _spec(A, _container("b", "z")))],
        [TWO],
    ),
    "an init container before": ([_claim(_devices()), _pod("p", _spec(B, initContainers=[A]))], []),
    "a sidecar beside": (
        [_claim(_devices()), _pod("p", _spec(B, initContainers=[SIDECAR]))],
        ["spec.containers[0].resources.claims[0]"],
    ),
    "an init container beside a sidecar": (
        [_claim(_devices()), _pod("p", _spec({"name": "m", "image": "i"}, initContainers=[SIDECAR, A]))],
        ["spec.initContainers[1].resources.claims[0]"],
    ),
    "two pods": ([_claim(_devices(sharing="pod")), _pod("p", _spec(A)), _pod("q", _spec(A))], [NAMED]),
    "two pods, one of which does not use it": (
        [_claim(_devices()), _pod("p", _spec(A)), _pod("q", _spec({"name": "a", "image": "i"}))],
        [],
    ),
    "two pods with a template": (
        [_template(_devices()), *(_pod(name, _spec(A, template=True)) for name in "pq")],
        [],
    ),
    "replicas": ([_claim(_devices()), _replicas(_spec(A), 2)], [f"spec.template.{NAMED}"]),
    "one replica": ([_claim(_devices()), _replicas(_spec(A), 1)], []),
}


@pytest.mark.parametrize(("documents", "paths"), CASES.values(), ids=CASES)
def test_a_claim_is_shared_only_as_its_driver_allows(
    tmp_path: Path, documents: list[dict[str, Any]], paths: list[str]
) -> None:
    file = tmp_path / "documents.yaml"
    file.write_text(yaml.safe_dump_all(documents), "utf-8")
    result = CliRunner().invoke(command, [str(file), "-o", "json"])
    assert [error["path"] for verdict in json.loads(result.stdout) for error in verdict["errors"]] == paths
    assert result.exit_code == bool(paths)
