"""A cluster's facts about one pod and its claims. A fact that was not asked is None or `UNASKED`, and not judged."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

import msgspec

from dranode.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dranode.tools.diagnosis.causes import StopCause
from dranode.tools.diagnosis.live_objects import LiveContainerStatus, LiveEvent, LiveNode, LivePod


class Presence(Enum):
    """The presence of an object; `UNASKED` means that it is unknown."""

    THERE = auto()
    MISSING = auto()
    UNASKED = auto()


class PodClaim(msgspec.Struct, frozen=True):
    """An entry of `spec.resourceClaims`, or the claim that kube-scheduler made for extended resources.

    Attributes:
        entry: its name in the pod; empty for extended resources.
        name: the claim's name; empty as long as it was not made.
        template: the template that it is made from; empty for none.
        needed: False if the cluster says that the pod needs no claim for the entry.
        presence: whether the claim exists.
        claim: the claim.
        template_presence: whether the template exists.
    """

    entry: str
    name: str = ""
    template: str = ""
    needed: bool = True
    presence: Presence = Presence.UNASKED
    claim: ResourceClaim | None = None
    template_presence: Presence = Presence.UNASKED


class NodeGroup(msgspec.Struct, frozen=True):
    """Nodes for which kube-scheduler's answer is the same.

    Attributes:
        nodes: their names.
        cause: why the pod cannot go there; None if nothing that was looked at keeps it.
        why: the same in a sentence.
    """

    nodes: tuple[str, ...]
    cause: StopCause | None
    why: str


class SchedulerAnswer(msgspec.Struct, frozen=True):
    """The allocator's answers about the pod's unallocated claims, node by node.

    Attributes:
        groups: the nodes, those that come nearest first.
        holders: who has devices of the drivers in question on the nearest nodes, a line each.
        cause: an error that ends the attempt for all nodes; None for none.
        error: the same in a sentence.
        extended: the extended resources that the pod asks for and a DeviceClass stands for, each with the class.
    """

    groups: tuple[NodeGroup, ...] = ()
    holders: tuple[str, ...] = ()
    cause: StopCause | None = None
    error: str = ""
    extended: tuple[tuple[str, str], ...] = ()

    @property
    def keeps(self) -> bool:
        """Return whether the pod is kept from every node."""
        return self.cause is not None or bool(self.groups and self.groups[0].cause is not None)


class FitAnswer(msgspec.Struct, frozen=True):
    """The answer of the whole model of kube-scheduler about one pod: its claims and everything else that decides.

    Attributes:
        node: where it would go now; empty for nowhere.
        message: kube-scheduler's sentence where it fits nowhere.
        groups: the nodes that refuse it, a line for those that do so alike.
        notes: what the answer does not rest on.
    """

    node: str
    message: str = ""
    groups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class PodFacts(msgspec.Struct, frozen=True):
    """The facts about one pod. None is a fact that could not be read.

    Attributes:
        name: `<namespace>/<name>`.
        presence: whether the pod exists.
        pod: the pod.
        claims: its claims.
        events: its Events, and those of its claims.
        node: the node that it is bound to; None if to none, or if that could not be read.
        node_presence: whether that node exists.
        published: the drivers that publish on that node.
        scheduler: the allocator's answer for claims that are not allocated; None if it was not asked.
        fit: the answer of the whole model, where the allocator's keeps the pod from no node; None if it was not asked.
        unasked: one sentence for everything that could not be asked.
    """

    name: str
    presence: Presence
    pod: LivePod | None = None
    claims: tuple[PodClaim, ...] = ()
    events: tuple[LiveEvent, ...] | None = None
    node: LiveNode | None = None
    node_presence: Presence = Presence.UNASKED
    published: frozenset[str] | None = None
    scheduler: SchedulerAnswer | None = None
    fit: FitAnswer | None = None
    unasked: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """Return the pod's namespace."""
        return self.name.partition("/")[0]

    @property
    def containers(self) -> tuple[LiveContainerStatus, ...]:
        """Return the status of its containers, those that initialise it first."""
        if self.pod is None:
            return ()
        return (*self.pod.status.init_container_statuses, *self.pod.status.container_statuses)

    @property
    def started(self) -> bool:
        """Return whether kubelet has come past Prepare: a container runs, has ended, or waits for something later."""
        on_the_way = ("", "ContainerCreating", "PodInitializing")
        states = [status.state for status in self.containers]
        waiting = (state.waiting for state in states if state.waiting is not None)
        return any(state.running is not None or state.terminated is not None for state in states) or any(
            state.reason not in on_the_way for state in waiting
        )

    @property
    def node_name(self) -> str:
        """Return the node that the pod is bound to; empty for none."""
        return self.pod.spec.node_name if self.pod is not None else ""


class ClusterObjects(msgspec.Struct, frozen=True):
    """The objects that the allocator needs, and those that say who may go where.

    Attributes:
        slices: all ResourceSlices.
        classes: all DeviceClasses.
        claims: all ResourceClaims.
        rules: all DeviceTaintRules, as plain documents.
        nodes: all nodes.
    """

    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    rules: tuple[Mapping[str, Any], ...] = ()
    nodes: tuple[LiveNode, ...] = ()
