"""Derives the cause from what kubelet, the runtime and the controllers report about a pod.

The known texts are those of Kubernetes 1.37 (pkg/kubelet/cm/dra, pkg/kubelet/kuberuntime,
pkg/controller/resourceclaim), the runtimes' CDI errors, NRI's default validator, and this project's own. Any other text
is passed on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from dranode.tools.diagnosis.live_objects import (
    ContainerStateTerminated,
    ContainerStateWaiting,
    LiveContainerStatus,
    LiveEvent,
)
from dranode.tools.diagnosis.steps import Step, StopCause, stopped


class Report(msgspec.Struct, frozen=True):
    """Why a pod stopped, according to a report.

    Attributes:
        cause: the cause.
        what: the facts, in one sentence without a period; a driver's own sentence unchanged.
        fix: what to do.
    """

    cause: StopCause
    what: str
    fix: str


def reported(step: str, report: Report) -> Step:
    """Return the step that stopped according to a report."""
    return stopped(step, report.cause, report.what, report.fix)


_PREFIX: Final = re.compile(r"^(?:Failed to prepare dynamic resources: )?(?:prepare dynamic resources: )?")
PREPARE_FAILED: Final = "FailedPrepareDynamicResources"
# Events that are only created after a pod's claims were prepared.
_AFTER_PREPARE: Final = frozenset(("Pulling", "Pulled", "Created", "Started", "FailedCreatePodSandBox", "BackOff"))


def _read(known: Sequence[KnownText], text: str, **places: str) -> Report | None:
    for row in known:
        match = row.pattern.search(text)
        if match is not None:
            groups = [(group or "").strip().rstrip(".") for group in (match[0], *match.groups())]
            return Report(row.cause, row.what.format(*groups, **places), row.fix.format(*groups, **places))
    return None


def _latest(events: Iterable[LiveEvent], about: Callable[[LiveEvent], bool]) -> LiveEvent | None:
    return max(filter(about, events), key=lambda event: event.last_seen, default=None)


def creation_report(events: Iterable[LiveEvent], namespace: str, entry: str) -> Report | None:
    """Return why the claim for an entry of `spec.resourceClaims` was not created, according to its last Event."""
    event = _latest(
        events,
        lambda event: (
            event.reason == "FailedResourceClaimCreation" and event.message.startswith(f"PodResourceClaim {entry}:")
        ),
    )
    return _read(CREATION_TEXTS, event.message, namespace=namespace) if event is not None else None


def prepare_report(events: Sequence[LiveEvent], node: str) -> Report | None:
    """Return why kubelet could not have the pod's claims prepared; None if it did not fail, or succeeded later."""
    failed = _latest(events, lambda event: event.reason == PREPARE_FAILED)
    later = _latest(events, lambda event: event.reason in _AFTER_PREPARE)
    if failed is None or (later is not None and later.last_seen > failed.last_seen):
        return None
    return _read(PREPARE_TEXTS, _PREFIX.sub("", failed.message), node=node)


def scheduling_report(events: Iterable[LiveEvent]) -> str:
    """Return a scheduler's last message about why the pod does not fit; empty if there is none."""
    failed = _latest(events, lambda event: event.reason == "FailedScheduling")
    return failed.message if failed is not None else ""


def node_report(events: Sequence[LiveEvent], node: str) -> Report | None:
    """Return why kubelet cannot create the pod's containers yet: its volumes or its sandbox."""
    reasons = ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox")
    failed = _latest(events, lambda event: event.reason in reasons)
    later = _latest(events, lambda event: event.reason in ("Pulling", "Pulled", "Created", "Started"))
    if failed is None or (later is not None and later.last_seen > failed.last_seen):
        return None
    if failed.reason != "FailedCreatePodSandBox":
        return Report(
            StopCause.VOLUME_FAILED,
            f"a volume of the pod is missing: {_line(failed.message)}",
            "fix the volume; the pod's claims are not the reason",
        )
    return _read(RUNTIME_TEXTS, failed.message, node=node) or Report(
        StopCause.SANDBOX_FAILED,
        f"the runtime on {node} cannot create the pod's sandbox: {_line(failed.message)}",
        "fix this; the pod's claims are not the reason unless the message names them",
    )


def readiness_report(events: Sequence[LiveEvent], unready: Sequence[str]) -> Report | None:
    """Return which probe fails for running containers that are not ready; None if no probe is reported."""
    failed = _latest(events, lambda event: event.reason == "Unhealthy" and not event.message.startswith("Liveness"))
    if failed is None or not unready:
        return None
    return Report(
        StopCause.CONTAINER_NOT_READY,
        f"container {', '.join(unready)} runs, but is not ready: {_line(failed.message)}",
        "check what the probe tests, and whether it has enough time; the pod's claims are prepared",
    )


def ending_report(events: Sequence[LiveEvent], node: str) -> Report | None:
    """Return why kubelet cannot stop a pod's containers; None if it has not reported that."""
    failed = _latest(events, lambda event: event.reason in ("FailedKillPod", "FailedPreStopHook"))
    if failed is None:
        return None
    return Report(
        StopCause.POD_NOT_ENDING,
        f"it is being deleted, but kubelet on {node} cannot stop it: {_line(failed.message)}",
        "fix this on the node: as long as its containers run, its claims hold their devices",
    )


def container_report(status: LiveContainerStatus, node: str) -> Report | None:
    """Return why a container does not run; None if it runs, has succeeded, or is about to start."""
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
            f"the image of container {name} is not available ({waiting.reason}): {_line(waiting.message)}",
            "correct the image's name, or give the pod the rights to pull it; its claims are not the reason",
        )
    if waiting.reason == "CreateContainerConfigError":
        return Report(
            StopCause.CONTAINER_CONFIG,
            f"container {name} refers to configuration that does not exist: {_line(waiting.message)}",
            "create that ConfigMap, Secret or key; the pod's claims are not the reason",
        )
    return _read(RUNTIME_TEXTS, waiting.message, node=node) or Report(
        StopCause.CONTAINER_REFUSED,
        f"container {name} is not created ({waiting.reason}): {_line(waiting.message)}",
        "fix what the runtime says",
    )


def _ended(name: str, last: ContainerStateTerminated) -> Report:
    reason = last.reason if last.reason != "Error" else ""
    message = " ".join(last.message.split()).rstrip(".")
    why = ", ".join(filter(None, (f"exit code {last.exit_code}", reason, message)))
    return Report(
        StopCause.CONTAINER_ENDS,
        f"container {name} has ended ({why})",
        f"read its logs (kubectl logs --previous -c {name}); its claims are prepared",
    )


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(".") or "no reason is given"


class KnownText(msgspec.Struct, frozen=True):
    """A message of another program about a pod.

    Attributes:
        pattern: matches the message; its groups are `{1}`, `{2}` ... in `what` and `fix`.
        cause: the cause that it names.
        what: the facts, in one sentence without a period.
        fix: what to do.
    """

    pattern: re.Pattern[str]
    cause: StopCause
    what: str
    fix: str


def _text(pattern: str, cause: StopCause, what: str, fix: str) -> KnownText:
    return KnownText(re.compile(pattern, re.DOTALL), cause, what, fix)


_START = (
    "start the driver there: its DaemonSet's pod on that node is missing or not Ready, and kubectl get pods -A "
    "--field-selector spec.nodeName={node} shows it"
)
_DRIVER_SAYS = "fix what the driver reports; kubelet tries again by itself about every minute"

PREPARE_TEXTS: Final = (
    _text(
        r"DRA driver (\S+) is not registered",
        StopCause.DRIVER_NOT_REGISTERED,
        "kubelet on {node} has no driver {1} registered",
        _START,
    ),
    _text(
        r"NodePrepareResources failed for (?:ResourceClaim|claim) (\S+): (.*)",
        StopCause.PREPARE_REFUSED,
        "{2}",
        _DRIVER_SAYS,
    ),
    _text(
        r"NodePrepareResources(?: failed)?: rpc error: code = (?:DeadlineExceeded|Canceled) desc = (.*)",
        StopCause.DRIVER_NOT_ANSWERING,
        "a driver on {node} did not answer kubelet's NodePrepareResources within 45 s ({1})",
        "read the log of the driver's pod on {node}: it says what the driver waits for",
    ),
    _text(
        r"NodePrepareResources(?: failed)?: rpc error: code = Unavailable desc = (.*)",
        StopCause.DRIVER_NOT_ANSWERING,
        "nothing answers on the socket of a driver that is registered on {node} ({1})",
        _START,
    ),
    _text(
        r"NodePrepareResources(?: failed)?: rpc error: code = (\w+) desc = (.*)",
        StopCause.PREPARE_REFUSED,
        "{2}",
        _DRIVER_SAYS,
    ),
    _text(
        r"old ResourceClaim with same name (\S+) and different UID (\S+) still exists",
        StopCause.CLAIM_REPLACED,
        "kubelet on {node} still has an older claim named {1} (UID {2}) prepared, whose pod was deleted by force",
        "wait until it is unprepared, about a minute after its containers have ended; check with crictl ps on "
        "{node} whether one still runs",
    ),
    _text(
        r"pod \S+ \(\S+\) is not allowed to use (?:ResourceClaim|resource claim) (\S+)",
        StopCause.CLAIM_NOT_RESERVED,
        "the claim {1} is not reserved for the pod",
        "leave spec.nodeName out, so that kube-scheduler allocates and reserves the pod's claims",
    ),
    _text(
        r"ResourceClaim (\S+): not allocated",
        StopCause.CLAIM_NOT_ALLOCATED,
        "the claim {1} is not allocated, but kubelet on {node} has the pod already",
        "leave spec.nodeName out, so that kube-scheduler allocates the pod's claims",
    ),
    _text(
        r"fetch ResourceClaim (\S+): .*not found",
        StopCause.CLAIM_MISSING,
        "kubelet cannot find the claim {1}, which the pod names",
        "recreate the pod; a claim that was deleted while a pod used it does not come back by itself",
    ),
    _text(
        r"(ResourceClaim \S+ was not created for [Pp]od .*)",
        StopCause.CLAIM_OF_ANOTHER_POD,
        "{1}",
        "delete the claim of that name, or rename the pod, and recreate it",
    ),
    _text(
        r"(.*)",
        StopCause.KUBELET_ERROR,
        "kubelet on {node} says: {1}",
        "read kubelet's log there: journalctl -u kubelet",
    ),
)
"""The messages of `FailedPrepareDynamicResources` after their prefix; the first row that matches applies."""

CREATION_TEXTS: Final = (
    _text(
        r"PodResourceClaim (\S+): resource claim template \"([^\"]+)\": .*not found",
        StopCause.TEMPLATE_MISSING,
        'there is no ResourceClaimTemplate "{2}" in namespace {namespace}, from which the claim "{1}" would be created',
        "create the template in that namespace, or correct resourceClaimTemplateName; the pod continues by itself then",
    ),
    _text(
        r"PodResourceClaim (\S+): .*exceeded quota: (.*)",
        StopCause.QUOTA_EXCEEDED,
        'a ResourceQuota prevents the claim "{1}" from being created: exceeded quota: {2}',
        "delete unused claims of the namespace, or have the quota raised: kubectl describe quota -n {namespace}",
    ),
    _text(
        r"PodResourceClaim (\S+): (?:create ResourceClaim ?\S*: )?(.*)",
        StopCause.CLAIM_REFUSED,
        'the claim "{1}" cannot be created: {2}',
        "fix the template accordingly, or ask whoever set up that rule",
    ),
)
"""The resource claim controller's messages about an entry of `spec.resourceClaims`."""

RUNTIME_TEXTS: Final = (
    _text(
        r"unresolvable CDI devices (.*)",
        StopCause.CDI_UNRESOLVABLE,
        "the runtime on {node} finds no CDI spec for {1}",
        "check there with dranode doctor whether the runtime reads the driver's CDI directory; a lost spec is "
        "written again within a second",
    ),
    _text(
        r"(did not inject its CDI device.*)",
        StopCause.CDI_OFF,
        "CDI is off in the runtime on {node}: it {1}",
        "enable CDI (enable_cdi = true for containerd 1.7) and restart the runtime; dranode doctor names the file",
    ),
    _text(
        r"required plugins? (\S+) not present",
        StopCause.NRI_PLUGIN_MISSING,
        "the runtime on {node} does not create containers without the NRI plug-in {1}, which is not connected",
        _START,
    ),
    # The driver's message says if the containers are in different pods; `sharing: pod` only helps within one pod.
    _text(
        r"(claim \S+ is in use by .*): only containers of one pod may share it.*",
        StopCause.CLAIM_IN_USE,
        "{1}",
        "give each pod a claim of its own with a ResourceClaimTemplate; only containers of one pod may share this one",
    ),
    _text(
        r"(claim \S+ is in use by .*)",
        StopCause.CLAIM_IN_USE,
        "{1}",
        "give each container a request or a claim of its own, or let the claim be shared: sharing: pod",
    ),
    _text(
        r"(claims hold every CPU .*)",
        StopCause.NO_SHARED_CPUS,
        "{1}",
        "end a pod with a claim on that node, or let the driver reserve CPUs for the other containers",
    ),
)
"""The runtime's messages about a container or sandbox that it does not create."""

IMAGE_REASONS: Final = frozenset(
    (
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    )
)
"""The reasons of containers that wait for their image."""
