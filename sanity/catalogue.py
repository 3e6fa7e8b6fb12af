"""The list of all checks."""

from __future__ import annotations

import dranode.sanity.checks  # noqa: F401 - importing registers them
from dranode.sanity.check import Check, registered


def all_checks() -> tuple[Check, ...]:
    """Every check, group by group."""
    return registered()
