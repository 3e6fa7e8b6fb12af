"""Tables and labeled texts on a terminal, the same in every command."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dranode.api.errors import number_of, printable
from dranode.api.resource import Device, DeviceCapacity, ResourceSlice
from dranode.show.picture.devices import attribute_text
from dranode.show.picture.node import NodePicture
from dranode.show.picture.text import node_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text


# A longer label gets a line of its own.
_LABEL_COLUMNS: Final = 24
_INDENT: Final = 2
_MOST_MEASURED: Final = 1_000
_GAP: Final = 2
_PIECE: Final = re.compile(r"[^,]*,|[^,]+")
# A piece with the following white space.
_PART: Final = re.compile(r"[^,\s]*(?:,|\s+)|[^,\s]+")


class PlainTable:
    """Rows of texts under names, without lines; texts are wrapped between words and never cut.

    Texts are printed literally: square brackets are not markup. A styled text is a `Text`.
    A name stays in one piece, so that it can be searched for and copied: where a terminal is too narrow for the longest
    names of all columns, each row is a block with a line for each of its cells. A file or a pipe has longer lines then.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Start without rows."""
        self._names = names
        self._rows: list[list[Text]] = []

    @property
    def row_count(self) -> int:
        """Return how many rows there are."""
        return len(self._rows)

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; missing cells are empty."""
        from rich.text import Text

        # Characters that are printed as escapes are wider than they are, so they are replaced before the layout.
        row = [Text("\n".join(map(printable, cell.split("\n")))) if isinstance(cell, str) else cell for cell in cells]
        self._rows.append([*row, *(Text() for _ in self._names[len(row) :])])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table as wide as the screen allows."""
        from rich.table import Table
        from rich.text import Text

        texts = list(zip(self._names, *([cell.plain for cell in row] for row in self._rows), strict=True))
        widths = _widths(texts, options.max_width - _GAP * (len(texts) - 1))
        total = sum(widths) + _GAP * (len(texts) - 1)
        if total <= options.max_width or not console.is_terminal:
            table = Table(box=None, pad_edge=False)
            for name, width in zip(self._names, widths, strict=True):
                table.add_column(Text(name), width=width, overflow="fold")
            for row in self._rows:
                table.add_row(*map(_broken, row, widths))
            yield from console.render(table, options.update(width=max(total, options.max_width)))
            return
        room = options.max_width - max(map(len, self._names)) - _GAP
        for number, row in enumerate(self._rows):
            block = Table.grid(padding=(0, _GAP, 0, 0))
            block.add_column(no_wrap=True)
            block.add_column(overflow="fold")
            for name, cell in zip(self._names, row, strict=True):
                if cell.plain:
                    block.add_row(Text(name, style="bold"), _broken(cell, room))
            yield from ("", block) if number else (block,)


def columns(*names: str) -> PlainTable:
    """Return a table with these names over its columns."""
    return PlainTable(names)


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of columns in the available room; each is at least as wide as its longest word."""
    from rich.cells import cell_len

    least = [max(cell_len(piece) for text in texts for piece in _pieces(text)) for texts in columns]
    most = [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in columns]
    spare = max(0, room - sum(least))
    widths = list(least)
    by_need = sorted(range(len(columns)), key=lambda column: most[column] - least[column])
    for place, column in enumerate(by_need):
        more = min(most[column] - least[column], spare // (len(by_need) - place))
        widths[column] += more
        spare -= more
    return widths


def _pieces(text: str) -> list[str]:
    """Return the parts of a text that are not broken: words, and the items of a list without spaces."""
    return [piece for word in text.split() for piece in _PIECE.findall(word)] or [""]


def _broken(text: Text, width: int) -> Text:
    """Return a text in which long lists without spaces are broken after commas."""
    from rich.text import Text

    if all(len(word) <= width for word in text.plain.split()):
        return text
    broken = Text(style=text.style)
    used = 0
    for at, piece in ((match.start(), match[0]) for match in _PART.finditer(text.plain)):
        if used and used + len(piece.rstrip()) > width:
            broken.append("\n")
            used = 0
        broken.append(text[at : at + len(piece)])
        used = 0 if piece.endswith("\n") else used + len(piece)
    return broken


def show_rows(screen: Console, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a table of `columns`; thousands of them are formatted by simpler, faster code."""
    if len(rows) <= _MOST_MEASURED:
        table = columns(*names)
        for row in rows:
            table.add_row(*row)
        screen.print(table)
        return
    widths = [max(len(row[column]) for row in (names, *rows)) for column in range(len(names) - 1)]
    before = sum(widths) + _GAP * len(widths)
    room = max(screen.width - before, _LABEL_COLUMNS)
    for row in (names, *rows):
        head = "".join(f"{text:<{width + _GAP}}" for text, width in zip(row, widths, strict=False))
        lines = textwrap.wrap(row[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
        screen.file.write(f"{printable(head + lines[0])}\n")
        for line in lines[1:]:
            screen.file.write(f"{' ' * before}{printable(line)}\n")


def hanging(label: str, text: str, *, style: str = "bold") -> RenderableType:
    """Return a label and its text with a hanging indent."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if len(label) > _LABEL_COLUMNS:
        return Group(Text(label, style=style), Padding(Text(text), (0, 0, 0, _INDENT)))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(label, style=style), Text(text))
    return table


def show_node(screen: Console, picture: NodePicture, *, marked: bool = True) -> None:
    """Draw a node as wide as the screen, unless there is nothing to draw."""
    from rich.text import Text

    for line in node_text(picture, screen.width, marked=marked):
        screen.print(Text.assemble(*line), no_wrap=True, overflow="ignore", crop=False)


def show_slices(screen: Console, slices: Iterable[ResourceSlice], *, most: int | None = None) -> None:
    """Print the number of slices and devices, and a row for each of the first `most` devices."""
    slices = tuple(slices)
    devices = [(published.spec.driver, device) for published in slices for device in published.spec.devices]
    screen.print(f"{number_of(len(devices), 'device')} in {number_of(len(slices), 'ResourceSlice')}", style="bold")
    table = columns("driver", "device", "capacity", "attributes")
    for driver, device in devices[:most]:
        table.add_row(driver, device.name, _capacities(device), " ".join(_attributes(device)))
    for published in slices:
        for counters in published.spec.shared_counters:
            amounts = " ".join(f"{name} {counter.value}" for name, counter in counters.counters.items())
            table.add_row(published.spec.driver, counters.name, amounts, "counters that devices share")
        if not (published.spec.devices or published.spec.shared_counters):
            table.add_row(published.spec.driver, "none", "", "an empty slice shows that the driver is alive")
    screen.print(table)
    hidden = Counter(driver for driver, _ in devices[len(devices) if most is None else most :])
    for driver, count in sorted(hidden.items()):
        screen.print(f"... and {count} more of {driver}; `dranode slices` shows them all")


def _capacities(device: Device) -> str:
    return "\n".join(f"{_short(name)} {_capacity(capacity)}" for name, capacity in device.capacity.items())


def _capacity(capacity: DeviceCapacity) -> str:
    policy = capacity.request_policy
    if policy is None:
        return f"{capacity.value}"
    if policy.valid_range is not None:
        return f"{capacity.value} (from {policy.valid_range.min} in steps of {policy.valid_range.step or 'any size'})"
    return f"{capacity.value} (only {', '.join(map(str, policy.valid_values))})"


def _attributes(device: Device) -> Iterator[str]:
    for name, attribute in device.attributes.items():
        yield f"{_short(name)}={attribute_text(attribute, ',')}"
    for taint in device.taints:
        yield f"taint {taint.key}={taint.value}:{taint.effect}"


def _short(name: str) -> str:
    """Return the name of an attribute or capacity without its domain."""
    return name.rpartition("/")[2]
