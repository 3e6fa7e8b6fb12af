"""Progress on a terminal, next to what is printed meanwhile."""

import io

import pytest
from rich.console import Console

from dranode.show.output import reporting
from tests.fakes.screen import Screen


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_first_frame_is_drawn_before_anything_can_be_printed() -> None:
    terminal = Terminal()
    with reporting(Console(file=terminal, force_terminal=True, width=80)):
        assert "starting" in terminal.getvalue()


@pytest.mark.parametrize("texts", [["one"], ["one", "two", "three"]])
@pytest.mark.parametrize("total", [0, 3])
def test_printed_lines_stay_and_the_progress_is_gone_at_the_end(texts: list[str], total: int) -> None:
    terminal = Terminal()
    with reporting(screen := Console(file=terminal, force_terminal=True, width=80)) as progress:
        for text in texts:
            progress(f"at {text}", 1, total)
            screen.print(text)
    assert ("━" in terminal.getvalue()) == bool(total)
    assert [line for line in Screen(80, terminal.getvalue()).lines if line] == texts


def test_nothing_is_drawn_without_a_terminal() -> None:
    stream = io.StringIO()
    with reporting(Console(file=stream)) as progress:
        progress("at one")
    assert stream.getvalue() == ""
