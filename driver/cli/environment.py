"""Refuses unknown `DRANODE_*` variables: a misspelt one would silently leave its option at the default."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dranode.driver.core.api.errors import UsageError

_OURS: Final = "DRANODE_"
# Not options: Kubernetes sets variables for the Services of the namespace, such as `dranode` or `dranode-metrics`, and
# drivers set some for the containers of a claim.
_SERVICE: Final = "_SERVICE_HOST"
_OF_SERVICE: Final = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT")
_OF_CLAIMS: Final = ("DRANODE_HELD_", "DRANODE_CPUSET_", "DRANODE_ISOLATION_", "DRANODE_SHARED_")


def check_environment(environment: Mapping[str, str], known: Iterable[str], others: Iterable[str] = ()) -> None:
    """Refuse variables that look like options, but are not; see `unknown_variables`.

    Raises:
        UsageError: a variable is unknown; the message names the nearest known one.
    """
    for sentence in unknown_variables(environment, known, others):
        raise UsageError(sentence)


def unknown_variables(
    environment: Mapping[str, str], known: Iterable[str], others: Iterable[str] = ()
) -> Iterator[str]:
    """Yield a sentence for each variable that looks like an option, but is none, with the nearest known one.

    Args:
        environment: names and values.
        known: the names of the options' variables.
        others: prefixes of names that may belong to options which are not known here.
    """
    names = sorted(known)
    services = tuple(
        name.removesuffix(_SERVICE) + end for name in environment if name.endswith(_SERVICE) for end in _OF_SERVICE
    )
    for name in sorted(set(environment) - set(names)):
        if name.startswith(_OURS) and not name.startswith((*_OF_CLAIMS, *services, *others)):
            ends = [each.removeprefix(_OURS) for each in names]
            near = difflib.get_close_matches(name.removeprefix(_OURS), ends, 1)
            hint = f"did you mean {_OURS}{near[0]}?" if near else f"there are {', '.join(names)}"
            yield f"the environment variable {name} is unknown: {hint}"
