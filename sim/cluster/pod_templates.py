"""Finds pod templates and the names of claims in documents of any kind, also of kinds that are not simulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dranode.api.errors import number_of
from dranode.api.manifests import SourceDocument, custom_group
from dranode.sim.cluster.controllers import POD_TEMPLATES
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.scheduler.amounts import DEFAULT_NAMESPACE

# Kinds of Kubernetes and Kueue with pod templates that do not create pods themselves.
_TEMPLATES_ALONE: Final = ("PodTemplate", "Workload")
# Kinds that name claims for their pods or their group of pods.
_NAMING: Final = frozenset((*POD_TEMPLATES, *_TEMPLATES_ALONE, "PodGroup", "CompositePodGroup"))
_REFERENCES: Final = (
    ("resourceClaimName", "ResourceClaim"),
    ("resourceClaimTemplateName", "ResourceClaimTemplate"),
)


def ignored_documents(sources: Iterable[SourceDocument], *, queued: bool = False) -> tuple[str, ...]:
    """Return a sentence for each kind of ignored objects; with `queued`, Kueue's Workloads are not ignored."""
    counts: dict[str, int] = {}
    templates: set[str] = set()
    for source in sources:
        custom = custom_group(source.document.get("apiVersion"))
        if not custom and (source.kind not in _TEMPLATES_ALONE or (queued and source.kind == "Workload")):
            continue
        has_template = any(True for _ in _pod_templates(source.document))
        if has_template:
            templates.add(source.kind)
        if has_template or custom:
            counts[source.kind] = counts.get(source.kind, 0) + 1
    return tuple(_sentence(kind, count, templates=kind in templates) for kind, count in counts.items())


def claims_named(sources: Iterable[SourceDocument]) -> Iterator[tuple[str, ClaimKey]]:
    """Yield the claims and templates that the documents name for pods, including pods that are not simulated."""
    for source in sources:
        if source.kind not in _NAMING and not custom_group(source.document.get("apiVersion")):
            continue
        metadata = source.document.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
        for mapping in _mappings(source.document):
            entries = mapping.get("resourceClaims")
            for entry in entries if isinstance(entries, list) else ():
                for name, kind in _REFERENCES:
                    if isinstance(entry, Mapping) and isinstance(entry.get(name), str):
                        yield kind, ClaimKey(str(namespace or DEFAULT_NAMESPACE), entry[name])


def _sentence(kind: str, count: int, *, templates: bool) -> str:
    objects = f"{number_of(count, 'object')} {'is' if count == 1 else 'are'} ignored"
    if templates:
        hint = "; local --queues admits Kueue's" if kind == "Workload" else ""
        return f"{kind}: {objects}, and no pods are made of {'its' if count == 1 else 'their'} pod templates{hint}"
    return f"{kind}: {objects}, because custom resources are not simulated"


def _pod_templates(document: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the pod specs anywhere in a document: objects with a list of containers."""
    for mapping in _mappings(document):
        containers = mapping.get("containers")
        if isinstance(containers, list) and any(isinstance(container, Mapping) for container in containers):
            yield mapping


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a document, at any depth."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
