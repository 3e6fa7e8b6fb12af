"""Kubernetes documents in manifests: where they are, checks of kind, API version and name, and generated names."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from dranode.api.documents import API_GROUP
from dranode.api.errors import DocumentError


class SourceDocument(msgspec.Struct, frozen=True):
    """One Kubernetes document and where it was found.

    Attributes:
        file: the file's name in the command line; `-` is the standard input.
        index: its number among the documents of the file, from 0; every item of a `List` is counted.
        document: the plain document; it has a `kind`, which is a string.
    """

    file: str
    index: int
    document: dict[str, Any]

    @property
    def kind(self) -> str:
        """Return the kind (`ResourceClaim`, `Pod`), with the group for a custom resource (`JobSet.jobset.x-k8s.io`).

        The group distinguishes a custom resource from a kind of Kubernetes with the same name.
        """
        kind, group = str(self.document["kind"]), custom_group(self.document.get("apiVersion"))
        return f"{kind}.{group}" if group else kind

    @property
    def name(self) -> str:
        """Return `metadata.name`, else `metadata.generateName`, else an empty string."""
        metadata = self.document.get("metadata")
        if not isinstance(metadata, dict):
            return ""
        return str(metadata.get("name") or metadata.get("generateName") or "")

    @property
    def place(self) -> str:
        """Return where it was found, for messages: `claims.yaml, document 2 (ResourceClaim a)`."""
        return f"{self.file}, document {self.index + 1} ({self.kind} {self.name})".replace(" )", ")")

    @contextmanager
    def names_errors(self) -> Iterator[None]:
        """Put the place before the message of a DocumentError that is raised inside; its path stays."""
        try:
            yield
        except DocumentError as error:
            placed = DocumentError(f"{self.place}: {error}")
            placed.path = error.path
            raise placed from error


_VERSION: Final = re.compile(r"v[1-9][0-9]*(?:(?:alpha|beta)[1-9][0-9]*)?", re.ASCII)
# Their beta versions were removed: of apps in Kubernetes 1.16, of batch in 1.25.
_V1_ALONE: Final = ("", "apps", "batch")
_NAMES: Final = ("name", "generateName", "namespace", "uid")


def check_header(document: Mapping[str, Any]) -> None:
    """Reject a document whose kind or API version does not exist, or whose names are not strings.

    Raises:
        DocumentError: the document is rejected; the error has the path of the wrong field.
    """
    version = document.get("apiVersion")
    if version is not None and not isinstance(version, str):
        raise DocumentError(f"{version!r} is not a string", "apiVersion")
    check_kind(document)
    if version is not None and not custom_group(version):  # custom resources may name their versions freely
        _check_version(version)
    metadata = document.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise DocumentError("an object is expected", "metadata")
    # YAML reads an unquoted name such as 1234 as a number.
    for name in _NAMES:
        if not isinstance(metadata.get(name) or "", str):
            raise DocumentError(f"{metadata[name]!r} is not a string; quote it", f"metadata.{name}")


def _check_version(version: str) -> None:
    group, _, short = version.rpartition("/")
    if _VERSION.fullmatch(short) is None:
        raise DocumentError(f'"{version}" is not an API version such as v1 or resource.k8s.io/v1', "apiVersion")
    if group in _V1_ALONE and short != "v1":
        owner = f"the API group {group}" if group else "the core API"
        raise DocumentError(f'{owner} has v1, not "{short}"', "apiVersion")


def object_key(document: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return group, kind, namespace and name of an object; None if it has no name."""
    metadata = document.get("metadata") or {}
    name = metadata.get("name")
    if not name:
        return None
    # The version is left out: v1 and v1beta1 of one group show the same object.
    group = str(document.get("apiVersion") or "").rpartition("/")[0]
    return group, str(document["kind"]), str(metadata.get("namespace") or "default"), str(name)


def check_unique(documents: Iterable[SourceDocument]) -> None:
    """Reject two documents of the same object.

    Raises:
        DocumentError: there are two; the error names both documents.
    """
    seen: dict[tuple[str, ...], SourceDocument] = {}
    for source in documents:
        key = object_key(source.document)
        if key is not None and (first := seen.setdefault(key, source)) is not source:
            problem = f"a {source.kind} of this name already exists in {first.place}; keep one"
            raise DocumentError(f"{source.place}: metadata.name: {problem}")


# The API server generates names from a prefix and five random characters (`SimpleNameGenerator` of k8s.io/apiserver).
# Here the characters come from a seed, so that the same documents always get the same names.

# An alphabet that cannot form words (`rand.String` of apimachinery).
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE: Final = 58
_RANDOM: Final = 5


def generated_name(base: str, seed: str, taken: Callable[[str], bool] = lambda _: False) -> str:
    """Return `base`, cut to 58 characters, with five more that depend on `seed`; the name is not `taken`."""
    attempt = 0
    while taken(name := base[:_LONGEST_BASE] + _characters(f"{seed} {attempt}")):
        attempt += 1
    return name


def template_hash(text: str) -> str:
    """Return a hash of a text in up to ten characters, in the form of a Deployment's `pod-template-hash`."""
    # Kubernetes encodes a number of 32 bits in this way (`SafeEncodeString` of apimachinery), but hashes differently.
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(number))


def with_generated_names(
    documents: Iterable[SourceDocument], around: Iterable[SourceDocument] = ()
) -> Iterator[SourceDocument]:
    """Yield the documents; one with `generateName` and no name gets a name in the form that the API server generates.

    The name is unique among the documents and those `around` them.
    """
    documents = tuple(documents)
    known = {object_key(source.document) for source in (*documents, *around)}
    for number, source in enumerate(documents):
        base = (source.document.get("metadata") or {}).get("generateName")
        if not base or object_key(source.document) is not None:
            yield source
            continue

        # Bound as defaults, because the loop gives these variables other values.
        def named(name: str, document: dict[str, Any] = source.document) -> dict[str, Any]:
            return {**document, "metadata": {**document["metadata"], "name": name}}

        def taken(name: str, named: Callable[[str], dict[str, Any]] = named) -> bool:
            return object_key(named(name)) in known

        document = named(generated_name(base, f"{source.kind} {base} {number}", taken))
        known.add(object_key(document))
        yield SourceDocument(source.file, source.index, document)


def _characters(seed: str) -> str:
    digest = hashlib.sha256(seed.encode(errors="surrogatepass")).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:_RANDOM])


# The program ignores kinds that it does not need. A misspelled kind would be ignored too, so it is rejected.

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
# A group that is this similar to a known one with the same kind is most likely misspelled (ratio of difflib).
_RESEMBLES: Final = 0.85
# The groups in which Kubernetes projects publish custom resources: `scheduling.x-k8s.io` is not misspelled.
_PROJECTS: Final = ".x-k8s.io"


def custom_group(version: object) -> str:
    """Return the API group of a custom resource; empty if the group is known here, or if there is no version."""
    if not isinstance(version, str):
        return ""
    group = version.rpartition("/")[0]
    return "" if group in _OF_GROUP else group


def check_kind(document: Mapping[str, Any]) -> None:
    """Reject a kind that does not exist in its group, or in any group if there is no `apiVersion`.

    Custom resources are accepted, except in a group that is most likely misspelled.

    Raises:
        DocumentError: the kind does not exist; the error suggests what may be meant.
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
    # Only a group that has this kind is suggested: a custom resource may be in a group with a similar name.
    having = [known for known, kinds in _OF_GROUP.items() if known and kind in kinds]
    near = get_close_matches(group, having, 1, _RESEMBLES)
    if near and group.endswith(_PROJECTS) <= near[0].endswith(_PROJECTS):
        raise DocumentError(f'the API group "{group}" is unknown; did you mean "{near[0]}"', "apiVersion")
    if "." not in group:  # groups of custom resources are domains
        hint = f"; {kind} is in {' and in '.join(having)}" if having else ""
        raise DocumentError(f'there is no API group "{group}"{hint}', "apiVersion")


# Kinds of classic DRA, which Kubernetes 1.32 removed (KEP-3063); a class parameter is now a configuration.
_REPLACED: Final = {
    "ResourceClass": "DeviceClass",
    "ResourceClassParameters": "DeviceClass",
    "ResourceClaimParameters": "ResourceClaim",
}


def _no_such(kind: str, owner: str, kinds: frozenset[str]) -> str:
    """Suggest a similar kind of the same group, or else the groups that have this kind."""
    near = [_REPLACED[kind]] if kind in _REPLACED else get_close_matches(kind, kinds, 1)
    others = [group or "the core API (v1)" for group, known in _OF_GROUP.items() if kind in known]
    hint = f'; did you mean "{near[0]}"' if near else f"; it is in {' and in '.join(others)}" if others else ""
    return f'{owner} has no kind "{kind}"{hint}'
