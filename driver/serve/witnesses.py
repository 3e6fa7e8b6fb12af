"""The witnesses of the claims on this node: kubelet, the container runtime and the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from dranode.driver.core.claims.calls import Claims
from dranode.driver.core.claims.reconcile import Attestation
from dranode.driver.core.claims.record import Record
from dranode.driver.core.claims.uses import used_claims
from dranode.driver.kubelet.podresources import PodResources, PodResourcesError

log = logging.getLogger(__name__)

# UIDs of the claims that containers have; None while the runtime has not listed its containers.
Running = Callable[[], frozenset[str] | None]


class Witnesses(msgspec.Struct, frozen=True):
    """The witnesses of one driver's claims.

    Attributes:
        driver: the driver's name.
        claims: the API server, or a folder in its place.
        pod_resources: kubelet; None if it cannot be asked.
        running: the runtime.
    """

    driver: str
    claims: Claims
    pod_resources: PodResources | None
    running: Running

    def near(self, records: Iterable[Record]) -> Attestation:
        """Return what kubelet and the runtime say of these claims."""
        if self.pod_resources is None:
            return Attestation(running=self.running())
        try:
            uses = self.pod_resources.claims(self.driver)
        except PodResourcesError as error:
            log.debug("%s", error)
            return Attestation(running=self.running())
        return Attestation(used_claims(uses, (record.ref for record in records)), self.running())

    def far(self, attested: Attestation, records: Iterable[Record]) -> Attestation:
        """Return what the API server says of these claims as well, as far as their names are known."""
        refs = (use.ref if (use := attested.use(record.uid)) else record.ref for record in records)
        asked = tuple(ref for ref in refs if ref.name)
        answers = self.claims.get(asked) if asked else {}
        return replace(attested, claims={**attested.claims, **{ref.uid: answer for ref, answer in answers.items()}})
