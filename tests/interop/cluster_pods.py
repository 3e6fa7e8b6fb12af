"""Pods that say on which CPUs they run, and the claims that they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.interop.api import Document
from tests.interop.cluster_node import MAIN, mark
from tests.interop.image import IMAGE

_REQUEST = "cpus"
_SLEEP = "trap exit TERM; : {mark} while :; do /busybox sleep 1; done"
# What a container sees of itself, for its termination message. A shell drops variables with a hyphen in their name, as
# in a UID, so they are read of the process that the runtime started.
_LOOK = """
/busybox sed -n 's/^Cpus_allowed_list:[[:space:]]*/allowed: /p' /proc/self/status
/busybox tr '\\0' '\\n' < /proc/1/environ | /busybox sed -n 's/^DRA_CPUSET_[^=]*=/told: /p'
for file in $(/busybox find /var/run/kubernetes.io/dra-device-attributes -name '*-metadata.json'); do
    echo "described: $(/busybox tr -d '\\n' < $file)"
done
"""


def manifests(name: str, cpus: int, config: Document) -> Iterator[Document]:
    """A pod that sleeps, and its claim if it has one."""
    if not cpus:
        yield pod(name)
        return
    yield claim(name, cpus, config=config)
    yield pod(name, claims={name: {"resourceClaimName": name}})


def exactly(cpus: int, **more: Any) -> Document:
    """A request for so many CPUs of a device that others may have part of."""
    return {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": str(cpus)}}, **more}


def claim_spec(request: Mapping[str, Any], config: Document | None = None) -> Document:
    """The spec of a claim of one request, `{"exactly": ...}` or `{"firstAvailable": ...}`, with this CPUConfig."""
    devices: Document = {"requests": [{"name": _REQUEST, **request}]}
    if config is not None:
        parameters = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", **config}
        devices["config"] = [{"opaque": {"driver": "dra.cpu", "parameters": parameters}}]
    return {"devices": devices}


def claim(name: str, cpus: int = 1, *, config: Document | None = None) -> Document:
    """A claim of so many CPUs."""
    return document("ResourceClaim", name, claim_spec({"exactly": exactly(cpus)}, config))


def template(name: str, cpus: int = 1) -> Document:
    """A template of claims of so many CPUs."""
    return document("ResourceClaimTemplate", name, {"spec": claim_spec({"exactly": exactly(cpus)})})


def document(kind: str, name: str, spec: Document, namespace: str = "default") -> Document:
    """An object of resource.k8s.io/v1."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def sleeper(name: str = MAIN, claims: Sequence[str] = (), *, sidecar: bool = False, **resources: Document) -> Document:
    """A container that sleeps, by a shell that is told from others by the container's name.

    Args:
        name: its name.
        claims: of its pod, those that it has.
        sidecar: for an initContainer that runs beside the others.
        resources: its `requests` and `limits`.
    """
    made = _container(name, _SLEEP.format(mark=mark(name)), claims)
    if sidecar:
        made["restartPolicy"] = "Always"
    if resources:
        made.setdefault("resources", {}).update(resources)
    return made


def looker(name: str, claims: Sequence[str] = ()) -> Document:
    """A container that ends with what it sees of itself as its termination message."""
    return _container(name, f"({_LOOK}) > /dev/termination-log", claims)


def pod(
    name: str,
    containers: Sequence[Document] = (),
    *,
    claims: Mapping[str, Document] | None = None,
    first: Sequence[Document] = (),
    namespace: str = "default",
) -> Document:
    """A pod.

    Args:
        name: its name.
        containers: those that run; none for one that sleeps and has all claims.
        claims: where each of its claims comes from, by the name in the pod.
        first: its initContainers.
        namespace: the pod's.
    """
    spec: Document = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": list(containers) or [sleeper(claims=list(claims or {}))],
    }
    if first:
        spec["initContainers"] = list(first)
    if claims:
        spec["resourceClaims"] = [{"name": each, **source} for each, source in claims.items()]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _container(name: str, script: str, claims: Sequence[str]) -> Document:
    made = {"name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": ["/busybox", "sh", "-c", script]}
    return made | {"resources": {"claims": [{"name": each} for each in claims]}} if claims else made
