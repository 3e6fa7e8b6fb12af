"""Answers for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding

from dranode.driver.cli.terminal import columns, hanging
from dranode.driver.core.api.documents import encode
from dranode.sim.fit.questions import PodAnswer
from dranode.sim.fit.reasons import group_line
from dranode.sim.scheduler.scores import NodeTotal

_TIED_SHOWN: Final = 4
_SCORES_SHOWN: Final = 10


def answer_document(answer: PodAnswer) -> dict[str, Any]:
    """One pod's answer as a plain document."""
    placement = answer.placement
    return {
        "pod": placement.pod,
        "node": placement.node,
        "tied": list(placement.tied),
        "message": answer.message or None,
        "problem": placement.problem or None,
        "refusals": [
            {"reasons": list(group.reasons), "detail": group.detail or None, "nodes": list(group.nodes)}
            for group in answer.groups
        ],
        "scores": [
            {"node": score.node, "total": score.total, "plugins": dict(score.plugins)} for score in placement.scores
        ],
        "claims": [
            {
                "namespace": outcome.claim.metadata.namespace,
                "name": outcome.claim.metadata.name,
                "allocation": encode(outcome.allocation) if outcome.allocation is not None else None,
            }
            for outcome in placement.outcomes
        ],
        "notes": list(answer.notes),
    }


def show_answers(screen: Console, answers: Sequence[PodAnswer], *, scores: bool) -> None:
    """Print where each pod goes, and why those go nowhere that do not."""
    table = columns("pod", "node", "because")
    for answer in answers:
        table.add_row(answer.placement.pod, answer.placement.node or "-", _because(answer))
    screen.print(table)
    for answer in answers:
        if answer.message:
            screen.print()
            screen.print(hanging(answer.placement.pod, answer.message))
            for group in answer.groups:
                nodes, _, why = group_line(group).partition(": ")
                screen.print(Padding(hanging(nodes, why, style=""), (0, 0, 0, 2)))
        if scores and answer.placement.scores:
            _show_scores(screen, answer.placement.pod, answer.placement.scores)
        for note in answer.notes:
            screen.print(hanging(f"{answer.placement.pod}: note:", note, style=""))


def _because(answer: PodAnswer) -> str:
    placement = answer.placement
    if placement.node is None:
        return placement.problem or f"none of {len(placement.refusals)} nodes has room"
    if not placement.scores:
        return "the only node that fits"
    best = max(score.total for score in placement.scores)
    among = f"scores {best}, the best of {len(placement.scores)} that fit"
    if len(placement.tied) == 1:
        return among
    others = placement.tied[1 : _TIED_SHOWN + 1]
    more = f" and {len(placement.tied) - 1 - len(others)} more" if len(placement.tied) > _TIED_SHOWN + 1 else ""
    return f"{among}; a lottery with {', '.join(others)}{more}"


def _show_scores(screen: Console, pod: str, scores: Sequence[NodeTotal]) -> None:
    plugins = list(dict.fromkeys(plugin for score in scores for plugin in score.plugins))
    table = columns("node", "total", *plugins)
    best = sorted(scores, key=lambda score: -score.total)
    for score in best[:_SCORES_SHOWN]:
        table.add_row(score.node, str(score.total), *(str(score.plugins[plugin]) for plugin in plugins))
    screen.print(f"\nScores for {pod}:", markup=False)
    screen.print(table)
    if len(best) > _SCORES_SHOWN:
        screen.print(f"and {len(best) - _SCORES_SHOWN} nodes more")
