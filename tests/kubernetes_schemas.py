"""Kubernetes' published schemas: the models that the `kubernetes` package generates from one release's OpenAPI."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes import client
from pydantic import BaseModel, ValidationError

# The models of two API groups have the same names, which the generator prefixes.
_MODELS: Final = {
    ("v1", "Namespace"): "V1Namespace",
    ("v1", "Pod"): "V1Pod",
    ("v1", "ServiceAccount"): "V1ServiceAccount",
    ("apps/v1", "DaemonSet"): "V1DaemonSet",
    ("apps/v1", "Deployment"): "V1Deployment",
    ("batch/v1", "Job"): "V1Job",
    ("networking.k8s.io/v1", "NetworkPolicy"): "V1NetworkPolicy",
    ("rbac.authorization.k8s.io/v1", "Role"): "V1Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "V1RoleBinding",
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): "V1ClusterRole",
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): "V1ClusterRoleBinding",
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"): "V1ValidatingAdmissionPolicy",
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"): "V1ValidatingAdmissionPolicyBinding",
    ("resource.k8s.io/v1beta2", "DeviceTaintRule"): "V1beta2DeviceTaintRule",
    ("resource.k8s.io/v1", "DeviceClass"): "V1DeviceClass",
    ("resource.k8s.io/v1", "ResourceClaim"): "ResourceV1ResourceClaim",
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): "V1ResourceClaimTemplate",
    ("resource.k8s.io/v1", "ResourceSlice"): "V1ResourceSlice",
}


def is_known(document: Any) -> bool:
    """Return whether there is a schema for a document."""
    return isinstance(document, dict) and (document.get("apiVersion"), document.get("kind")) in _MODELS


def problems(document: dict[str, Any]) -> list[str]:
    """Return why an API server would refuse a document: unknown and missing fields and wrong types, with paths."""
    name = _MODELS[document["apiVersion"], document["kind"]]
    model: type[BaseModel] = getattr(client, name)
    try:
        model.model_validate(document)
    except ValidationError as error:
        return [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    return []


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of a YAML file."""
    # libyaml is ten times as fast as PyYAML's own parser, and each test of the manifests reads them all.
    loaded = yaml.load_all(path.read_text(), yaml.CSafeLoader)
    yield from (document for document in loaded if document is not None)
