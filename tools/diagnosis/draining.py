"""The remaining claims of a driver before it is removed: which of them may be undone, and which nodes have any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.uses import ClaimUse, used_claims


class KeptClaim(msgspec.Struct, frozen=True):
    """A claim that kubelet itself has recorded (`dra_manager_state`) with a device of the driver.

    Attributes:
        ref: its identity.
        pods: the UIDs of the pods that it was prepared for.
    """

    ref: ClaimRef
    pods: tuple[str, ...]


class LeftClaim(msgspec.Struct, frozen=True):
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


class Leftover(msgspec.Struct, frozen=True):
    """All remaining claims.

    Attributes:
        claims: the claims that the driver has on record.
        stranded: the claims that kubelet will ask this driver to unprepare; without the driver their pods never end.
            None if kubelet's record was not seen.
    """

    claims: tuple[LeftClaim, ...]
    stranded: tuple[KeptClaim, ...] | None


def leftover(refs: Iterable[ClaimRef], uses: Iterable[ClaimUse] | None, kept: Iterable[KeptClaim] | None) -> Leftover:
    """Collect the remaining claims of a driver.

    Args:
        refs: the claims that it has on record, those of damaged rows and of CDI specs without a record by UID alone.
        uses: which containers have which claims, by kubelet; None if it did not answer.
        kept: the claims of kubelet's own record; None if it was not seen.
    """
    known = None if uses is None else tuple(uses)

    def users(ref: ClaimRef) -> tuple[str, ...] | None:
        if known is None:
            return None
        return tuple(f"{use.pod}/{use.container}" for use in known if _is_use(use, ref))

    return Leftover(tuple(LeftClaim(ref, users(ref)) for ref in refs), None if kept is None else tuple(kept))


def _is_use(use: ClaimUse, ref: ClaimRef) -> bool:
    if ref.name and (use.namespace, use.claim) == (ref.namespace, ref.name):
        return True
    return bool(used_claims((use,), (ref,)))


def has_rolled_out(daemonset: Mapping[str, Any]) -> bool:
    """Return whether all pods of a DaemonSet are Ready, by a status that is of its present specification."""
    status = daemonset.get("status", {})
    current = status.get("observedGeneration") == daemonset["metadata"]["generation"]
    # The controller writes the three numbers always; one that has not looked yet wrote none.
    return bool(current and status.get("numberReady") == status.get("desiredNumberScheduled", -1))


def undrained(pods: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the nodes whose pod is not done with its init container, each with what that said last.

    Args:
        pods: of a DaemonSet whose first init container is `dranode drain`, as plain documents.
    """
    for pod in pods:
        if not _is_ready(pod):
            yield f"node {pod.get('spec', {}).get('nodeName', '(none yet)')}: {_reason(pod.get('status', {}))}"


def have_failed(pods: Iterable[Mapping[str, Any]], times: int) -> bool:
    """Return whether every pod that is not done has failed so often; see `undrained`."""
    waiting = [pod.get("status", {}) for pod in pods if not _is_ready(pod)]
    restarts = [
        max((each["restartCount"] for each in status.get("initContainerStatuses", ())), default=0) for status in waiting
    ]
    return bool(restarts) and min(restarts) >= times


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _reason(status: Mapping[str, Any]) -> str:
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        states = (container.get("state", {}), container.get("lastState", {}))
        for ended in (state["terminated"] for state in states if "terminated" in state):
            if ended.get("exitCode"):
                return " ".join(str(ended.get("message") or ended.get("reason") or "no message").split())
        if "running" in states[0]:
            return f"container {container.get('name', '')} still runs"
        waiting = states[0].get("waiting", {})
        if waiting:
            return f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()
    return f"its pod is {status.get('phase', 'Pending')}"
