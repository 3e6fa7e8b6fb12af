"""The claims that remain of a driver before it is removed, also by kubelet's own record of them, `dra_manager_state`.

Source: `pkg/kubelet/cm/dra/state` of Kubernetes 1.34 to 1.37, which write one form; 1.37 adds `skipNodeOperations`. The
file is no API: it is read for diagnosis alone, and a form that is not known is an error, never an empty list.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dranode.api.errors import DranodeError, in_words
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.uses import ClaimUse, used_claims

NAME: Final = "dra_manager_state"
_LIST: Final = "ClaimInfoStateList"
# With one of these, kubelet does not call the driver when a pod ends (KEP-5945, DRAOptionalNodeOperations).
_SKIP_UNPREPARE: Final = frozenset(("NodeUnprepareResources", "*"))


def read_checkpoint(path: Path, driver: str) -> tuple[KeptClaim, ...] | None:
    """The claims that kubelet will ask `driver` to unprepare; None if there is no such file.

    A running kubelet has created the file at its start. If it is missing, kubelet's folder is not visible here.

    Args:
        path: the file `dra_manager_state` in kubelet's root.
        driver: the driver's name, as in ResourceSlices.

    Raises:
        DranodeError: the file cannot be read, is damaged or has another form than kubelet 1.34 to 1.37 writes.
    """
    try:
        data, checksum = _read(path)
        kept = _kept(json.loads(data)[_LIST], driver)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DranodeError(f"kubelet's record {path} cannot be read: {error.strerror}") from error
    except KeyError as error:
        raise DranodeError(
            f"kubelet's record {path} has no {error.args[0]}, which kubelet 1.34 to 1.37 writes, so its claims are not "
            "known; see which version of kubelet runs here"
        ) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DranodeError(f"kubelet's record {path} is not one of kubelet 1.34 to 1.37: {in_words(error)}") from error
    # A record of another form may have another kind of checksum, so it is not called damaged.
    if zlib.crc32(data.encode()) != checksum:
        raise _damaged(path, "its checksum is wrong")
    return kept


def _read(path: Path) -> tuple[str, int]:
    # The data is JSON in a string, beside its checksum (kubelet's checkpoint manager).
    try:
        checkpoint = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "it is not JSON") from error
    return checkpoint["Data"], checkpoint["Checksum"]


def _damaged(path: Path, why: str) -> DranodeError:
    return DranodeError(
        f"kubelet's record {path} is damaged: {why}, and kubelet does not start with it; delete the pods with claims "
        "from the node, remove the file and restart kubelet"
    )


def _kept(states: Any, driver: str) -> tuple[KeptClaim, ...]:
    # A list that was never made is null in Go.
    if not isinstance(states, list | None):
        raise TypeError(f"{_LIST} is a {type(states).__name__}, not a list")
    return tuple(
        KeptClaim(
            ClaimRef(str(state["Namespace"]), str(state["ClaimName"]), str(state["ClaimUID"])),
            tuple(sorted(state["PodUIDs"] or ())),
        )
        for state in states or ()
        if _unprepares(driver, state["DriverState"] or {})
    )


def _unprepares(driver: str, states: dict[str, Any]) -> bool:
    if driver not in states:
        return False
    skipped = states[driver].get("skipNodeOperations") or ()
    return _SKIP_UNPREPARE.isdisjoint(skipped)


# The claims that remain of a driver that is to be removed: which of them may be undone, and which nodes have some.


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
        max(
            (initContainerStatuse["restartCount"] for initContainerStatuse in status.get("initContainerStatuses", ())),
            default=0,
        )
        for status in waiting
    ]
    return bool(restarts) and min(restarts) >= times


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


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
