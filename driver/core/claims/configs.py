"""Finds the configurations that apply to an allocation result (KEP-4381, KEP-4816).

A configuration applies to a result if it names no request, the result's request (`<request>` or
`<request>/<subrequest>`) or, for a result of a prioritized list, the part before the slash. Class entries come first,
in whatever order the allocation lists them, then the claim's, each in list order; later ones override earlier ones.
Those of other drivers are passed over unread.

Kubernetes 1.34 to 1.36 list a claim's configuration once for each request that it names. Equal entries count once: as
later ones override earlier ones, the last of them is all that matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from dranode.driver.core.api.resource import DeviceRequestAllocationResult
from dranode.driver.core.claims.allocation import configs_of


class Config(msgspec.Struct, frozen=True):
    """One opaque configuration of this driver, with the place where it stands.

    Attributes:
        source: `FromClass` or `FromClaim`.
        parameters: a plain document as it came, or what `Plugin.parse_config` made of it.
        path: its place in the claim, for messages (`status.allocation.devices.config[2].opaque.parameters`).
        repeated: whether an equal entry follows, so that this one does not count.
    """

    source: Literal["FromClass", "FromClaim"]
    parameters: Any
    path: str
    repeated: bool = False


def main_request(request: str) -> str:
    """The name that kubelet knows: `<request>` of `<request>/<subrequest>`."""
    return request.partition("/")[0]


def applies(requests: tuple[str, ...], request: str) -> bool:
    """Return whether a list of request names covers `request` (`<request>` or `<request>/<subrequest>`)."""
    return not requests or request in requests or main_request(request) in requests


def configs_for(result: DeviceRequestAllocationResult, configs: Sequence[Any]) -> tuple[Config, ...]:
    """The configurations of the result's driver that apply to it, in order, parameters unread.

    `configs` is `status.allocation.devices.config`.

    Raises:
        DocumentError: a configuration of the result's driver does not decode.
    """
    applying = [each for each in configs_of(configs, result.driver) if applies(each[1].requests, result.request)]
    entries = [entry for _, entry, _ in applying]
    found = (
        Config(
            source=entry.source,
            parameters=opaque.parameters,
            path=f"{path}.opaque.parameters",
            repeated=entry in entries[index + 1 :],
        )
        for index, (path, entry, opaque) in enumerate(applying)
    )
    return tuple(sorted(found, key=lambda config: config.source != "FromClass"))
