"""Tables and sentences print text literally, and names unbroken."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from dranode.api.errors import printable
from dranode.show.output import console
from dranode.show.terminal import columns, hanging, show_rows

TEXT = "containers with unready status: [dranode] [red]x[/] [/] [dev]"


def printed(screen: Console, stream: io.StringIO, what: object) -> str:
    screen.print(what)
    return " ".join(stream.getvalue().split())


@pytest.mark.parametrize("markup", [True, False])
def test_table_cells_are_not_markup(*, markup: bool) -> None:
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


def test_sentences_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(TEXT)
    console().print(hanging("[label]", TEXT))
    out = " ".join(capsys.readouterr().out.split())
    assert out.count(TEXT) == 2
    assert "[label]" in out


NAMES = ("default/claim-of-a-long-name", "dra.example.com", "device-0000-17-00-0", "worker-17.example.internal")
SENTENCE = "waits for the claim default/other-claim, which holds what it needs"
CPUS = ",".join(f"{cpu}-{cpu + 1}" for cpu in range(0, 400, 4))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200, 700])
def test_names_and_numbers_are_never_broken_on_any_screen(width: int) -> None:
    stream = io.StringIO()
    table = columns("claim", "driver", "device", "node", "CPUs", "why")
    for suffix in ("", "-2"):
        table.add_row(*(f"{name}{suffix}" for name in NAMES), CPUS, SENTENCE)
    Console(file=stream, width=width, markup=False, highlight=False, force_terminal=True, color_system=None).print(
        table
    )
    shown = stream.getvalue()
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    words = shown.replace(",", " ").split()
    assert {f"{name}{suffix}" for name in NAMES for suffix in ("", "-2")} <= set(words)
    assert sorted(word for word in words if word in CPUS.split(",")) == sorted(CPUS.split(",") * 2)
    assert [words.count(word.strip(",")) for word in SENTENCE.split()] >= [2] * len(SENTENCE.split())


@pytest.mark.parametrize(
    "names",
    [["n" * 60, "m" * 60, "o" * 60], ["\u914d\u7f6e.yaml", "b", "c"], ["\U0001f469\u200d\U0001f467.yaml", "b", "c"]],
)
def test_a_pipe_gets_a_table_with_whole_names(capsys: pytest.CaptureFixture[str], names: list[str]) -> None:
    table = columns("first", "second", "third")
    table.add_row(*names)
    console().print(table)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown == [["first", "second", "third"], [*map(printable, names)]]


def test_a_row_may_lack_cells() -> None:
    stream = io.StringIO()
    table = columns("a", "b", "c")
    table.add_row("1")
    table.add_row("", "2", "3")
    Console(file=stream, width=40).print(table)
    assert [line.split() for line in stream.getvalue().splitlines()] == [["a", "b", "c"], ["1"], ["2", "3"]]


def test_a_name_wider_than_the_screen_is_printed_whole_on_several_lines() -> None:
    stream = io.StringIO()
    table = columns("name", "what")
    table.add_row("n" * 100, "x")
    Console(file=stream, width=40, force_terminal=True, color_system=None).print(table)
    assert "".join(stream.getvalue().split()).replace("name", "").replace("what", "") == "n" * 100 + "x"


@pytest.mark.parametrize("rows", [1, 1_001])
def test_long_lists_do_not_break_names_either(capsys: pytest.CaptureFixture[str], rows: int) -> None:
    show_rows(console(), ["name", "what"], [["a" * 90, SENTENCE]] * rows)
    assert "default/other-claim," in capsys.readouterr().out.split()
