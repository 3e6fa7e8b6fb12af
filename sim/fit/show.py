"""Answers for people and for programs."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding

from dranode.api.documents import encode
from dranode.api.errors import number_of
from dranode.show.terminal import columns, hanging, show_rows
from dranode.sim.fit.choice import PodChoice, group_line
from dranode.sim.fit.questions import PodAnswer
from dranode.sim.scheduler.scores import NodeTotal

_TIED_SHOWN: Final = 4
_PODS_SHOWN: Final = 3
_REASONS_SHOWN: Final = 20
_SCORES_SHOWN: Final = 10


def answer_document(answer: PodAnswer, *, named: bool) -> dict[str, Any]:
    """Return the answer for a pod as a plain document; if nodes are not `named`, their lists are null."""
    choice = answer.choice
    placement = answer.placement if named else None
    groups = answer.refusals(placement) if placement else [(group, None) for group in choice.groups]
    return {
        "pod": choice.pod,
        "node": (placement or choice).node,
        "tied": list(placement.tied) if placement else None,
        "message": choice.message or None,
        "problem": (placement or choice).problem or None,
        "refusals": [
            {
                "reasons": list(group.reasons),
                "detail": group.detail or None,
                "nodes": list(nodes) if nodes is not None else None,
                "count": group.count,
            }
            for group, nodes in groups
        ],
        "scores": [
            {"node": score.node, "total": score.total, "plugins": dict(score.plugins)} for score in placement.scores
        ]
        if placement
        else None,
        "claims": _claims(choice),
        "notes": list(answer.notes),
    }


def _claims(choice: PodChoice) -> list[dict[str, Any]]:
    return [
        {
            "namespace": outcome.claim.metadata.namespace,
            "name": outcome.claim.metadata.name,
            "allocation": encode(outcome.allocation) if outcome.allocation is not None else None,
        }
        for outcome in choice.outcomes
    ]


def show_answers(screen: Console, answers: Sequence[PodAnswer], *, scores: bool) -> None:
    """Print the node of each pod, or why it has none; equal reasons and notes are printed once for all their pods."""
    rows = [(answer.choice.pod, answer.choice.node or "-", _because(answer)) for answer in answers]
    show_rows(screen, ("pod", "node", "because"), rows)
    stuck: dict[Hashable, list[PodAnswer]] = defaultdict(list)
    notes: dict[str, list[str]] = defaultdict(list)
    for answer in answers:
        if answer.choice.message:
            stuck[answer.choice.message, answer.choice.groups].append(answer)
        for note in answer.notes:
            notes[note].append(answer.choice.pod)
    reasons = list(stuck.values())
    for alike in reasons[:_REASONS_SHOWN]:
        screen.print()
        screen.print(hanging(_pods([answer.choice.pod for answer in alike]), alike[0].choice.message))
        for group in alike[0].choice.groups:
            nodes, _, why = group_line(group).partition(": ")
            screen.print(Padding(hanging(nodes, why, style=""), (0, 0, 0, 2)))
    if len(reasons) > _REASONS_SHOWN:
        hidden = sum(map(len, reasons[_REASONS_SHOWN:]))
        screen.print(f"\nand {hidden} more pods fit nowhere for other reasons; see -o json", markup=False)
    for answer in answers if scores else ():
        if answer.choice.node is not None:
            _show_scores(screen, answer.choice.pod, answer.placement.scores)
    for note, pods in notes.items():
        screen.print(hanging(f"{_pods(pods)}: note:", note, style=""))


def _pods(pods: Sequence[str]) -> str:
    """Return `x/a`, `x/a, x/b` or `x/a, x/b, x/c and 40 more pods`."""
    more = f" and {len(pods) - _PODS_SHOWN} more pods" if len(pods) > _PODS_SHOWN else ""
    return f"{', '.join(pods[:_PODS_SHOWN])}{more}"


def _because(answer: PodAnswer) -> str:
    choice = answer.choice
    if choice.best is None:
        return choice.problem or f"no room on {number_of(len(answer.before.nodes), 'node')}"
    if choice.best.feasible == 1:
        return "the only node that fits"
    among = f"best score of {choice.best.feasible} nodes that fit: {choice.best.total}"
    if choice.best.tied == 1:
        return among
    others = choice.best.first[1 : _TIED_SHOWN + 1]
    hidden = choice.best.tied - 1 - len(others)
    return f"{among}; tied with {', '.join(others)}{f' and {hidden} more' if hidden else ''}, chosen at random"


def _show_scores(screen: Console, pod: str, scores: Sequence[NodeTotal]) -> None:
    if not scores:
        return
    plugins = list(dict.fromkeys(plugin for score in scores for plugin in score.plugins))
    table = columns("node", "total", *plugins)
    best = sorted(scores, key=lambda score: -score.total)
    for score in best[:_SCORES_SHOWN]:
        table.add_row(score.node, str(score.total), *(str(score.plugins[plugin]) for plugin in plugins))
    screen.print(f"\nScores for {pod}:", markup=False)
    screen.print(table)
    if len(best) > _SCORES_SHOWN:
        screen.print(f"and {len(best) - _SCORES_SHOWN} more nodes")
