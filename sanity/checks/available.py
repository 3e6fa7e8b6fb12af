"""As many devices, and claims beside each other, as a check needs and a driver can be given."""

from __future__ import annotations

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable
from dranode.sanity.claims import BenchClaim
from dranode.sanity.kubelet import ClaimAnswer
from dranode.sanity.offers import OfferedDevice


def need_devices(answer: ClaimAnswer) -> None:
    """See that a driver answers devices.

    It need not (kubeletplugin, PrepareResult.Devices: the empty slice is valid too): NRI or a hook may hand them over.

    Raises:
        Unable: it does not.
    """
    if not answer.devices:
        raise Unable("the driver answers no devices")


def several_devices(bench: Bench, count: int) -> list[OfferedDevice]:
    """So many devices, or shares of one where there are not so many.

    Raises:
        Unable: there is neither.
    """
    try:
        return bench.devices(count)
    except Unable:
        (device,) = bench.devices(shareable=True)
        if device.shares() < count:
            raise
        return [device] * count


def two_claims(bench: Bench) -> list[BenchClaim]:
    """Two claims that can be prepared beside each other, or one if the driver has no more to give."""
    if bench.api is None:
        return [bench.claim()]
    try:
        return claims_beside(bench, 2)
    except Unable:
        return [bench.claim()]


def claims_beside(bench: Bench, count: int) -> list[BenchClaim]:
    """So many claims that can be prepared beside each other.

    Raises:
        Unable: the driver has not so much to give.
    """
    if bench.api is None:
        return [bench.claim() for _ in range(count)]
    return [bench.claim([device]) for device in several_devices(bench, count)]
