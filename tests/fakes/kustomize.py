"""Builds the manifests of `deploy/` as `kubectl kustomize` does, as far as they use it."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes_schemas import documents

DEPLOY = Path(__file__).parents[2] / "deploy"


COMPONENTS = sorted(path.parent for path in DEPLOY.glob("components/*/kustomization.yaml"))


KUSTOMIZATION_KEYS = {"apiVersion", "kind", "resources", "labels", "patches", "images", "configurations"}


def kustomization(folder: Path) -> dict[str, Any]:
    (document,) = documents(folder / "kustomization.yaml")
    return document


def built(folder: Path) -> Iterator[dict[str, Any]]:
    """The objects of `deploy/` with one component: resources, and JSON patches of lists and maps."""
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
        for operation in yaml.load(patch["patch"], yaml.CSafeLoader):
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


def by_kubectl(place: Path, components: Sequence[Path] = (), **settings: str) -> list[dict[str, Any]]:
    """Build somebody's own overlay with kubectl."""
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
