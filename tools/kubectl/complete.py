"""Completion for bash, zsh and fish: by kubectl's own, which calls `kubectl_complete-dranode`, and by click's.

kubectl's completion runs that program with the words so far and expects cobra's answer: a candidate a line, with its
description after a tab, and a last line `:4`, which says that no file name is meant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete

from dranode.api.errors import DranodeError
from dranode.api.resource import APIDocument, ObjectMeta
from dranode.show.cluster_objects import ApiObjects
from dranode.show.cluster_option import named_cluster

_NO_FILES: Final = ":4"
_PROGRAM: Final = "kubectl-dranode"
_VARIABLE: Final = "_KUBECTL_DRANODE_COMPLETE"
_MOST: Final = 200


class _Named(APIDocument, frozen=True, kw_only=True):
    """Any object, by its name alone."""

    metadata: ObjectMeta = ObjectMeta()


def names_of(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what completes the names of a kind in the cluster; nothing where that cannot be asked."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del parameter
        with contextlib.suppress(DranodeError):
            return [CompletionItem(name) for name in _names(kind, ctx.params) if name.startswith(incomplete)][:_MOST]
        return []

    return complete


def _names(kind: str, options: dict[str, Any]) -> list[str]:
    given = (str(options.get(name) or "") for name in ("kubeconfig", "context", "namespace"))
    cluster = named_cluster(*given)
    if cluster is None:
        return []
    namespace = "" if kind == "Node" else cluster.namespace
    return sorted(named.metadata.name for named in ApiObjects(cluster.client).values(_Named, kind, namespace))


def candidates(command: click.Command, words: list[str]) -> Iterator[str]:
    """Yield cobra's answer to kubectl's completion: candidates for the last of the words, then `:4`."""
    *before, incomplete = words or [""]
    for item in ShellComplete(command, {}, _PROGRAM, _VARIABLE).get_completions(before, incomplete):
        yield f"{item.value}\t{item.help}" if item.help else str(item.value)
    yield _NO_FILES
