"""`GPUConfig` (`dra.gpu/v1alpha1`): the configuration of a class or claim for its GPUs.

    apiVersion: dra.gpu/v1alpha1
    kind: GPUConfig
    visibility: none          # none | vendor
    mode: compute             # compute | graphics | vfio
    sharing:
      strategy: shared        # exclusive | shared
      memoryLimit: 8Gi

Every field is optional. A result's configurations apply in the order of the allocation, the class's before the claim's.
A later one overrides the fields that it has. An unknown field is an error.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Literal

import msgspec

from dranode.api.documents import decode
from dranode.api.errors import ClaimError, DocumentError
from dranode.api.quantity import Quantity
from dranode.driver.claims.grant import Config

API_VERSION = "dra.gpu/v1alpha1"
MIN_LIMIT: Final = 1 << 20


class Visibility(StrEnum):
    """Whether the vendor's list variable (`CUDA_VISIBLE_DEVICES`, ...) names the GPUs."""

    NONE = "none"
    VENDOR = "vendor"


class GPUMode(StrEnum):
    """The use of the GPU, which decides the device nodes that come with it."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    VFIO = "vfio"


class Strategy(StrEnum):
    """Whether other claims may get the GPU at the same time."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class GPUSharing(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """`sharing`.

    Attributes:
        strategy: whether other claims may get the GPU at the same time; the default is how the device is published.
        memory_limit: bytes of the GPU's memory, at least 1Mi, for vendors that have a variable to limit it.
    """

    strategy: Strategy | None = None
    memory_limit: Quantity | None = None


class GPUConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """One opaque configuration; a field that is None was not set.

    Attributes:
        visibility: none (default) or vendor: whether the vendor's variable (`CUDA_VISIBLE_DEVICES`) names the GPUs.
        mode: compute (default), graphics or vfio: which device nodes come with the GPU.
        sharing: whether the GPU is shared, and how much of its memory the claim gets.
    """

    api_version: Literal["dra.gpu/v1alpha1"]
    kind: Literal["GPUConfig"]
    visibility: Visibility | None = None
    mode: GPUMode | None = None
    sharing: GPUSharing | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one allocation result after all its configurations; None means as the device is published."""

    visibility: Visibility = Visibility.NONE
    mode: GPUMode = GPUMode.COMPUTE
    strategy: Strategy | None = None
    memory_limit: Quantity | None = None


def parse_gpu_config(config: Config) -> GPUConfig:
    """Decode opaque parameters.

    Raises:
        ClaimError: they are not a valid `GPUConfig`; the message says where.
    """
    try:
        parsed = decode(GPUConfig, config.parameters)
    except DocumentError as error:
        raise ClaimError(f"{config.path} is not a valid GPUConfig of {API_VERSION}: {error}") from error
    limit = parsed.sharing.memory_limit if parsed.sharing else None
    if limit is not None and not (limit.whole and limit.value >= MIN_LIMIT):
        raise ClaimError(
            f'{config.path}: sharing.memoryLimit is "{limit}"; it must be a whole number of bytes and at least 1Mi, '
            "such as 8Gi"
        )
    return parsed


def settings(configs: Iterable[Config]) -> Settings:
    """Merge the parsed configurations of a result; a later one overrides an earlier one field by field."""
    result = Settings()
    for config in configs:
        parsed: GPUConfig = config.parameters
        sharing = parsed.sharing or GPUSharing()
        given = {
            "visibility": parsed.visibility,
            "mode": parsed.mode,
            "strategy": sharing.strategy,
            "memory_limit": sharing.memory_limit,
        }
        result = msgspec.structs.replace(result, **{name: value for name, value in given.items() if value is not None})
    return result
