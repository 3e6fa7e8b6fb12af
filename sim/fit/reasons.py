"""Explains why a pod fits nowhere: in kube-scheduler's own words, and grouped for people with the causes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dranode.api.errors import capitalized, number_of
from dranode.sim.allocator.explain import Miss, Stage
from dranode.sim.allocator.result import Oddity
from dranode.sim.scheduler.filters import Refusal
from dranode.sim.scheduler.requests import CPU, HUGE_PAGES, MEMORY, PODS, STORAGE
from dranode.sim.scheduler.resources import ResourceShortage

_MILLI: Final = 1000
_LARGE: Final = 1 << 63
_BINARY: Final = ("Ti", "Gi", "Mi", "Ki")


@dataclass(frozen=True, slots=True)
class RefusalCase:
    """Nodes that refuse a pod for one reason and the same numbers; a node by itself is one, too.

    Attributes:
        refusal: why.
        miss: what the devices lack; None if it is not for them.
        node: the first of the nodes.
        count: how many they are.
        oddities: what is odd about it, though kube-scheduler has it so.
    """

    refusal: Refusal
    miss: Miss | None
    node: str
    count: int = 1
    oddities: frozenset[Oddity] = frozenset()


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Nodes that refuse a pod alike.

    Attributes:
        reasons: kube-scheduler's words.
        detail: the cause in plain words, without a full stop; empty where the reasons say all.
        count: how many nodes they are.
        hopeless: whether an eviction would help on none of them.
        nearest: the one that lacks least.
    """

    reasons: tuple[str, ...]
    detail: str
    count: int
    hopeless: bool
    nearest: RefusalCase


def available(reasons: Mapping[str, int], nodes: int, problem: str = "") -> str:
    """The sentence of the pod's FailedScheduling event, before it comes to preemption.

    Args:
        reasons: how many nodes have each reason.
        nodes: how many nodes there are.
        problem: why no node was looked at, if none was.

    Source: `FitError` of kube-scheduler.
    """
    begin = f"0/{nodes} nodes are available:"
    if problem:
        return f"{begin} {problem}."
    return f"{begin} {', '.join(sorted(f'{count} {reason}' for reason, count in reasons.items()))}."


def reason_counts(cases: Iterable[RefusalCase]) -> Counter[str]:
    """Return how many nodes have each reason; a node may have several."""
    counts: Counter[str] = Counter()
    for case in cases:
        for reason in case.refusal.reasons:
            counts[reason] += case.count
    return counts


def group_line(group: RefusalGroup) -> str:
    """`312 nodes: Insufficient cpu. Closest: n17. The pod needs 12 CPUs, 4 CPUs are free (8 CPUs too few)`."""
    joint = ": " if group.detail == group.nearest.refusal.detail else ". "
    detail = f"{joint}{group.detail}" if group.detail else ""
    return f"{number_of(group.count, 'node')}: {', '.join(group.reasons)}{detail}"


def refusal_groups(cases: Iterable[RefusalCase]) -> list[tuple[RefusalGroup, list[RefusalCase]]]:
    """The cases that are alike together, the group with the most nodes first; in each the one that lacks least first.

    `cases` come in the order of their first nodes.
    """
    alike: dict[tuple[tuple[str, ...], str, Stage | None], list[RefusalCase]] = defaultdict(list)
    for case in cases:
        stage = case.miss.stage if case.miss is not None else None
        alike[case.refusal.reasons, case.refusal.detail, stage].append(case)
    groups = [_group(each) for each in alike.values()]
    return sorted(groups, key=lambda pair: (-pair[0].count, pair[0].reasons, pair[0].detail))


def _group(cases: list[RefusalCase]) -> tuple[RefusalGroup, list[RefusalCase]]:
    """One group, and its cases, the nearest first."""
    count = sum(case.count for case in cases)
    refusal = cases[0].refusal
    misses = [(case.miss, case) for case in cases if case.miss is not None]
    if misses:
        misses.sort(key=lambda pair: pair[0], reverse=True)
        nearest = [case for _, case in misses]
        behind = misses[0][0].sentence
    else:
        nearest = sorted(cases, key=lambda case: _lack(case.refusal.shortages))
        behind = "; ".join(map(_shortage, nearest[0].refusal.shortages))
    if behind:
        behind = capitalized(behind)
    if behind and count > 1:
        behind = f"Closest: {nearest[0].node}. {behind}"
    hopeless = all(case.refusal.hopeless for case in cases)
    return RefusalGroup(refusal.reasons, refusal.detail or behind, count, hopeless, nearest[0]), nearest


def readable_amount(resource: str, value: int) -> str:
    """An amount of a resource for people: `1.5 CPUs`, `3.5Gi of memory`, `2 of example.com/widget`."""
    if resource == CPU:
        # A document may ask for more than a float can be.
        amount = f"{value / _MILLI:g}" if value < _LARGE else str(value // _MILLI)
        return f"{amount} CPU{'' if value == _MILLI else 's'}"
    if resource in (MEMORY, STORAGE) or resource.startswith("hugepages-"):
        return f"{_bytes(value)} of {resource}"
    if resource == "pods":
        return number_of(value, "pod")
    return f"{value} {resource}" if "/" not in resource else f"{value} of {resource}"


def _bytes(value: int) -> str:
    for power, suffix in zip((4, 3, 2, 1), _BINARY, strict=True):
        if 1024**power <= value < _LARGE:
            return f"{value / 1024**power:.4g}{suffix}"
    return str(value)


def _lack(short: tuple[ResourceShortage, ...]) -> tuple[Fraction, ...]:
    """Return how much is missing, as parts of what is asked; less is nearer."""
    return tuple(Fraction(shortage.missing, shortage.requested) for shortage in short)


def _shortage(short: ResourceShortage) -> str:
    if short.resource == PODS:
        return f"the node takes no more than {number_of(short.allocatable, 'pod')}"
    missing, asked, free = (
        readable_amount(short.resource, value) for value in (short.missing, short.requested, max(short.free, 0))
    )
    few = "little" if short.resource in (MEMORY, STORAGE) or short.resource.startswith(HUGE_PAGES) else "few"
    return f"the pod needs {asked}, the node has {free} free ({missing} too {few})"
