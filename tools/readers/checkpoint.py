"""Reads what is left of a driver's claims before it is removed: kubelet's own record of claims, and draining pods.

Source of kubelet's record: `pkg/kubelet/cm/dra/state` of Kubernetes 1.34 to 1.37, which all write the same format; 1.37
adds `skipNodeOperations`. The file is not an API. It is only read for diagnosis, and an unknown format is an error,
never an empty list.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dranode.api.documents import kind_of
from dranode.api.errors import DranodeError, in_words
from dranode.cdi.regular_file import read_regular
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import ClaimUse, used_claims

NAME: Final = "dra_manager_state"
_LIST: Final = "ClaimInfoStateList"
# With one of these, kubelet does not call the driver when a pod ends (KEP-5945, DRAOptionalNodeOperations).
_SKIP_UNPREPARE: Final = frozenset(("NodeUnprepareResources", "*"))


def read_checkpoint(path: Path, driver: str) -> tuple[KeptClaim, ...] | None:
    """Return the claims that kubelet will ask `driver` to unprepare; None if the file does not exist.

    kubelet creates the file when it starts. If it is missing, kubelet's folder is not visible from here.

    Args:
        path: the file `dra_manager_state` in kubelet's root.
        driver: the driver's name, as in ResourceSlices.

    Raises:
        DranodeError: the file cannot be read, is damaged, or does not have the format of kubelet 1.34 to 1.37.
    """
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DranodeError(f"kubelet's record {path} cannot be read: {error.strerror}") from error
    return parse_checkpoint(content, str(path), driver)


def parse_checkpoint(content: bytes, path: str, driver: str = "") -> tuple[KeptClaim, ...]:
    """Return the claims in the content of `dra_manager_state` that kubelet will ask `driver` to unprepare.

    Raises:
        DranodeError: it is damaged, or does not have the format of kubelet 1.34 to 1.37.
    """
    try:
        data, checksum = _parsed(content, path)
        kept = _kept(msgspec.json.decode(data)[_LIST], driver)
    except KeyError as error:
        raise DranodeError(
            f"kubelet's record {path} has no {error.args[0]}, which kubelet 1.34 to 1.37 writes, so its claims are "
            "unknown; check which version of kubelet runs here"
        ) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DranodeError(
            f"kubelet's record {path} does not have the format of kubelet 1.34 to 1.37: {in_words(error)}"
        ) from error
    # Checked last: a record of another format may have another kind of checksum, and is not damaged then.
    if zlib.crc32(data.encode()) != checksum:
        raise _damaged(path, "its checksum is wrong")
    return kept


def _parsed(content: bytes, path: str) -> tuple[str, int]:
    # The data is JSON in a string, beside its checksum (kubelet's checkpoint manager).
    try:
        checkpoint = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "it is not JSON") from error
    return checkpoint["Data"], checkpoint["Checksum"]


def _damaged(path: str, why: str) -> DranodeError:
    return DranodeError(
        f"kubelet's record {path} is damaged ({why}), and kubelet does not start with it; delete the pods with claims "
        "from the node, remove the file and restart kubelet"
    )


def _kept(states: Any, driver: str) -> tuple[KeptClaim, ...]:
    # Go encodes an empty list that was never created as null.
    if not isinstance(states, list | None):
        raise TypeError(f"{_LIST} is {kind_of(states)}, not a list")
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


class KeptClaim(msgspec.Struct, frozen=True):
    """A claim in kubelet's own record that has devices of the driver. Without the driver, its pods stay Terminating.

    Attributes:
        ref: the claim.
        pods: the UIDs of the pods for which it was prepared.
    """

    ref: ClaimRef
    pods: tuple[str, ...]


class LeftClaim(msgspec.Struct, frozen=True):
    """A claim that the driver has on record.

    Attributes:
        ref: the claim; name and namespace are empty if its row is damaged or missing.
        users: the containers that have it, `<pod>/<container>`; None if kubelet did not say.
    """

    ref: ClaimRef
    users: tuple[str, ...] | None

    @property
    def idle(self) -> bool:
        """Return whether it is known that no container has the claim."""
        return self.users == ()


def left_claims(refs: Iterable[ClaimRef], uses: Sequence[ClaimUse] | None) -> tuple[LeftClaim, ...]:
    """Return the claims of a driver with their users.

    Args:
        refs: the claims on record; only the UID is known for damaged rows, and for CDI specs without a record.
        uses: which containers have which claims according to kubelet; None if it did not answer.
    """
    return tuple(
        LeftClaim(
            ref,
            None if uses is None else tuple(f"{use.pod}/{use.container}" for use in uses if _is_use(use, ref)),
        )
        for ref in refs
    )


def _is_use(use: ClaimUse, ref: ClaimRef) -> bool:
    if ref.name and (use.namespace, use.claim) == (ref.namespace, ref.name):
        return True
    return bool(used_claims((use,), (ref,)))


def has_rolled_out(daemonset: Mapping[str, Any]) -> bool:
    """Return whether all pods of a DaemonSet are Ready, according to a status of its current specification."""
    status = daemonset.get("status", {})
    current = status.get("observedGeneration") == daemonset["metadata"]["generation"]
    # The controller always writes these numbers. They are missing until it has seen the DaemonSet.
    return bool(current and status.get("numberReady") == status.get("desiredNumberScheduled", -1))


def undrained(pods: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each node whose init container is not done, with its last message.

    Args:
        pods: the pods of a DaemonSet whose first init container is `dranode drain`, as plain documents.
    """
    for pod in pods:
        if not _is_ready(pod):
            yield f"node {pod.get('spec', {}).get('nodeName', '(none yet)')}: {_reason(pod.get('status', {}))}"


def have_failed(pods: Iterable[Mapping[str, Any]], times: int) -> bool:
    """Return whether the init container of every pod that is not done has failed this many times."""
    restarts = [
        max((status["restartCount"] for status in pod.get("status", {}).get("initContainerStatuses", ())), default=0)
        for pod in pods
        if not _is_ready(pod)
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
