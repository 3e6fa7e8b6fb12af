"""Label selectors (`k8s.io/apimachinery/pkg/apis/meta/v1`, LabelSelectorAsSelector)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final

from dranode.api.errors import DocumentError
from dranode.api.resource import APIDocument, NodeSelectorRequirement
from dranode.sim.allocator.nodeselector import requirement_holds

_WITH_VALUES: Final = ("In", "NotIn")
_WITHOUT_VALUES: Final = ("Exists", "DoesNotExist")


class LabelSelector(APIDocument, frozen=True, kw_only=True):
    """A selector of labels; an empty one matches all."""

    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()


class LabelMatcher:
    """A label selector that was checked, ready to match.

    Attributes:
        everything: whether it matches all labels.
    """

    __slots__ = ("_expressions", "_labels", "_nothing", "everything")

    def __init__(self, selector: LabelSelector | None, more: Iterable[NodeSelectorRequirement] = ()) -> None:
        """Check a selector, None matches nothing; `more` has to hold as well.

        Raises:
            DocumentError: an operator does not exist, or its values do not fit it.
        """
        self._nothing = selector is None
        selector = selector or LabelSelector()
        self._labels = tuple(selector.match_labels.items())
        self._expressions = (*selector.match_expressions, *more)
        self.everything = not self._nothing and not self._labels and not self._expressions
        for expression in self._expressions:
            _check(expression)

    @property
    def key(self) -> Hashable:
        """Return what is equal for matchers that say the same in the same words."""
        return self._nothing, self._labels, self._expressions

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels satisfy all requirements."""
        if self._nothing:
            return False
        for key, value in self._labels:
            if labels.get(key) != value:
                return False
        return all(requirement_holds(expression, labels) for expression in self._expressions)


def _check(expression: NodeSelectorRequirement) -> None:
    if expression.operator not in (*_WITH_VALUES, *_WITHOUT_VALUES):
        raise DocumentError(
            f'a label selector has no operator "{expression.operator}" (for {expression.key}); '
            "there are In, NotIn, Exists and DoesNotExist"
        )
    if (expression.operator in _WITH_VALUES) != bool(expression.values):
        raise DocumentError(
            f"the operator {expression.operator} for label {expression.key} has {len(expression.values)} values"
        )
