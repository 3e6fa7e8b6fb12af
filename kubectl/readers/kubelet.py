"""Reads kubelet's configuration: its command line, its configuration file, and the state of its CPU manager.

kubelet.config.k8s.io/v1beta1 KubeletConfiguration; drop-in files win over the file, and flags over both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.diagnosis.facts import Kubelet
from dranode.kubectl.readers.host import HostError, NodeHost, UnparsedError
from dranode.kubectl.readers.processes import running

_DEFAULT_ROOT: Final = "/var/lib/kubelet"


def read_kubelet(host: NodeHost, root: str, config: str = "") -> Kubelet:
    """Read kubelet's configuration.

    Args:
        host: the node.
        root: kubelet's root, unless a running kubelet has another.
        config: its configuration file; empty to search for it.

    Raises:
        HostError: neither kubelet nor its configuration file can be seen.
    """
    process = running(host, "kubelet")
    flags = process.flags if process is not None else {}
    root = flags.get("root-dir") or (_DEFAULT_ROOT if process is not None else root)
    named = config or flags.get("config")
    path = named or f"{root}/config.yaml"
    try:
        document = _document(path, host.text(path))
    except OSError as error:
        # A kubelet without a configuration file has its defaults, but one with an unreadable file may have anything.
        if process is None or named or not isinstance(error, FileNotFoundError):
            raise HostError(
                f"kubelet's configuration: {path} cannot be read ({error.strerror}); name it with --kubelet-config, or "
                "look from the node itself"
            ) from error
        document = {}
    folder = flags.get("config-dir", "").rstrip("/")
    drop_ins = tuple(_drop_ins(host, folder)) if folder else ()
    for above in drop_ins:
        gates = {**(document.get("featureGates") or {}), **(above.get("featureGates") or {})}
        document = {**document, **above, "featureGates": gates}
    place = f"{path} or {folder}" if drop_ins else path
    policy = flags.get("cpu-manager-policy") or str(document.get("cpuManagerPolicy") or "none")
    gates = {**(document.get("featureGates") or {}), **_gates(flags.get("feature-gates", ""))}
    kubelet = Kubelet(
        config=place,
        root=root,
        cpu_manager=policy,
        cpu_manager_place=place,
        reserved=_cpus(place, flags.get("reserved-cpus") or document.get("reservedSystemCPUs") or ""),
        gates={str(name): on is True for name, on in gates.items()},
        memory_manager=flags.get("memory-manager-policy") or str(document.get("memoryManagerPolicy") or "None"),
        topology_manager=flags.get("topology-manager-policy") or str(document.get("topologyManagerPolicy") or "none"),
    )
    return _as_it_runs(host, kubelet)


def kubelet_of_configz(answer: Any, root: str) -> Kubelet:
    """Return kubelet's configuration as it runs, by its own answer to `/configz`.

    Raises:
        HostError: the answer is none.
    """
    document = answer.get("kubeletconfig") if isinstance(answer, Mapping) else None
    if not isinstance(document, Mapping):
        raise HostError("kubelet's configuration: its answer to /configz has another form than kubelet's")
    place = "kubelet's configuration"
    return Kubelet(
        config=place,
        root=root,
        cpu_manager=str(document.get("cpuManagerPolicy") or "none"),
        cpu_manager_place=place,
        reserved=_cpus(place, document.get("reservedSystemCPUs") or ""),
        gates={str(name): on is True for name, on in (document.get("featureGates") or {}).items()},
        memory_manager=str(document.get("memoryManagerPolicy") or "None"),
        topology_manager=str(document.get("topologyManagerPolicy") or "none"),
    )


def _as_it_runs(host: NodeHost, kubelet: Kubelet) -> Kubelet:
    """Return the configuration with the policy of the CPU manager's state file, which the running kubelet wrote."""
    path = _state(kubelet.root)
    try:
        policy = _policy(host.text(path))
    except OSError:
        return kubelet  # `unread_state` says it
    return replace(kubelet, cpu_manager=policy, cpu_manager_place=path) if policy == "static" else kubelet


def _policy(text: str) -> str:
    """Return the policy in the state of the CPU manager; empty if that is no such state."""
    try:
        policy = json.loads(text).get("policyName")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return policy if isinstance(policy, str) else ""


def unread_state(host: NodeHost, kubelet: Kubelet) -> str:
    """Return why the policy of kubelet's CPU manager may be another than the configuration says; empty if it is not.

    The state file, which has the policy as it runs, may be missing, root alone may read it, and it may be damaged.
    """
    what, path = "the policy with which kubelet's CPU manager runs", _state(kubelet.root)
    try:
        text = host.text(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{what}: {path} cannot be read ({error.strerror}); try as root"
    return "" if _policy(text) else f"{what}: {path} does not say it"


def _state(root: str) -> str:
    return f"{root}/cpu_manager_state"


def _drop_ins(host: NodeHost, folder: str) -> Iterator[Mapping[str, Any]]:
    """Yield the drop-in files (`--config-dir`) in the order of their names; each overrides the earlier ones."""
    try:
        for name in host.names(folder):
            if name.endswith(".conf"):
                yield _document(f"{folder}/{name}", host.text(f"{folder}/{name}"))
    except OSError as error:
        raise HostError(f"kubelet's configuration: {error.filename} cannot be read ({error.strerror})") from error


def _gates(text: str) -> dict[str, bool]:
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name.strip(): value.strip().lower() == "true" for name, _, value in pairs}


def _document(path: str, text: str) -> Mapping[str, Any]:
    import yaml

    try:
        document = yaml.load(text, yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise UnparsedError(f"kubelet's configuration {path} is not YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise HostError(f"kubelet's configuration: {path} holds no object")
    return document


def _cpus(path: str, text: Any) -> CPUSet:
    try:
        return CPUSet.parse(str(text))
    except ValueError as error:
        raise HostError(f"kubelet's configuration: reservedSystemCPUs in {path}: {error}") from error
