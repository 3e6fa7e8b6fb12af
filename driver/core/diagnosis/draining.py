"""The remaining claims of a driver on a node before it is removed, and which of them may be undone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.uses import ClaimUse, used_claims


@dataclass(frozen=True, slots=True)
class KeptClaim:
    """A claim that kubelet itself has recorded (`dra_manager_state`) with a device of the driver.

    Attributes:
        ref: its identity.
        pods: the UIDs of the pods that it was prepared for.
    """

    ref: ClaimRef
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftClaim:
    """A claim that the driver has on record.

    Attributes:
        ref: its identity; name and namespace are empty where its row is damaged or missing.
        users: the containers that have it, `<pod>/<container>`; None if kubelet did not say.
    """

    ref: ClaimRef
    users: tuple[str, ...] | None

    @property
    def idle(self) -> bool:
        """Return whether it is known that no container has the claim."""
        return self.users == ()


@dataclass(frozen=True, slots=True)
class Leftover:
    """All remaining claims.

    Attributes:
        claims: the claims that the driver has on record.
        stranded: the claims that kubelet will ask this driver to unprepare; without the driver their pods never end.
    """

    claims: tuple[LeftClaim, ...]
    stranded: tuple[KeptClaim, ...]


def leftover(refs: Iterable[ClaimRef], uses: Iterable[ClaimUse] | None, kept: Iterable[KeptClaim]) -> Leftover:
    """Collect the remaining claims of a driver.

    Args:
        refs: the claims that it has on record, those of damaged rows and of CDI specs without a record by UID alone.
        uses: which containers have which claims, by kubelet; None if it did not answer.
        kept: the claims of kubelet's own record.
    """
    known = None if uses is None else tuple(uses)

    def users(ref: ClaimRef) -> tuple[str, ...] | None:
        if known is None:
            return None
        return tuple(f"{use.pod}/{use.container}" for use in known if _is_use(use, ref))

    return Leftover(tuple(LeftClaim(ref, users(ref)) for ref in refs), tuple(kept))


def _is_use(use: ClaimUse, ref: ClaimRef) -> bool:
    if ref.name and (use.namespace, use.claim) == (ref.namespace, ref.name):
        return True
    return bool(used_claims((use,), (ref,)))
