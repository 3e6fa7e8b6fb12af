"""Opaque configuration of claims and classes: which CPUs they get and how their containers run on them.

Three forms are accepted. The first two are dra-driver-cpu's, with its error messages. As there, unknown fields of the
second form are ignored:

    {"cpuset": "2-11"}
    {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-11"}}
    {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "threads": "full-core", ...}

The third has the fields of `CPUConfig`. A class sets defaults, and a claim overrides them field by field, in list
order. A cpuset names the CPUs, so it is allowed only in a claim, and not together with `threads`, `l3` or `spread`.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.documents import decode, kind_of
from dranode.api.errors import ClaimError, DocumentError
from dranode.cpu.options import L3, Isolation, PickPolicy, Threads
from dranode.driver.claims.grant import Config

API_VERSION: Final = "dra.cpu/v1alpha1"
KIND: Final = "CPUConfig"
REFERENCE_VERSION: Final = "v1alpha1"


class CPUSharing(StrEnum):
    """The containers of a pod that may run on a claim's CPUs at the same time."""

    CONTAINER = "container"
    POD = "pod"


class CFSQuota(StrEnum):
    """The CPU limit of a container with a claim: kept or lifted."""

    KEEP = "keep"
    UNLIMITED = "unlimited"


class Memory(StrEnum):
    """The source of a container's memory: anywhere, or the NUMA nodes of its CPUs."""

    NONE = "none"
    LOCAL = "local"


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """The places from which the driver takes CPUs.

    Attributes:
        policy: packed (default), spread or numa-distributed.
        group: for numa-distributed, the step in which NUMA nodes give CPUs; at least 1.
    """

    policy: PickPolicy = PickPolicy.PACKED
    group: Annotated[int, msgspec.Meta(ge=1)] | None = None


_PACKED: Final = Spread()


class CPUConfig(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """One configuration; a field that is None was not set. An unknown field is an error.

    Attributes:
        cpuset: exactly these CPUs (cpu-list, in canonical form); claims only.
        threads: any (default), full-core or one-per-core.
        l3: prefer (default), require or ignore.
        spread: `{"policy": ..., "group": ...}`; a claim's value replaces the class's as a whole.
        sharing: container (default: one live container at a time) or pod (every container of one pod).
        cfs_quota: `cfsQuota`: keep (default) or unlimited.
        memory: none (default) or local (`cpuset.mems` follows the CPUs).
        isolation: cpuset (default), quiet or partition: what is kept off the CPUs in addition to other containers.
        shared: whether its containers also run on the CPUs of containers without claims; false by default.
    """

    cpuset: str | None = None
    threads: Threads | None = None
    l3: L3 | None = None
    spread: Spread | None = None
    sharing: CPUSharing | None = None
    cfs_quota: CFSQuota | None = None
    memory: Memory | None = None
    isolation: Isolation | None = None
    shared: bool | None = None


class CPUPolicy(msgspec.Struct, frozen=True):
    """The result of all configurations of one allocation result, with defaults filled in.

    Attributes:
        cpusets: the exact cpusets that claim configurations ask for; `grant` refuses more than one.
    """

    cpusets: tuple[CPUSet, ...] = ()
    threads: Threads = Threads.ANY
    l3: L3 = L3.PREFER
    spread: Spread = _PACKED
    sharing: CPUSharing = CPUSharing.CONTAINER
    cfs_quota: CFSQuota = CFSQuota.KEEP
    memory: Memory = Memory.NONE
    isolation: Isolation = Isolation.CPUSET
    shared: bool = False


_WORDS: Final[Mapping[str, type[StrEnum]]] = {
    "threads": Threads,
    "l3": L3,
    "spread.policy": PickPolicy,
    "sharing": CPUSharing,
    "cfsQuota": CFSQuota,
    "memory": Memory,
    "isolation": Isolation,
}
_PLACEMENT: Final = ("threads", "l3", "spread")
_TREATMENT: Final = ("sharing", "cfs_quota", "memory", "isolation", "shared")


def parse_cpu_config(config: Config) -> CPUConfig:
    """Decode opaque parameters in any of the three forms.

    Raises:
        ClaimError: they are invalid, or not allowed in a class; the message says where.
    """
    try:
        parsed = _decode(config.parameters)
        _check(parsed)
    except DocumentError as error:
        raise ClaimError(f"{config.path}{'.' if error.path else ': '}{error}") from error
    if config.source == "FromClass" and parsed.cpuset is not None:
        raise ClaimError(
            f"{config.path}: opaque config: configuration from DeviceClass is not supported by this driver, "
            "custom cpusets must be defined per ResourceClaim request"
        )
    return parsed


def merge(configs: Iterable[Config]) -> CPUPolicy:
    """Merge parsed configurations; a later one overrides an earlier one field by field.

    Raises:
        ClaimError: a cpuset is combined with `threads`, `l3` or `spread`.
    """
    policy = CPUPolicy()
    placed: dict[str, str] = {}
    for config in configs:
        parsed: CPUConfig = config.parameters
        if parsed.cpuset is not None:
            policy = replace(policy, cpusets=(*policy.cpusets, CPUSet.parse(parsed.cpuset)))
            placed["cpuset"] = config.path
        chosen = {name: value for name in (*_PLACEMENT, *_TREATMENT) if (value := getattr(parsed, name)) is not None}
        policy = replace(policy, **chosen)
        placed |= {name: config.path for name in _PLACEMENT if name in chosen}
    for name in _PLACEMENT:
        if policy.cpusets and name in placed:
            raise ClaimError(
                f"{placed['cpuset']}: a cpuset names the CPUs, so it cannot be combined with {name}, "
                f"which {placed[name]} sets; leave out one of them"
            )
    return policy


def _decode(parameters: Any) -> CPUConfig:
    if not isinstance(parameters, Mapping):
        raise DocumentError(f"failed to unmarshal opaque config: expected an object, got {kind_of(parameters)}")
    if set(parameters) == {"cpuset"}:
        return CPUConfig(cpuset=_cpuset(parameters["cpuset"], "cpuset"))
    version = parameters.get("apiVersion", "")
    if version == REFERENCE_VERSION:
        inner = parameters.get("cpuConfig")
        if inner is not None and not isinstance(inner, Mapping):
            raise DocumentError(
                f"failed to unmarshal opaque config: expected an object, got {kind_of(inner)}", "cpuConfig"
            )
        return CPUConfig(cpuset=_cpuset((inner or {}).get("cpuset"), "cpuConfig.cpuset"))
    if version != API_VERSION:
        raise DocumentError(
            f'unsupported opaque config apiVersion: "{version}"; use "{API_VERSION}" with kind {KIND}', "apiVersion"
        )
    if parameters.get("kind") != KIND:
        raise DocumentError(f'the kind of {API_VERSION} is {KIND}, not "{parameters.get("kind", "")}"', "kind")
    for path, words in _WORDS.items():
        outer, _, inner = path.rpartition(".")
        holder = parameters.get(outer) if outer else parameters
        value = holder.get(inner) if isinstance(holder, Mapping) else None
        if isinstance(value, str) and value not in list(words):
            raise DocumentError(f'"{value}" is not one of {", ".join(words)}', path)
    own = decode(CPUConfig, {key: value for key, value in parameters.items() if key not in ("apiVersion", "kind")})
    return own if own.cpuset is None else msgspec.structs.replace(own, cpuset=_cpuset(own.cpuset, "cpuset"))


def _cpuset(value: Any, path: str) -> str:
    if value is not None and not isinstance(value, str):
        raise DocumentError(f"failed to unmarshal opaque config: expected a cpu-list, got {kind_of(value)}", path)
    if not value:
        raise DocumentError(f"opaque config: {path} is empty or missing")
    try:
        return str(CPUSet.parse(value))
    except ValueError as error:
        raise DocumentError(f'opaque config: failed to parse cpuset "{value}": {error}', path) from error


def _check(config: CPUConfig) -> None:
    if config.spread is not None and config.spread.group is not None:
        policy = config.spread.policy
        if policy is not PickPolicy.NUMA_DISTRIBUTED:
            raise DocumentError(f"a group is only for the policy numa-distributed, not for {policy}", "spread.group")
    if config.cpuset is not None:
        for name in _PLACEMENT:
            if getattr(config, name) is not None:
                raise DocumentError(f"{name} cannot be combined with a cpuset, which already names the CPUs", name)
