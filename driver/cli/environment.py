"""Which `DRANODE_*` variables mean something: a misspelt one is refused, since its option would be passed over."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from dranode.driver.core.api.errors import UsageError

_OURS: Final = "DRANODE_"
# Kubernetes tells containers of the Services of their namespace, `dranode` or `dranode-metrics` among them, and a
# container with a claim of dra.cpu is told what the claim holds.
_SERVICE: Final = "_SERVICE_HOST"
_OF_SERVICE: Final = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT")
_TOLD: Final = ("DRANODE_HELD_",)


def check_environment(environment: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse variables that look like options and are none.

    Args:
        environment: names and values.
        known: the names that mean something.

    Raises:
        UsageError: a variable is unknown; names the nearest one that is there.
    """
    names = sorted(known)
    services = tuple(
        name.removesuffix(_SERVICE) + end for name in environment if name.endswith(_SERVICE) for end in _OF_SERVICE
    )
    for name in sorted(set(environment) - set(names)):
        if name.startswith(_OURS) and not name.startswith((*_TOLD, *services)):
            ends = [each.removeprefix(_OURS) for each in names]
            near = difflib.get_close_matches(name.removeprefix(_OURS), ends, 1)
            hint = f"did you mean {_OURS}{near[0]}?" if near else f"there are {', '.join(names)}"
            raise UsageError(f"the environment variable {name} is unknown: {hint}")
