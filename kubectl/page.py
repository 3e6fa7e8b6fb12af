"""The page of `explain`: ways for people, and the same as a plain document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dranode.driver.cli.terminal import hanging
from dranode.driver.core.diagnosis.station import Passed, Station, Way

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Final = {Passed.YES: "green", Passed.STOPPED: "red", Passed.UNSEEN: "yellow"}
# As wide as the longest word, `stopped`, and one more.
_WORD: Final = 8


def page_document(about: str, ways: Sequence[Way], unasked: Sequence[str]) -> dict[str, Any]:
    """Return the page as a plain document.

    A station is `{"name", "passed", "what", "details", "fix", "cause"}`, a way `{"about", "claim", "driver", "stopped",
    "stations"}`, the page `{"about", "causes", "ways", "unasked"}`; `causes` are the stations that stop it, each as
    `{"cause", "about", "what", "details", "fix"}`.
    """
    return {
        "about": about,
        "causes": [
            {
                "cause": way.stopped.cause.value if way.stopped.cause else None,
                "about": way.about,
                "what": way.stopped.what,
                "details": list(way.stopped.details),
                "fix": way.stopped.fix,
            }
            for way in ways
            if way.stopped is not None
        ],
        "ways": [
            {
                "about": way.about,
                "claim": way.claim or None,
                "driver": way.driver or None,
                "stopped": way.stopped.name if way.stopped else None,
                "stations": [_station(station) for station in way.stations],
            }
            for way in ways
        ],
        "unasked": list(unasked),
    }


def _station(station: Station) -> dict[str, Any]:
    return {
        "name": station.name,
        "passed": station.passed.value,
        "what": station.what,
        "details": list(station.details),
        "fix": station.fix or None,
        "cause": station.cause.value if station.cause else None,
    }


def draw_page(screen: Console, ways: Sequence[Way], unasked: Sequence[str]) -> None:
    """Print the page for people."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    for way in ways:
        screen.print(f"{way.about}{f', {way.driver}' if way.driver else ''}", markup=False)
        # A column for the words, so that what follows hangs under its text.
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=_WORD)
        grid.add_column(overflow="fold")
        for station in way.stations:
            code = (f" ({station.cause})", "dim") if station.cause else ""
            style = _STYLES[station.passed]
            grid.add_row(Text(station.passed, style=style), Text.assemble(f"{station.name}: {station.what}", code))
            for line in station.details:
                grid.add_row("", Text(line))
            if station.fix:
                grid.add_row("", Text(f"-> {station.fix}"))
        screen.print(Padding(grid, (0, 0, 0, 2), expand=False))
    for sentence in unasked:
        screen.print(hanging("not seen", sentence, style="dim"))
