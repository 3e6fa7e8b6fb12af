"""Node selectors: which nodes they choose (k8s.io/component-helpers nodeaffinity), and their union in an allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dranode.api.resource import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm


def selects(selector: NodeSelector, node: Node) -> bool:
    """Return whether any term holds; a term without requirements holds for no node."""
    return any(_term_holds(term, node) for term in selector.node_selector_terms)


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(requirement_holds(each, node.metadata.labels) for each in term.match_expressions) and all(
        requirement_holds(each, fields) for each in term.match_fields
    )


def requirement_holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Return whether labels, or fields, satisfy one requirement; an unknown operator holds for none."""
    check = _OPERATORS.get(requirement.operator)
    return check is not None and check(labels.get(requirement.key), requirement.values)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _greater(value: str | None, values: tuple[str, ...]) -> bool:
    number, limit = _number(value), _number(values[0] if values else None)
    return number is not None and limit is not None and number > limit


def _less(value: str | None, values: tuple[str, ...]) -> bool:
    number, limit = _number(value), _number(values[0] if values else None)
    return number is not None and limit is not None and number < limit


_OPERATORS: Final[dict[str, Callable[[str | None, tuple[str, ...]], bool]]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value is None or value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _greater,
    "Lt": _less,
}


def only(node: str) -> NodeSelector:
    """The selector of one node."""
    requirement = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(requirement,)),))


def union(selectors: Iterable[NodeSelector]) -> NodeSelector | None:
    """One term with the requirements of the single terms of all, equal ones once; None if there are none."""
    terms = [term for selector in selectors for term in selector.node_selector_terms[:1]]
    fields = _distinct(each for term in terms for each in term.match_fields)
    expressions = _distinct(each for term in terms for each in term.match_expressions)
    if not fields and not expressions:
        return None
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=fields, match_expressions=expressions),))


def _distinct(requirements: Iterable[NodeSelectorRequirement]) -> tuple[NodeSelectorRequirement, ...]:
    seen: dict[tuple[str, str, frozenset[str]], NodeSelectorRequirement] = {}
    for each in requirements:
        seen.setdefault((each.key, each.operator, frozenset(each.values)), each)
    return tuple(seen.values())
