"""Reads the cause out of what kubelet, the runtime and the controllers report of a pod.

A text that is not known (`known_texts`) is passed on as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from dranode.tools.diagnosis.causes import StopCause
from dranode.tools.diagnosis.known_texts import (
    CREATION_TEXTS,
    IMAGE_REASONS,
    PREPARE_TEXTS,
    RUNTIME_TEXTS,
    KnownText,
)
from dranode.tools.diagnosis.live_objects import (
    ContainerStateTerminated,
    ContainerStateWaiting,
    LiveContainerStatus,
    LiveEvent,
)
from dranode.tools.diagnosis.station import Station, stopped


class Report(msgspec.Struct, frozen=True):
    """One report.

    Attributes:
        cause: the cause.
        what: the facts, in one sentence without a full stop; a driver's own sentence as it said it.
        fix: what to do.
    """

    cause: StopCause
    what: str
    fix: str


def reported(station: str, report: Report) -> Station:
    """Return the station where a report says that it stopped."""
    return stopped(station, report.cause, report.what, report.fix)


_PREFIX: Final = re.compile(r"^(?:Failed to prepare dynamic resources: )?(?:prepare dynamic resources: )?")
PREPARE_FAILED: Final = "FailedPrepareDynamicResources"
# Events that only come after a pod's claims were prepared.
_AFTER_PREPARE: Final = frozenset(("Pulling", "Pulled", "Created", "Started", "FailedCreatePodSandBox", "BackOff"))


def _read(known: Sequence[KnownText], text: str, **places: str) -> Report | None:
    for row in known:
        match = row.pattern.search(text)
        if match is not None:
            groups = [one.strip().rstrip(".") if one else "" for one in (match[0], *match.groups())]
            return Report(row.cause, row.what.format(*groups, **places), row.fix.format(*groups, **places))
    return None


def _latest(events: Iterable[LiveEvent], about: Callable[[LiveEvent], bool]) -> LiveEvent | None:
    return max(filter(about, events), key=lambda event: event.last_seen, default=None)


def creation_report(events: Iterable[LiveEvent], namespace: str, entry: str) -> Report | None:
    """Return why the claim of an entry of `spec.resourceClaims` was not made, by its last Event."""
    event = _latest(
        events,
        lambda one: (
            one.reason == "FailedResourceClaimCreation" and one.message.startswith(f"PodResourceClaim {entry}:")
        ),
    )
    return _read(CREATION_TEXTS, event.message, namespace=namespace) if event is not None else None


def prepare_report(events: Sequence[LiveEvent], node: str) -> Report | None:
    """Return why kubelet could not have the pod's claims prepared; None if it never said so, or has gone on since."""
    failed = _latest(events, lambda one: one.reason == PREPARE_FAILED)
    later = _latest(events, lambda one: one.reason in _AFTER_PREPARE)
    if failed is None or (later is not None and later.last_seen > failed.last_seen):
        return None
    return _read(PREPARE_TEXTS, _PREFIX.sub("", failed.message), node=node)


def scheduling_report(events: Iterable[LiveEvent]) -> str:
    """Return what a scheduler said last of a pod that it could not place; empty if nothing."""
    failed = _latest(events, lambda one: one.reason == "FailedScheduling")
    return failed.message if failed is not None else ""


def node_report(events: Sequence[LiveEvent], node: str) -> Report | None:
    """Return why kubelet has not come to the pod's containers: volumes, or its sandbox."""
    failed = _latest(
        events,
        lambda one: one.reason in ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"),
    )
    later = _latest(events, lambda one: one.reason in ("Pulling", "Pulled", "Created", "Started"))
    if failed is None or (later is not None and later.last_seen > failed.last_seen):
        return None
    if failed.reason != "FailedCreatePodSandBox":
        return Report(
            StopCause.VOLUME_FAILED,
            f"a volume of the pod is not there: {_line(failed.message)}",
            "mend the volume; the pod's claims are not the reason",
        )
    found = _read(RUNTIME_TEXTS, failed.message, node=node)
    return found or Report(
        StopCause.SANDBOX_FAILED,
        f"the runtime on {node} cannot make the pod's sandbox: {_line(failed.message)}",
        "mend that; the pod's claims are not the reason unless the text names them",
    )


def readiness_report(events: Sequence[LiveEvent], unready: Sequence[str]) -> Report | None:
    """Return which probe keeps containers that run from being ready; None if none has said so."""
    failed = _latest(events, lambda one: one.reason == "Unhealthy" and not one.message.startswith("Liveness"))
    if failed is None or not unready:
        return None
    return Report(
        StopCause.CONTAINER_NOT_READY,
        f"container {', '.join(unready)} runs, and is not ready: {_line(failed.message)}",
        "see what the probe asks for, and whether it is given time; the pod's claims are prepared",
    )


def ending_report(events: Sequence[LiveEvent], node: str) -> Report | None:
    """Return why kubelet cannot end a pod's containers; None if it has not said so."""
    failed = _latest(events, lambda one: one.reason in ("FailedKillPod", "FailedPreStopHook"))
    if failed is None:
        return None
    return Report(
        StopCause.POD_NOT_ENDING,
        f"it is being deleted, and kubelet on {node} cannot end it: {_line(failed.message)}",
        "mend that on the node: its claims are held as long as its containers run, and nobody else gets the devices",
    )


def container_report(status: LiveContainerStatus, node: str) -> Report | None:
    """Return why a container does not run; None if it runs, has ended well, or is only on its way."""
    ended = status.state.terminated
    if ended is not None and ended.exit_code:
        return _ended(status.name, ended)
    waiting = status.state.waiting
    if waiting is None or waiting.reason in ("", "ContainerCreating", "PodInitializing"):
        return None
    if waiting.reason == "CrashLoopBackOff":
        return _ended(status.name, status.last_state.terminated or ContainerStateTerminated())
    return _waiting(status.name, waiting, node)


def _waiting(name: str, waiting: ContainerStateWaiting, node: str) -> Report:
    if waiting.reason in IMAGE_REASONS:
        return Report(
            StopCause.IMAGE_MISSING,
            f"the image of container {name} is not there ({waiting.reason}): {_line(waiting.message)}",
            "correct the image's name, or give the pod the rights to pull it; its claims are not the reason",
        )
    if waiting.reason == "CreateContainerConfigError":
        return Report(
            StopCause.CONTAINER_CONFIG,
            f"container {name} lacks what its configuration names: {_line(waiting.message)}",
            "create that ConfigMap, Secret or key; the pod's claims are not the reason",
        )
    return _read(RUNTIME_TEXTS, waiting.message, node=node) or Report(
        StopCause.CONTAINER_REFUSED,
        f"container {name} is not created ({waiting.reason}): {_line(waiting.message)}",
        "do what the runtime says",
    )


def _ended(name: str, last: ContainerStateTerminated) -> Report:
    reason = last.reason if last.reason != "Error" else ""
    message = " ".join(last.message.split()).rstrip(".")
    why = ", ".join(filter(None, (f"exit code {last.exit_code}", reason, message)))
    return Report(
        StopCause.CONTAINER_ENDS,
        f"container {name} starts and ends again ({why})",
        f"read what it says: kubectl logs with --previous -c {name}; its claims are prepared",
    )


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(".") or "no reason is given"
