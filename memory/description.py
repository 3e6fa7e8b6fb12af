"""The entry about memory in a claim's status."""

from __future__ import annotations

from typing import Any

from dranode.driver import Grant
from dranode.memory.devices import GivenMemory
from dranode.memory.page_size import short_name


def memory_description(grant: Grant) -> dict[str, Any]:
    """Return what the grant was given: `{"bytes": ..., "numaNodes": [...], "policy": ...}`, empty for admin access."""
    given = GivenMemory.of(grant)
    if given is None:
        return {}
    pages = {"pageSize": short_name(given.page_size)} if given.page_size else {}
    return {"bytes": given.size, "numaNodes": list(given.nodes), **pages, "policy": str(given.policy)}
