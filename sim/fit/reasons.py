"""Explains why a pod fits nowhere: in kube-scheduler's own words, and grouped for people with the causes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dranode.sim.allocator.explain import Miss, Stage
from dranode.sim.fit.scheduler import Placement
from dranode.sim.scheduler.requests import CPU, MEMORY, STORAGE
from dranode.sim.scheduler.resources import ResourceShortage

_MILLI: Final = 1000
_BINARY: Final = ("Ti", "Gi", "Mi", "Ki")


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Nodes that refuse a pod alike.

    Attributes:
        reasons: kube-scheduler's words.
        detail: what is behind them, in one phrase; empty where the words say all.
        nodes: the nodes, the one that lacks least first.
    """

    reasons: tuple[str, ...]
    detail: str
    nodes: tuple[str, ...]


def available(placement: Placement, nodes: int) -> str:
    """The sentence of the pod's FailedScheduling event, before it comes to preemption; `nodes` is how many there are.

    Source: `FitError` of kube-scheduler.
    """
    begin = f"0/{nodes} nodes are available:"
    if placement.problem:
        return f"{begin} {placement.problem}."
    counts = Counter(reason for refusal in placement.refusals.values() for reason in refusal.reasons)
    return f"{begin} {', '.join(sorted(f'{count} {reason}' for reason, count in counts.items()))}."


def group_line(group: RefusalGroup) -> str:
    """`312 nodes: Insufficient cpu: nearest is n17: 8 CPUs short`."""
    count = len(group.nodes)
    detail = f": {group.detail}" if group.detail else ""
    return f"{count} node{'' if count == 1 else 's'}: {', '.join(group.reasons)}{detail}"


def refusal_groups(placement: Placement, misses: Mapping[str, Miss]) -> tuple[RefusalGroup, ...]:
    """The nodes that refuse the pod, the greatest group first; `misses` says of nodes what the devices lack."""
    nodes: dict[tuple[tuple[str, ...], str, Stage | None], list[str]] = defaultdict(list)
    for name, refusal in placement.refusals.items():
        stage = misses[name].stage if name in misses else None
        nodes[refusal.reasons, refusal.detail, stage].append(name)
    groups = [_group(placement, misses, names) for names in nodes.values()]
    return tuple(sorted(groups, key=lambda group: (-len(group.nodes), group.reasons, group.detail)))


def _group(placement: Placement, misses: Mapping[str, Miss], names: list[str]) -> RefusalGroup:
    """Nodes that refuse the pod alike, the nearest first, and what is behind it there."""
    refusal = placement.refusals[names[0]]
    short = {name: placement.refusals[name].shortages for name in names}
    if names[0] in misses:
        nearest = sorted(names, key=lambda name: misses[name], reverse=True)
        behind = misses[nearest[0]].sentence
    else:
        nearest = sorted(names, key=lambda name: _lack(short[name]))
        behind = ", ".join(map(_shortage, short[nearest[0]]))
    if behind and len(names) > 1:
        behind = f"nearest is {nearest[0]}: {behind}"
    return RefusalGroup(refusal.reasons, refusal.detail or behind, tuple(nearest))


def readable_amount(resource: str, value: int) -> str:
    """An amount of a resource for people: `1.5 CPUs`, `3.5Gi of memory`, `2 of example.com/widget`."""
    if resource == CPU:
        return f"{value / _MILLI:g} CPU{'' if value == _MILLI else 's'}"
    if resource in (MEMORY, STORAGE) or resource.startswith("hugepages-"):
        return f"{_bytes(value)} of {resource}"
    return f"{value} {resource}" if "/" not in resource else f"{value} of {resource}"


def _bytes(value: int) -> str:
    for power, suffix in zip((4, 3, 2, 1), _BINARY, strict=True):
        if value >= 1024**power:
            return f"{value / 1024**power:.4g}{suffix}"
    return str(value)


def _lack(short: tuple[ResourceShortage, ...]) -> tuple[float, ...]:
    """Return how much is missing, as parts of what is asked; less is nearer."""
    return tuple(shortage.missing / shortage.requested for shortage in short)


def _shortage(short: ResourceShortage) -> str:
    missing, asked, free = (
        readable_amount(short.resource, value) for value in (short.missing, short.requested, max(short.free, 0))
    )
    return f"{missing} short (asked {asked}, free {free})"
