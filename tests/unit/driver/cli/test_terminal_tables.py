"""Tables and sentences print texts of documents to the letter: what stands in square brackets is no markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from dranode.driver.cli.output import console
from dranode.driver.cli.terminal import columns, hanging, show_rows

TEXT = "containers with unready status: [dranode] [red]x[/] [/] [dev]"


def printed(screen: Console, stream: io.StringIO, what: object) -> str:
    screen.print(what)
    return " ".join(stream.getvalue().split())


@pytest.mark.parametrize("markup", [True, False])
def test_cells_of_a_table_are_no_markup(*, markup: bool) -> None:
    stream = io.StringIO()
    table = columns("name [of a driver]", "what")
    table.add_row("[a]", TEXT)
    table.add_row("b", Text("styled", style="red"))
    shown = printed(Console(file=stream, width=200, markup=markup, highlight=False), stream, table)
    assert TEXT in shown
    assert "[a]" in shown
    assert "name [of a driver]" in shown
    assert "styled" in shown


@pytest.mark.parametrize("rows", [1, 1_001])
def test_long_and_short_lists_print_the_same_texts(capsys: pytest.CaptureFixture[str], rows: int) -> None:
    show_rows(console(), ["name", "what"], [["[a]", TEXT]] * rows)
    assert TEXT in " ".join(capsys.readouterr().out.split())


def test_sentences_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(TEXT)
    console().print(hanging("[label]", TEXT))
    out = " ".join(capsys.readouterr().out.split())
    assert out.count(TEXT) == 2
    assert "[label]" in out
