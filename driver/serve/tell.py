"""How people hear of what happens to a claim without anybody asking."""

from __future__ import annotations

from collections.abc import Callable

from dranode.driver.core.claims.events import Occurrence

# Passes it on as an Event, say, and never blocks.
Tell = Callable[[Occurrence], None]


def nobody(occurrence: Occurrence) -> None:
    """Tell nobody: the log has it already."""
    del occurrence
