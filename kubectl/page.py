"""The page of `explain`: ways for people, and the same as a plain document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dranode.driver.core.diagnosis.station import Passed, Station, Way

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Final = {Passed.YES: "green", Passed.STOPPED: "red", Passed.UNSEEN: "yellow"}
_INDENT: Final = 11


def page_document(about: str, ways: Sequence[Way], unasked: Sequence[str]) -> dict[str, Any]:
    """Return the page as a plain document.

    `{"about", "causes": [{"cause", "about", "what", "fix"}], "ways": [{"about", "claim", "driver", "stopped",
    "stations": [{"name", "passed", "what", "fix", "cause"}]}], "unasked": [...]}`; `causes` are those that stop it.
    """
    return {
        "about": about,
        "causes": [
            {
                "cause": way.stopped.cause.value if way.stopped.cause else None,
                "about": way.about,
                "what": way.stopped.what,
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
        "fix": station.fix or None,
        "cause": station.cause.value if station.cause else None,
    }


def draw_page(screen: Console, ways: Sequence[Way], unasked: Sequence[str]) -> None:
    """Print the page for people."""
    from rich.markup import escape
    from rich.padding import Padding

    def line(text: str, indent: int) -> None:
        screen.print(Padding(text, (0, 0, 0, indent), expand=False))

    for way in ways:
        screen.print(f"{way.about}{f', {way.driver}' if way.driver else ''}", markup=False)
        for station in way.stations:
            code = f" [dim]({station.cause})[/]" if station.cause else ""
            line(f"[{_STYLES[station.passed]}]{station.passed:8}[/] {station.name}: {escape(station.what)}{code}", 2)
            if station.fix:
                line(escape(f"-> {station.fix}"), _INDENT)
    for sentence in unasked:
        screen.print(f"[dim]not seen  {escape(sentence)}[/]")
