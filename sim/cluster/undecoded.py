"""Finds all errors of a document, while a decoder stops at the first one and ignores unknown fields.

Misspelled fields of pods and their controllers are found with the types of `k8s.io/api` 0.37 (core/v1, apps/v1,
batch/v1), in the parts that decide what a pod needs and where it may run. Opaque configurations are checked by the
installed drivers.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypeAlias

from dranode.api.errors import ClaimError, DocumentError
from dranode.api.field_errors import FieldError
from dranode.driver.claims.grant import Config
from dranode.driver.claims.plugin import Plugin

CheckDocument: TypeAlias = Callable[[Mapping[str, Any]], list[FieldError]]
"""Returns the errors of a document that decodes; raises DocumentError for the first place that does not decode."""


class _Step(NamedTuple):
    """A step of a path: a field, an index or, as a `key`, an entry of a mapping."""

    value: str | int
    key: bool = False


_Steps: TypeAlias = tuple[_Step, ...]
_MOST: Final = 100
_STEP: Final = re.compile(r"\.?([^.\[\]{}]+)|\[([^\]]*)\]")
_MISSING: Final = re.compile(r"missing required field (\w+)")
# Replacements for a value that does not decode; one of them decodes there, or the value has to be removed.
_STAND_INS: Final[Sequence[Any]] = ("x", 1, False, [], {})


def all_problems(check: CheckDocument, document: Mapping[str, Any]) -> list[FieldError]:
    """Return all errors of a document, even if it does not decode.

    Each place that does not decode is an error. It is replaced by a value that decodes, until the document decodes and
    `check` finds the other errors. Errors that `check` finds in replaced places do not count.
    """
    repaired = copy.deepcopy(dict(document))
    errors: list[FieldError] = []
    while len(errors) < _MOST:
        result = _checked(check, repaired)
        if isinstance(result, list):
            places = [error.path for error in errors]
            return errors + [error for error in result if not any(_within(error.path, place) for place in places)]
        place = _place(repaired, result)
        message = result.problem
        errors.append(FieldError(_path(place), "it is required" if _MISSING.fullmatch(message) else message))
        if not _repaired(check, repaired, place):
            break
    return errors


def _checked(check: CheckDocument, document: Mapping[str, Any]) -> list[FieldError] | DocumentError:
    try:
        return check(document)
    except DocumentError as error:
        return error


def _place(document: dict[str, Any], error: DocumentError) -> _Steps:
    """Return the place of an error."""
    steps: list[_Step] = []
    for name, index in _STEP.findall(error.path):
        in_list = isinstance(_at(document, steps), list)
        number = int(index) if in_list and index.isdecimal() else None
        steps.append(_Step(name or index, key=not name) if number is None else _Step(number))
    missing = _MISSING.fullmatch(error.problem)
    return (*steps, *([_Step(missing[1])] if missing else []))


def _repaired(check: CheckDocument, document: dict[str, Any], place: _Steps) -> bool:
    """Replace or remove the value at a place so that it decodes; return False if nothing works."""
    owner = _at(document, place[:-1]) if place else None
    last = place[-1].value if place else ""
    if isinstance(owner, list):
        if not isinstance(last, int) or last >= len(owner):
            return False
    elif not isinstance(owner, dict):
        return False
    for stand_in in (*_STAND_INS, None):
        if stand_in is None and isinstance(owner, dict):
            owner.pop(last, None)
        else:
            owner[last] = copy.deepcopy(stand_in)  # type: ignore[index] # an index of a list, a name of a mapping
        result = _checked(check, document)
        if isinstance(result, list) or _place(document, result)[: len(place)] != place:
            return True
    return False


def _at(document: Any, steps: Sequence[_Step]) -> Any:
    try:
        for step in steps:
            document = document[step.value]
    except (KeyError, IndexError, TypeError):
        return None
    return document


def _path(steps: _Steps) -> str:
    named = (f".{step.value}" if isinstance(step.value, str) and not step.key else f"[{step.value}]" for step in steps)
    return "".join(named).removeprefix(".")


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith((f"{place}.", f"{place}["))


_CONTAINER: Final = (
    "name image command args workingDir ports envFrom env resources resizePolicy restartPolicy restartPolicyRules "
    "volumeMounts volumeDevices livenessProbe readinessProbe startupProbe lifecycle terminationMessagePath "
    "terminationMessagePolicy imagePullPolicy securityContext stdin stdinOnce tty targetContainerName"
)
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
# The fields of each type; after a colon, the type of a field whose value is checked.
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
    "PodClaim": "name resourceClaimName resourceClaimTemplateName",
    "Port": "name hostPort containerPort protocol hostIP",
    "Toleration": "key operator value effect tolerationSeconds",
    "Gate": "name",
    "Spread": (
        "maxSkew topologyKey whenUnsatisfiable labelSelector:LabelSelector minDomains nodeAffinityPolicy "
        "nodeTaintsPolicy matchLabelKeys"
    ),
    "Affinity": "nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAffinity",
    "NodeAffinity": f"{_REQUIRED}:NodeSelector {_PREFERRED}:PreferredTerm",
    "NodeSelector": "nodeSelectorTerms:NodeTerm",
    "PreferredTerm": "weight preference:NodeTerm",
    "NodeTerm": "matchExpressions:Requirement matchFields:Requirement",
    "Requirement": "key operator values",
    "PodAffinity": f"{_REQUIRED}:PodTerm {_PREFERRED}:WeightedTerm",
    "WeightedTerm": "weight podAffinityTerm:PodTerm",
    "PodTerm": (
        "labelSelector:LabelSelector namespaces topologyKey namespaceSelector:LabelSelector matchLabelKeys "
        "mismatchLabelKeys"
    ),
    "LabelSelector": "matchLabels matchExpressions:Requirement",
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
    name: {field: kind for field, _, kind in (entry.partition(":") for entry in fields.split())}
    for name, fields in _TYPES.items()
}


def unknown_pod_fields(document: Mapping[str, Any], kind: str, template: Sequence[str]) -> Iterator[FieldError]:
    """Yield a warning for each unknown field of a pod or a controller.

    `template` is the path of the pod template; it is empty for a pod.
    """
    top = kind if not template or template == ("template",) else "Object"
    yield from _unknown(document, top, "", kind)


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
                if (type_name, name) == ("PodClaim", "source"):
                    hint = "; Kubernetes 1.31 removed it, so write its fields beside the name"
                yield FieldError(where, f"there is no such field, so the API server drops it{hint}")
            elif fields[name]:
                yield from _unknown(inner, fields[name], where, kind)


def parameter_errors(plugin: Plugin, origin: Any, parameters: Any, path: str) -> Iterator[FieldError]:
    """Yield every error of opaque parameters: a driver reports only the first, so wrong fields are removed in turn."""
    removed: list[str] = []
    while (error := _first_error(plugin, origin, parameters, path)) is not None:
        # An error about a field that was removed does not count. The list of known fields at the end of a message may
        # name it, too, so it is cut off.
        message = error.message.partition("; there are ")[0]
        if not any(re.search(rf"\b{re.escape(name)}\b", message) for name in removed):
            yield error
        name = _wrong_field(error, path, parameters)
        if name is None:
            return
        removed.append(name)
        parameters = {key: value for key, value in parameters.items() if key != name}


def _wrong_field(error: FieldError, path: str, parameters: Any) -> str | None:
    """Return the field with the error, if the configuration can be read without it."""
    unknown = re.search(r"\bunknown field (\w+)", error.message)
    below = error.path.removeprefix(path).removeprefix(".")
    name = unknown[1] if unknown and not below else re.split(r"[.\[]", below)[0]
    removable = isinstance(parameters, Mapping) and name in parameters and name not in ("apiVersion", "kind")
    return name if removable else None


def _first_error(plugin: Plugin, origin: Any, parameters: Any, path: str) -> FieldError | None:
    try:
        plugin.parse_config(Config(origin, parameters, path or "parameters"))
    except ClaimError as error:
        text = str(error)
        after_path = text.removeprefix(path or "parameters")
        where, colon, message = after_path.partition(": ")
        if colon and after_path != text and where[:1] in ("", ".", "["):
            return FieldError(f"{path}{where}" if path else where.removeprefix("."), message)
        return FieldError(path, after_path.strip())
    return None
