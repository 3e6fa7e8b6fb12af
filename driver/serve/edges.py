"""Who is met beyond kubelet's calls: the API server or a folder in its place, the container runtime, the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dranode.driver.core.claims.calls import Claims, Preparer
    from dranode.driver.core.claims.events import Occurrence
    from dranode.driver.kubelet.podresources import PodResources
    from dranode.driver.machine.root import Root
    from dranode.driver.node.node import NodeClaims
    from dranode.driver.serve.announcer import Publication, Publisher


@dataclass(frozen=True, slots=True)
class Edges:
    """Whom one driver meets.

    Attributes:
        claims: where claims come from.
        publisher: where slices go.
        publication: who knows how the slices are; None if nobody does.
        pod_resources: kubelet's word on which containers have which claims; None if it cannot be asked.
        nri_socket: the runtime's NRI socket; None if containers are not to be pinned.
        root: where the cgroups of containers are read.
        report: puts a witness before a node, who tells the cluster what became of claims; None if nobody is told.
        own_pod: the UID of the pod that all this runs in; empty if it is not known.
        tell: tells people of what happened to the driver of that name unasked; None if nobody is told.
    """

    claims: Claims
    publisher: Publisher
    publication: Publication | None = None
    pod_resources: PodResources | None = None
    nri_socket: str | None = None
    root: Root | None = None
    report: Callable[[NodeClaims], Preparer] | None = None
    tell: Callable[[str, Occurrence], None] | None = None
    own_pod: str = ""
