"""`MemoryConfig` (`dra.memory/v1alpha1`): the configuration of a class or claim for its memory.

    apiVersion: dra.memory/v1alpha1
    kind: MemoryConfig
    policy: bind              # bind | interleave | weighted | preferred
    sharing: container        # container | pod
    mount: /dev/hugepages     # path of a hugetlbfs in the container with its pages; only for huge pages

Every field is optional. A result's configurations apply in the order of the allocation, the class's before the claim's.
A later one overrides the fields that it has. An unknown field is an error.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Literal

import msgspec

from dranode.api import DocumentError, decode
from dranode.driver import ClaimError, Config

API_VERSION: Final = "dra.memory/v1alpha1"
_PATH: Final = re.compile(r"(/[^/\0]+)+", re.ASCII)
_MAX_PATH: Final = 4096  # Linux's PATH_MAX


class MemoryPolicy(StrEnum):
    """The source of a container's memory on its NUMA nodes: the kernel's policies of set_mempolicy(2).

    With `bind` it comes from these nodes only, which the container's `cpuset.mems` enforces. `interleave` and
    `weighted` also decide how it is spread over them, and `preferred` lets the kernel use other nodes when they are
    full. The workload sets these three policies itself, from the nodes and the policy in its variables.
    """

    BIND = "bind"
    INTERLEAVE = "interleave"
    WEIGHTED = "weighted"
    PREFERRED = "preferred"


class MemorySharing(StrEnum):
    """The containers of a pod that may use a claim's memory at the same time."""

    CONTAINER = "container"
    POD = "pod"


class MemoryConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """One opaque configuration; a field that is None was not set.

    Attributes:
        policy: bind (default), interleave, weighted or preferred: how memory comes from the NUMA nodes
            (set_mempolicy(2)).
        sharing: container (default: one live container at a time) or pod (every container of one pod).
        mount: the absolute path of a hugetlbfs with the claim's huge pages in the container; no mount by default.
    """

    api_version: Literal["dra.memory/v1alpha1"]
    kind: Literal["MemoryConfig"]
    policy: MemoryPolicy | None = None
    sharing: MemorySharing | None = None
    mount: str | None = None


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one allocation result after all its configurations; an empty `mount` means none."""

    policy: MemoryPolicy = MemoryPolicy.BIND
    sharing: MemorySharing = MemorySharing.CONTAINER
    mount: str = ""


def parse_memory_config(config: Config) -> MemoryConfig:
    """Decode opaque parameters.

    Raises:
        ClaimError: they are not a valid `MemoryConfig`; says where.
    """
    try:
        parsed = decode(MemoryConfig, config.parameters)
    except DocumentError as error:
        raise ClaimError(f"{config.path} is not a valid MemoryConfig of {API_VERSION}: {error}") from error
    mount = parsed.mount
    if mount is not None and not _is_path(mount):
        raise ClaimError(
            f'{config.path}: mount is "{mount}", no clean absolute path outside /proc, such as /dev/hugepages'
        )
    return parsed


def memory_settings(configs: Iterable[Config]) -> MemorySettings:
    """Merge the parsed configurations of a result; a later one overrides an earlier one field by field."""
    result = MemorySettings()
    for config in configs:
        parsed: MemoryConfig = config.parameters
        given = {"policy": parsed.policy, "sharing": parsed.sharing, "mount": parsed.mount}
        result = msgspec.structs.replace(result, **{name: value for name, value in given.items() if value is not None})
    return result


def _is_path(path: str) -> bool:
    parts = path.split("/")
    # Runtimes mount nothing of a user inside /proc (checkProcMount of runc).
    clean = len(path) <= _MAX_PATH and _PATH.fullmatch(path) is not None and not {".", ".."} & set(parts)
    return clean and parts[1] != "proc"
