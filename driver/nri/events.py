"""The requests and reports of a container runtime to an NRI plug-in, as values.

A request, which has a `stream`, must be answered through the session exactly once. Everything else has been answered.
"""

import re
from typing import Final

import msgspec

from dranode.driver.claims.users import PodSandbox
from dranode.driver.pinning.containers import Container, Resources

# Before NRI 0.12.1, an unsolicited UpdateContainers during a container event can deadlock the runtime
# (containerd/containerd issue 13733).
_SAFE_UPDATES: Final = (0, 12, 1)

# A version after a tag ("v0.12.1-31-g8ec8b28") has everything that the tag has; a pre-release ("v0.12.1-rc.1") may not.
_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:-\d+-g[0-9a-f]+)?(?:\+.*)?", re.ASCII)


class RuntimePeer(msgspec.Struct, frozen=True):
    """The container runtime at the other end.

    Attributes:
        name: `containerd` or `cri-o`.
        version: its own version.
        nri: the version of NRI that it reports; empty before NRI 0.12.
        request_timeout: how long it waits for an answer, in seconds.
    """

    name: str = ""
    version: str = ""
    nri: str = ""
    request_timeout: float = 2.0

    @property
    def takes_unsolicited_updates(self) -> bool:
        """Return whether UpdateContainers is safe; it is not if the version is missing or cannot be parsed."""
        match = _VERSION.fullmatch(self.nri)
        # If in doubt, updates wait for the next request, which is slow but safe.
        return match is not None and tuple(int(part or 0) for part in match.groups()) >= _SAFE_UPDATES

    def __str__(self) -> str:
        nri = f"NRI {self.nri}" if self.nri else "NRI before 0.12"
        return f"{self.name or 'a nameless runtime'} {self.version or 'without version'} ({nri})"


class PluginAccepted(msgspec.Struct, frozen=True):
    """The runtime accepted the plug-in's name and index."""


class RegistrationRefused(msgspec.Struct, frozen=True):
    """The runtime did not accept the plug-in. It leaves the socket open, so the plug-in has to close it."""

    message: str


class Configured(msgspec.Struct, frozen=True):
    """The runtime said who it is. This may come before `PluginAccepted`."""

    runtime: RuntimePeer


class SynchronizeRequest(msgspec.Struct, frozen=True):
    """All containers that exist now, from one or more messages. The answer is updates."""

    stream: int
    containers: tuple[Container, ...]


class CreateRequest(msgspec.Struct, frozen=True):
    """A container is about to be created. The answer is an adjustment and updates of others, or a refusal."""

    stream: int
    container: Container


class UpdateRequest(msgspec.Struct, frozen=True):
    """Somebody asks for new resources for a container. The answer is updates, of this one too, or a refusal.

    Attributes:
        requested: the requested CPUs and memory nodes; empty if none are requested.
        quota: the requested quota in microseconds; 0 if none is requested.
    """

    stream: int
    container: Container
    requested: Resources
    quota: int = 0


class StopRequest(msgspec.Struct, frozen=True):
    """A container has stopped or is about to. The answer is updates of others."""

    stream: int
    container: Container


class StartRequest(msgspec.Struct, frozen=True):
    """A container was created, with the process that will become its own, and is about to be started.

    The answer is empty, or a refusal.
    """

    stream: int
    container: Container


NRIRequest = SynchronizeRequest | CreateRequest | UpdateRequest | StopRequest | StartRequest


class ContainerStarted(msgspec.Struct, frozen=True):
    """A container's process runs."""

    container: Container


class ContainerRemoved(msgspec.Struct, frozen=True):
    """A container is gone."""

    container: Container


class PodGone(msgspec.Struct, frozen=True):
    """A pod sandbox was stopped or removed, so none of its containers runs."""

    pod: PodSandbox


class UpdatesAnswered(msgspec.Struct, frozen=True):
    """The answer to unsolicited updates. If it has a text, at least one of them was not applied."""

    error: str = ""


class ShutdownAnnounced(msgspec.Struct, frozen=True):
    """The runtime announces that it will close the connection."""


Notification = (
    PluginAccepted | Configured | ContainerStarted | ContainerRemoved | PodGone | UpdatesAnswered | ShutdownAnnounced
)
NRIEvent = RegistrationRefused | NRIRequest | Notification


def about(request: NRIRequest) -> str:
    """Return the subject of a request for the log: `pod=` and `container=`, or the number of `containers=`."""
    if isinstance(request, SynchronizeRequest):
        return f"containers={len(request.containers)}"
    return f"pod={request.container.pod} container={request.container.name}"
