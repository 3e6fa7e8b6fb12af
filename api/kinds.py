"""The kinds of Kubernetes documents: a misspelt kind is refused, and not ignored like a kind without a meaning here."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from dranode.api.documents import API_GROUP
from dranode.api.errors import DocumentError

# The kinds of Kubernetes 1.37 that can be created, or that `kubectl get` prints, by API group.
_KINDS: Final = {
    API_GROUP: (
        "DeviceClass DeviceTaintRule ResourceClaim ResourceClaimTemplate ResourcePoolStatusRequest ResourceSlice"
    ),
    "": (
        "Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod "
        "PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount"
    ),
    "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "batch": "CronJob Job",
    "scheduling.k8s.io": "CompositePodGroup PodGroup PriorityClass Workload",
    "kueue.x-k8s.io": (
        "AdmissionCheck ClusterQueue Cohort LocalQueue MultiKueueCluster MultiKueueConfig ProvisioningRequestConfig "
        "ResourceFlavor Topology Workload WorkloadPriorityClass"
    ),
    "config.kueue.x-k8s.io": "Configuration",
    "admissionregistration.k8s.io": (
        "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration ValidatingAdmissionPolicy "
        "ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration"
    ),
    "apiextensions.k8s.io": "CustomResourceDefinition",
    "apiregistration.k8s.io": "APIService",
    "autoscaling": "HorizontalPodAutoscaler",
    "certificates.k8s.io": "CertificateSigningRequest ClusterTrustBundle PodCertificateRequest",
    "coordination.k8s.io": "Lease LeaseCandidate",
    "discovery.k8s.io": "EndpointSlice",
    "events.k8s.io": "Event",
    "flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration",
    "networking.k8s.io": "IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR",
    "node.k8s.io": "RuntimeClass",
    "policy": "PodDisruptionBudget",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "storage.k8s.io": "CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass",
    "kustomize.config.k8s.io": "Component Kustomization",
}
_OF_GROUP: Final = {group: frozenset(kinds.split()) for group, kinds in _KINDS.items()}
_ALL: Final = frozenset().union(*_OF_GROUP.values())
# A group that resembles one of these so much is a misspelt one, if it has that one's kind.
_RESEMBLES: Final = 0.85
# The groups in which the projects of Kubernetes publish custom resources: `scheduling.x-k8s.io` is none of ours.
_PROJECTS: Final = ".x-k8s.io"


def custom_group(version: object) -> str:
    """Return the API group of a custom resource; empty if the version is of a group that is known here, or none."""
    if not isinstance(version, str):
        return ""
    group = version.rpartition("/")[0]
    return "" if group in _OF_GROUP else group


def check_kind(document: Mapping[str, Any]) -> None:
    """Refuse a kind that does not exist in its group, or in any group if there is no `apiVersion`.

    A custom resource is taken; a group that is most likely a misspelt one is not.

    Raises:
        DocumentError: the kind does not exist; the error says where it is, and which kind may be meant.
    """
    version, kind = document.get("apiVersion"), str(document["kind"])
    if version is None:
        if kind not in _ALL:
            raise DocumentError(_no_such(kind, "Kubernetes", _ALL), "kind")
        return
    group = str(version).rpartition("/")[0]
    kinds = _OF_GROUP.get(group)
    if kinds is None:
        _check_custom_group(group, kind)
    elif kind not in kinds:
        raise DocumentError(_no_such(kind, f"the API group {group}" if group else "the core API", kinds), "kind")


def _check_custom_group(group: str, kind: str) -> None:
    having = [known for known, kinds in _OF_GROUP.items() if known and kind in kinds]
    near = get_close_matches(group, having, 1, _RESEMBLES)
    if near and group.endswith(_PROJECTS) <= near[0].endswith(_PROJECTS):
        raise DocumentError(f'the API group "{group}" is not known here; did you mean "{near[0]}"', "apiVersion")
    if "." not in group:  # custom resources have a domain
        hint = f"; {kind} is of {' and of '.join(having)}" if having else ""
        raise DocumentError(f'there is no API group "{group}"{hint}', "apiVersion")


def _no_such(kind: str, where: str, kinds: frozenset[str]) -> str:
    """Name a kind of the same group that is alike, or else the groups that have the kind."""
    near = get_close_matches(kind, kinds, 1)
    others = [group or "the core API (v1)" for group, known in _OF_GROUP.items() if kind in known]
    hint = f'; did you mean "{near[0]}"' if near else f"; it is of {' and of '.join(others)}" if others else ""
    return f'{where} has no kind "{kind}"{hint}'
