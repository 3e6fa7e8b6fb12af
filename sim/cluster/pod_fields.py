"""Finds misspelt fields of pods, and of what makes pods.

Source: the types of `k8s.io/api` 0.37 (core/v1, apps/v1, batch/v1). Only the parts that say what a pod needs and where
it may run are looked at. An API server drops a field that it does not know, or refuses it where it is asked to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from dranode.api.validation import FieldError

_CONTAINER: Final = (
    "name image command args workingDir ports envFrom env resources resizePolicy restartPolicy restartPolicyRules "
    "volumeMounts volumeDevices livenessProbe readinessProbe startupProbe lifecycle terminationMessagePath "
    "terminationMessagePolicy imagePullPolicy securityContext stdin stdinOnce tty targetContainerName"
)
_POD_AFFINITY: Final = "requiredDuringSchedulingIgnoredDuringExecution preferredDuringSchedulingIgnoredDuringExecution"
# The fields of each type, and the type of a field whose value is looked at, after a colon.
_TYPES: Final[Mapping[str, str]] = {
    "Pod": "apiVersion kind metadata:Metadata spec:PodSpec status",
    "PodTemplate": "apiVersion kind metadata:Metadata template:Template",
    "Object": "apiVersion kind metadata:Metadata spec:Spec status",
    "Metadata": (
        "name generateName namespace selfLink uid resourceVersion generation creationTimestamp deletionTimestamp "
        "deletionGracePeriodSeconds labels annotations ownerReferences finalizers managedFields"
    ),
    "Template": "metadata:Metadata spec:PodSpec",
    "PodSpec": (
        "volumes initContainers:Container containers:Container ephemeralContainers:Container restartPolicy "
        "terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy nodeSelector serviceAccountName serviceAccount "
        "automountServiceAccountToken nodeName hostNetwork hostPID hostIPC shareProcessNamespace securityContext "
        "imagePullSecrets hostname subdomain affinity:Affinity schedulerName tolerations:Toleration hostAliases "
        "priorityClassName priority dnsConfig readinessGates runtimeClassName enableServiceLinks preemptionPolicy "
        "overhead topologySpreadConstraints:Spread setHostnameAsFQDN os hostUsers schedulingGates:Gate "
        "resourceClaims:PodClaim resources:Resources hostnameOverride workloadRef schedulingGroup evictionResponders"
    ),
    "Container": _CONTAINER.replace("resources", "resources:Resources").replace("ports", "ports:Port"),
    "Resources": "limits requests claims:ContainerClaim",
    "ContainerClaim": "name request",
    "PodClaim": "name resourceClaimName resourceClaimTemplateName source",
    "Port": "name hostPort containerPort protocol hostIP",
    "Toleration": "key operator value effect tolerationSeconds",
    "Gate": "name",
    "Spread": (
        "maxSkew topologyKey whenUnsatisfiable labelSelector minDomains nodeAffinityPolicy nodeTaintsPolicy "
        "matchLabelKeys"
    ),
    "Affinity": "nodeAffinity:PodAffinity podAffinity:PodAffinity podAntiAffinity:PodAffinity",
    "PodAffinity": _POD_AFFINITY,
    "Deployment": (
        "replicas selector template:Template strategy minReadySeconds revisionHistoryLimit paused "
        "progressDeadlineSeconds"
    ),
    "StatefulSet": (
        "replicas selector template:Template volumeClaimTemplates serviceName podManagementPolicy updateStrategy "
        "revisionHistoryLimit minReadySeconds persistentVolumeClaimRetentionPolicy ordinals"
    ),
    "DaemonSet": "selector template:Template updateStrategy minReadySeconds revisionHistoryLimit",
    "ReplicaSet": "replicas minReadySeconds selector template:Template",
    "ReplicationController": "replicas minReadySeconds selector templateRef template:Template",
    "Job": (
        "parallelism completions activeDeadlineSeconds podFailurePolicy successPolicy backoffLimit "
        "backoffLimitPerIndex maxFailedIndexes failedPodsLimit selector manualSelector template:Template "
        "ttlSecondsAfterFinished completionMode suspend podReplacementPolicy managedBy scheduling"
    ),
    "CronJob": (
        "schedule timeZone startingDeadlineSeconds concurrencyPolicy suspend jobTemplate:JobTemplate "
        "successfulJobsHistoryLimit failedJobsHistoryLimit"
    ),
    "JobTemplate": "metadata:Metadata spec:Job",
}
_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    name: {field: kind for field, _, kind in (each.partition(":") for each in fields.split())}
    for name, fields in _TYPES.items()
}


def unknown_pod_fields(document: Mapping[str, Any], kind: str, template: Sequence[str]) -> Iterator[FieldError]:
    """Yield a warning for each field that a pod, or an object of a kind that makes pods, does not have.

    `template` is the path of the pod template; it is empty for a pod.
    """
    whole = kind if not template or template == ("template",) else "Object"
    yield from _unknown(document, whole, "", kind)


def _unknown(value: Any, type_name: str, path: str, kind: str) -> Iterator[FieldError]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, type_name, f"{path}[{index}]", kind)
    elif isinstance(value, Mapping):
        fields = _FIELDS[kind if type_name == "Spec" else type_name]
        for name, inner in value.items():
            where = f"{path}.{name}" if path else str(name)
            if name not in fields:
                near = get_close_matches(str(name), fields, 1)
                hint = f'; did you mean "{near[0]}"?' if near else ""
                yield FieldError(where, f"there is no such field, and API servers drop it{hint}")
            elif fields[name]:
                yield from _unknown(inner, fields[name], where, kind)
