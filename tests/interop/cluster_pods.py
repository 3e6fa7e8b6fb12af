"""Manifests of pods that sleep or report their CPUs, and of claims."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.interop.api import Document
from tests.interop.cluster_node import MAIN, mark
from tests.interop.image import IMAGE

_REQUEST = "cpus"
_SLEEP = "trap exit TERM; : {mark} while :; do /busybox sleep 1; done"
# A container writes what it sees of itself to its termination message. A shell drops variables whose names contain a
# hyphen, as a UID does, so they are read from the process that the runtime started.
_LOOK = """
/busybox sed -n 's/^Cpus_allowed_list:[[:space:]]*/allowed: /p' /proc/self/status
/busybox tr '\\0' '\\n' < /proc/1/environ | /busybox sed -n 's/^DRA_CPUSET_[^=]*=/told: /p'
for file in $(/busybox find /var/run/kubernetes.io/dra-device-attributes -name '*-metadata.json'); do
    echo "described: $(/busybox tr -d '\\n' < $file)"
done
"""


def manifests(name: str, cpus: int, config: Document) -> Iterator[Document]:
    """Yield a pod that sleeps, after its claim if it has one."""
    if not cpus:
        yield pod(name)
        return
    yield claim(name, cpus, config=config)
    yield pod(name, claims={name: {"resourceClaimName": name}})


def exactly(cpus: int, **more: Any) -> Document:
    """Return a request for a number of CPUs of a shareable device."""
    return {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": str(cpus)}}, **more}


def claim_spec(request: Mapping[str, Any], config: Document | None = None) -> Document:
    """Return the spec of a one-request claim, `{"exactly": ...}` or `{"firstAvailable": ...}`, with a CPUConfig."""
    devices: Document = {"requests": [{"name": _REQUEST, **request}]}
    if config is not None:
        parameters = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", **config}
        devices["config"] = [{"opaque": {"driver": "dra.cpu", "parameters": parameters}}]
    return {"devices": devices}


def claim(name: str, cpus: int = 1, *, config: Document | None = None) -> Document:
    """Return a claim for a number of CPUs."""
    return document("ResourceClaim", name, claim_spec({"exactly": exactly(cpus)}, config))


def template(name: str, cpus: int = 1) -> Document:
    """Return a template of claims for a number of CPUs."""
    return document("ResourceClaimTemplate", name, {"spec": claim_spec({"exactly": exactly(cpus)})})


def document(kind: str, name: str, spec: Document, namespace: str = "default") -> Document:
    """Return an object of resource.k8s.io/v1."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def sleeper(name: str = MAIN, claims: Sequence[str] = (), *, sidecar: bool = False, **resources: Document) -> Document:
    """Return a container that sleeps in a shell marked with the container's name.

    Args:
        name: its name.
        claims: the pod's claims that it uses.
        sidecar: make it an init container that keeps running.
        resources: its `requests` and `limits`.
    """
    made = _container(name, _SLEEP.format(mark=mark(name)), claims)
    if sidecar:
        made["restartPolicy"] = "Always"
    if resources:
        made.setdefault("resources", {}).update(resources)
    return made


def looker(name: str, claims: Sequence[str] = ()) -> Document:
    """Return a container whose termination message is what it sees of itself."""
    return _container(name, f"({_LOOK}) > /dev/termination-log", claims)


def pod(
    name: str,
    containers: Sequence[Document] = (),
    *,
    claims: Mapping[str, Document] | None = None,
    first: Sequence[Document] = (),
    namespace: str = "default",
) -> Document:
    """Return a pod.

    Args:
        name: its name.
        containers: its containers; by default one that sleeps and uses all claims.
        claims: the source of each of its claims, by the name in the pod.
        first: its init containers.
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
