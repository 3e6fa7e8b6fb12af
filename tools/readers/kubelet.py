"""Reads kubelet's configuration: its command line, its configuration file, and the state of its managers.

The file is a KubeletConfiguration (kubelet.config.k8s.io/v1beta1). Drop-in files override it, and flags override both
(cmd/kubelet/app of Kubernetes). `cpu_manager_state` and `memory_manager_state` contain the policy of the running
kubelet, in all their versions (pkg/kubelet/cm/cpumanager/state and memorymanager/state of 1.34 to 1.37). A kubelet
inside another process (k3s, MicroK8s) may have neither a command line nor a file; then only these two can be read.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import DocumentError, DranodeError
from dranode.driver.kube.client import APIRequest
from dranode.driver.machine.presence import is_folder
from dranode.driver.machine.yaml_files import StrictError, parse_yaml
from dranode.tools.diagnosis.facts import Kubelet
from dranode.tools.readers.checkpoint import NAME as CLAIM_STATE
from dranode.tools.readers.checkpoint import parse_checkpoint
from dranode.tools.readers.cluster import Sender
from dranode.tools.readers.host import HostError, NodeHost, UnparsedError, running

_DEFAULT_ROOT: Final = "/var/lib/kubelet"
# kubelet's root on MicroK8s and k0s, in case the driver is configured with another one.
_ROOTS: Final = ("/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/k0s/kubelet")
_CPU_STATE: Final = "cpu_manager_state"
_MEMORY_STATE: Final = "memory_manager_state"
# kubelet does not start with a damaged one either (pkg/kubelet/allocation/state of 1.34 to 1.37).
_POD_STATES: Final = ("allocated_pods_state", "actuated_pods_state")
_WRONG_CHECKSUM: Final = "its checksum is wrong"
_TRUE: Final = ("1", "t", "true")


def read_kubelet(host: NodeHost, root: str, config: str = "") -> Kubelet:
    """Read kubelet's configuration.

    Args:
        host: the node.
        root: kubelet's root; a running kubelet's own root takes precedence.
        config: its configuration file; empty to search for it.

    Raises:
        UnparsedError: its configuration file is not YAML, or its reserved CPUs are not a cpu-list.
        HostError: neither kubelet nor its configuration file can be read.
    """
    process = running(host, "kubelet")
    # kubelet also accepts underscores in flag names.
    flags = {name.replace("_", "-"): value for name, value in process.flags.items()} if process is not None else {}
    root = flags.get("root-dir") or (_DEFAULT_ROOT if process is not None else root)
    named = config or flags.get("config")
    path = named or f"{root}/config.yaml"
    try:
        document = _document(host, path)
    except OSError as error:
        # Without a configuration file kubelet runs with defaults, but an unreadable file may set anything.
        if process is None or named or not isinstance(error, FileNotFoundError):
            raise HostError(
                f"kubelet's configuration: {path} cannot be read ({error.strerror}); pass --kubelet-config, or "
                "run this on the node itself"
            ) from error
        document = {}
    folder = flags.get("config-dir", "").rstrip("/")
    drop_ins = tuple(_drop_ins(host, folder)) if folder else ()
    for drop_in in drop_ins:
        document = _patched(document, drop_in)
    place = f"{path} or {folder}" if drop_ins else path
    return _as_it_runs(host, _configured(document, place, root, flags))


def read_configz(api: Sender, node: str, root: str) -> Kubelet:
    """Read the running kubelet's configuration through the API server (`get nodes/proxy`).

    Raises:
        ApiError: the account may not read it, or kubelet does not answer.
        HostError: the answer is not a kubelet configuration.
    """
    request = APIRequest("GET", f"/api/v1/nodes/{node}/proxy/configz", "get nodes/proxy")
    answer = api.send(request, seconds=5.0)
    document = answer.get("kubeletconfig") if isinstance(answer, Mapping) else None
    if not isinstance(document, Mapping):
        raise HostError("kubelet's configuration: the answer to /configz is not a kubelet configuration")
    return _configured(document, "kubelet's configuration", root, {})


def _configured(document: Mapping[str, Any], place: str, root: str, flags: Mapping[str, str]) -> Kubelet:
    """Return the configuration in a document at a place; flags of the command line override it."""
    gates = {**(document.get("featureGates") or {}), **_gates(flags.get("feature-gates", ""))}
    return Kubelet(
        config=place,
        root=root,
        cpu_manager=flags.get("cpu-manager-policy") or str(document.get("cpuManagerPolicy") or "none"),
        cpu_manager_place=place,
        reserved=_cpus(place, flags.get("reserved-cpus") or document.get("reservedSystemCPUs") or ""),
        gates={str(name): on is True for name, on in gates.items()},
        memory_manager=flags.get("memory-manager-policy") or str(document.get("memoryManagerPolicy") or "None"),
        memory_manager_place=place,
        topology_manager=flags.get("topology-manager-policy") or str(document.get("topologyManagerPolicy") or "none"),
    )


def kubelet_of_states(host: NodeHost, root: str) -> Kubelet | None:
    """Return what the managers' state files show of kubelet; None if they show no static policy.

    Args:
        host: the node.
        root: the driver's --kubelet-root; the roots of other distributions are tried after it.
    """
    for place in dict.fromkeys((root, *_ROOTS)):
        kubelet = _as_it_runs(host, Kubelet(config="", root=place))
        if kubelet.cpu_manager_place or kubelet.memory_manager_place:
            return kubelet
    return None


def _as_it_runs(host: NodeHost, kubelet: Kubelet) -> Kubelet:
    """Return the configuration with the policies from the managers' state files, which the running kubelet wrote."""
    cpus, memory = _state(kubelet.root, _CPU_STATE), _state(kubelet.root, _MEMORY_STATE)
    if _policy(host, cpus) == "static":
        kubelet = replace(kubelet, cpu_manager="static", cpu_manager_place=cpus)
    if _policy(host, memory) == "Static":
        kubelet = replace(kubelet, memory_manager="Static", memory_manager_place=memory)
    return kubelet


def _policy(host: NodeHost, path: str) -> str:
    """Return the policy in a manager's state file; empty if there is none or it cannot be read (see `unread_state`)."""
    try:
        policy = msgspec.json.decode(host.text(path)).get("policyName")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    return policy if isinstance(policy, str) else ""


def unread_state(host: NodeHost, root: str) -> Iterator[str]:
    """Yield what kubelet's state files do not show, because they are damaged or readable only for root.

    kubelet does not start with a damaged one.
    """
    for manager, name in (("CPU", _CPU_STATE), ("memory", _MEMORY_STATE)):
        policy, path = f"the policy with which kubelet's {manager} manager runs", _state(root, name)
        try:
            host.text(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield f"{policy}: {path} cannot be read ({error.strerror}); try as root"
        else:
            if not _policy(host, path):
                yield (
                    f"{policy}: {path} does not name one, so it is damaged, and kubelet would not start with it; drain "
                    "the node, remove the file and restart kubelet"
                )
            elif why := _wrong_state(host.text(path)):
                yield _damaged(path, why)
    yield from _unread_records(host, root)


def _unread_records(host: NodeHost, root: str) -> Iterator[str]:
    """Yield the problems of kubelet's own records of claims and of pods."""
    for records, name in (("claims", CLAIM_STATE), *(("pods", name) for name in _POD_STATES)):
        path = _state(root, name)
        try:
            content = host.content(path)
            if name == CLAIM_STATE:
                parse_checkpoint(content, path)
            else:
                record = msgspec.json.decode(content)
                if record["checksum"] != _checksum(record["data"]):
                    yield _damaged(path, _WRONG_CHECKSUM)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield f"kubelet's record of {records}: {path} cannot be read ({error.strerror}); try as root"
        except DranodeError as error:
            yield str(error)
        except (ValueError, TypeError, KeyError, RecursionError):
            yield _damaged(path, "it does not have kubelet's format")


def _wrong_state(text: str) -> str:
    """Return what is wrong with a state of the CPU or memory manager; "" if nothing is, as far as it can be seen."""
    try:
        state = msgspec.json.decode(text)
        # Before 1.37 the state is not also in it as text, and its checksum follows from how Go prints its structures.
        right = "dataChecksum" not in state or state["dataChecksum"] == _checksum(state["data"])
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return "it does not have kubelet's format"
    return "" if right else _WRONG_CHECKSUM


def _checksum(data: str) -> int:
    """Return kubelet's checksum of a text: FNV-1a of what spew prints (`pkg/kubelet/checkpointmanager/checksum`)."""
    value = 0x811C9DC5
    for byte in f"(string){data}".encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _damaged(path: str, why: str) -> str:
    return (
        f"kubelet's record {path} is damaged ({why}), and kubelet does not start with it; drain the node, remove the "
        "file and restart kubelet"
    )


def _state(root: str, name: str) -> str:
    return f"{root.rstrip('/')}/{name}"


def _patched(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with a drop-in file's values, as a JSON merge patch: null removes a field."""
    result = dict(document)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            old = result.get(name)
            result[name] = _patched(old if isinstance(old, Mapping) else {}, value)
        else:
            result[name] = value
    return result


def _drop_ins(host: NodeHost, folder: str) -> Iterator[Mapping[str, Any]]:
    """Yield the drop-in files in `--config-dir` and its subfolders, by name; each overrides the earlier ones."""
    try:
        for path in (f"{folder}/{name}" for name in host.names(folder)):
            if is_folder(host.place(path)):
                yield from _drop_ins(host, path)
            elif path.endswith(".conf"):
                yield _document(host, path)
    except OSError as error:
        raise HostError(f"kubelet's configuration: {error.filename} cannot be read ({error.strerror})") from error


def _gates(text: str) -> dict[str, bool]:
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name.strip(): value.strip().lower() in _TRUE for name, _, value in pairs}


def _document(host: NodeHost, path: str) -> Mapping[str, Any]:
    try:
        document = parse_yaml(host.content(path), path)
    except StrictError as error:  # kubelet accepts repeated keys, uses the last one, and only logs it
        raise HostError(f"kubelet's configuration: {error}") from error
    except DocumentError as error:
        raise UnparsedError(f"kubelet's configuration {error}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise HostError(f"kubelet's configuration: {path} is not a mapping")
    return document


def _cpus(path: str, text: Any) -> CPUSet:
    try:
        return CPUSet.parse(str(text))
    except ValueError as error:
        raise UnparsedError(f"kubelet's configuration {path}: reservedSystemCPUs: {error}") from error
