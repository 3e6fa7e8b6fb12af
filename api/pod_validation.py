"""The rules by which a pod may use ResourceClaims, and whether the requests that it names are there.

Source: validation of `v1` Pods in Kubernetes 1.36 (`spec.resourceClaims`, `resources.claims`). No part of a
cluster checks that a request exists: kubelet gives a container that names an unknown request no device at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

from dranode.api.names import is_dns_label
from dranode.api.resource import ContainerClaim, Pod, PodResourceClaim
from dranode.api.validation import FieldError

RequestsOf: TypeAlias = Callable[[PodResourceClaim], Collection[str] | None]
"""Returns the requests of the claim or template behind an entry, or None if that is unknown."""


def pod_errors(pod: Pod, requests_of: RequestsOf) -> Iterator[FieldError]:
    """Yield every error in how the pod uses claims; the rest of the pod is not judged."""
    spec = pod.spec
    entries: dict[str, PodResourceClaim] = {}
    for index, entry in enumerate(spec.resource_claims):
        yield from _entry(entry, entries, f"spec.resourceClaims[{index}]")
        entries.setdefault(entry.name, entry)
    if spec.resources.claims:
        yield FieldError("spec.resources.claims", "claims may not be set for a whole pod; name them in its containers")
    for field, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(containers):
            path = f"spec.{field}[{index}].resources.claims"
            yield from _uses(container.resources.claims, entries, requests_of, path)


def _entry(entry: PodResourceClaim, known: Collection[str], path: str) -> Iterator[FieldError]:
    if entry.name in known:
        yield FieldError(f"{path}.name", f'"{entry.name}" is there already')
    elif not is_dns_label(entry.name):
        yield FieldError(f"{path}.name", f'"{entry.name}" is not a DNS label')
    given = [name for name in (entry.resource_claim_name, entry.resource_claim_template_name) if name is not None]
    if len(given) != 1:
        have = "both are set" if given else "none is set"
        yield FieldError(
            path, f"exactly one of resourceClaimName and resourceClaimTemplateName is required, but {have}"
        )


def _uses(
    uses: Sequence[ContainerClaim], entries: dict[str, PodResourceClaim], requests_of: RequestsOf, path: str
) -> Iterator[FieldError]:
    seen: set[tuple[str, str]] = set()
    for index, use in enumerate(uses):
        where = f"{path}[{index}]"
        if any(
            name == use.name and (not request or request == use.request or not use.request) for name, request in seen
        ):
            yield FieldError(where, f'"{use.name}" is used already by an entry before; keep one of them')
        seen.add((use.name, use.request))
        if use.name not in entries:
            there = ", ".join(entries) or "none"
            yield FieldError(f"{where}.name", f'"{use.name}" is no entry of spec.resourceClaims; there are: {there}')
            continue
        requests = requests_of(entries[use.name])
        if use.request and not is_dns_label(use.request):
            more = ": name the request itself, whichever of its alternatives is taken" if "/" in use.request else ""
            yield FieldError(f"{where}.request", f'"{use.request}" is not a DNS label{more}')
        elif use.request and requests is not None and use.request not in requests:
            there = ", ".join(requests) or "none"
            yield FieldError(f"{where}.request", f'the claim has no request "{use.request}"; there are: {there}')
