"""The texts of kubelet, the runtime and the controllers on pods, and the causes that they name.

They are those of Kubernetes 1.37 (pkg/kubelet/cm/dra, pkg/kubelet/kuberuntime, pkg/controller/resourceclaim), the
runtimes' CDI errors, NRI's default validator, and this project's own.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dranode.tools.diagnosis.causes import StopCause


class KnownText(msgspec.Struct, frozen=True):
    """A form of text that others write of a pod.

    Attributes:
        pattern: finds it; its groups are `{1}`, `{2}` ... in what follows.
        cause: the cause that it names.
        what: the facts, in one sentence without a full stop.
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
_AS_IT_SAYS = "do what the driver says; kubelet asks again by itself every minute or so"

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
        _AS_IT_SAYS,
    ),
    _text(
        r"NodePrepareResources(?: failed)?: rpc error: code = (?:DeadlineExceeded|Canceled) desc = (.*)",
        StopCause.DRIVER_NOT_ANSWERING,
        "a driver on {node} did not answer kubelet's NodePrepareResources within 45 s ({1})",
        "read the log of the driver's pod on {node}: what it waits for is there",
    ),
    _text(
        r"NodePrepareResources(?: failed)?: rpc error: code = Unavailable desc = (.*)",
        StopCause.DRIVER_NOT_ANSWERING,
        "nobody answers on the socket of a driver that is registered on {node} ({1})",
        _START,
    ),
    _text(
        r"NodePrepareResources(?: failed)?: rpc error: code = (\w+) desc = (.*)",
        StopCause.PREPARE_REFUSED,
        "{2}",
        _AS_IT_SAYS,
    ),
    _text(
        r"old ResourceClaim with same name (\S+) and different UID (\S+) still exists",
        StopCause.CLAIM_REPLACED,
        "kubelet on {node} still has an older claim of the name {1} (UID {2}) prepared, whose pod was deleted by force",
        "wait for it to be unprepared, within a minute or so once its containers have ended; see with crictl ps on "
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
        "the claim {1} is not allocated, and kubelet on {node} has the pod already",
        "leave spec.nodeName out, so that kube-scheduler allocates the pod's claims",
    ),
    _text(
        r"fetch ResourceClaim (\S+): .*not found",
        StopCause.CLAIM_MISSING,
        "kubelet does not find the claim {1}, which the pod names",
        "recreate the pod; one that was deleted under a pod does not come back by itself",
    ),
    _text(
        r"(ResourceClaim \S+ was not created for [Pp]od .*)",
        StopCause.CLAIM_OF_ANOTHER_POD,
        "{1}",
        "delete the claim of that name, or call the pod otherwise, and recreate the pod",
    ),
    _text(
        r"(.*)",
        StopCause.KUBELET_ERROR,
        "kubelet on {node} says: {1}",
        "read kubelet's log there: journalctl -u kubelet",
    ),
)
"""What `FailedPrepareDynamicResources` says after its prefix; the first row that fits counts."""

CREATION_TEXTS: Final = (
    _text(
        r"PodResourceClaim (\S+): resource claim template \"([^\"]+)\": .*not found",
        StopCause.TEMPLATE_MISSING,
        'there is no ResourceClaimTemplate "{2}" in namespace {namespace}, from which the claim "{1}" would be made',
        "create the template in that namespace, or correct resourceClaimTemplateName; the pod goes on by itself then",
    ),
    _text(
        r"PodResourceClaim (\S+): .*exceeded quota: (.*)",
        StopCause.QUOTA_EXCEEDED,
        'a ResourceQuota keeps the claim "{1}" from being made: exceeded quota: {2}',
        "delete claims of the namespace that nobody needs, or have the quota raised: kubectl describe quota -n "
        "{namespace}",
    ),
    _text(
        r"PodResourceClaim (\S+): (?:create ResourceClaim ?\S*: )?(.*)",
        StopCause.CLAIM_REFUSED,
        'the claim "{1}" cannot be made: {2}',
        "mend the template accordingly, or ask who set that rule up",
    ),
)
"""What the resource claim controller says of an entry of `spec.resourceClaims`."""

RUNTIME_TEXTS: Final = (
    _text(
        r"unresolvable CDI devices (.*)",
        StopCause.CDI_UNRESOLVABLE,
        "the runtime on {node} finds no CDI spec for {1}",
        "see there whether the runtime reads the driver's CDI directory: dranode doctor; a spec that was lost is "
        "written again within a second",
    ),
    _text(
        r"(did not inject its CDI device.*)",
        StopCause.CDI_OFF,
        "CDI is off in the runtime on {node}: it {1}",
        "switch CDI on: enable_cdi = true for containerd 1.7, then restart it; dranode doctor there says which file",
    ),
    _text(
        r"required plugins? (\S+) not present",
        StopCause.NRI_PLUGIN_MISSING,
        "the runtime on {node} creates no container without the NRI plug-in {1}, which is not connected",
        _START,
    ),
    # The driver says whether containers of one pod or two pods want it, of which `sharing: pod` helps the first alone.
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
        "end a claim of that node, or let the driver reserve CPUs for the rest",
    ),
)
"""What the runtime says where a container or its sandbox is not created."""

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
"""The reasons for which a container waits for its image."""
