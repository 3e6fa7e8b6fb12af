"""The output of commands: for people by default, and as JSON or YAML for programs."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

import click

from dranode.api.errors import DranodeError, printable
from dranode.show.picture.fleet import FleetPicture
from dranode.show.picture.page import fleet_page
from dranode.show.picture.svg import fleet_svg

if TYPE_CHECKING:
    from rich.console import Console


F = TypeVar("F", bound=Callable[..., Any])

_BAR_COLUMNS: Final = 30


def output_option(function: F) -> F:
    """Add the option `-o/--output json|yaml|table`, passed to the command as `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "yaml"]),
        default="table",
        help="For people (table, the default) or for programs.",
    )(function)


def emit(document: Any, output: str) -> bool:
    """Print a plain document as JSON or YAML; return False if `output` is a table for people."""
    if output == "json":
        # UTF-8 in any locale, because programs read JSON and YAML as UTF-8.
        click.echo(json.dumps(document, indent=2, ensure_ascii=False).encode())
    elif output == "yaml":
        from dranode.driver.machine.yaml_files import dump_yaml

        click.echo(dump_yaml(document).encode(), nl=False)
    return output in ("json", "yaml")


def console(*, stderr: bool = False) -> Console:
    """Return a console that uses colors only on a terminal and prints texts literally, without markup."""
    from rich.console import Console
    from rich.segment import Segment

    class Harmless(Console):
        """Prints texts without control characters, which documents may contain, and does not cut lines."""

        def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
            super().print(*objects, crop=crop, **options)

        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*arguments, **options):
                yield Segment(text if control else "\n".join(map(printable, text.split("\n"))), style, control)

    stream = sys.stderr if stderr else sys.stdout
    # Without a terminal rich assumes 80 columns; a file or a pipe has room.
    return Harmless(file=stream, highlight=False, markup=False, width=None if stream.isatty() else 120)


class ProgressReporter(Protocol):
    """Shows the progress of a command."""

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show the next step; with a total, also a bar."""


@contextmanager
def reporting(screen: Console | None = None) -> Iterator[ProgressReporter]:
    """Show progress on a terminal, and nothing elsewhere.

    Args:
        screen: the console that prints during the command, which has to separate its output from the progress. None if
            nothing is printed before the end.
    """
    stream = screen.file if screen is not None else sys.stderr
    if not stream.isatty():
        yield lambda text, done=0, total=0: None  # noqa: ARG005 - the names are part of the type
        return
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    spinner = Spinner("dots", "starting", style="status.spinner")
    # Live draws the first frame here. With `Console.status`, the thread that turns the spinner draws it, maybe in the
    # middle of other output.
    live = Live(spinner, console=screen or console(stderr=True), refresh_per_second=12.5, transient=True)
    with _cursor_shown_at_a_signal(live.console), live:
        bar = ProgressBar(width=_BAR_COLUMNS)
        counted = Table.grid(padding=(0, 1))
        counted.add_row(spinner, bar)

        def show(text: str, done: int = 0, total: int = 0) -> None:
            # As a Text, because a name in square brackets is not markup.
            spinner.update(text=Text(text))
            bar.update(done, total)
            live.update(counted if total else spinner)

        yield show


@contextmanager
def _cursor_shown_at_a_signal(screen: Console) -> Iterator[None]:
    """Show the cursor also if `timeout` or a closed terminal ends the process; nohup ignores SIGHUP, which stays so."""

    def end(number: int, frame: object) -> None:
        del frame
        if screen.is_terminal and not screen.is_dumb_terminal:
            # `show_cursor` would write nothing if the signal came while this thread fills the console's buffer.
            os.write(screen.file.fileno(), b"\x1b[?25h")
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    ending = [name for name in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(name) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def picture_options(function: F) -> F:
    """Add the options `--html FILE` and `--svg FILE`."""
    for name, form in (("--svg", "an SVG picture"), ("--html", "a page that opens offline in any browser")):
        function = click.option(name, metavar="FILE", help=f"Also draw it as {form}.")(function)
    return function


def report_oddities(driver: str, warnings: Iterable[str]) -> None:
    """Print a driver's warnings about its hardware on stderr."""
    for warning in warnings:
        click.echo(f"dranode: {driver}: {warning}", err=True)


def write_pictures(html: str | None, svg: str | None, make: Callable[[], FleetPicture]) -> None:
    """Write a picture in the requested forms; `make` is only called if there is one.

    Raises:
        DranodeError: a file cannot be written.
    """
    if html is None and svg is None:
        return
    picture = make()
    _write_picture(html, lambda: fleet_page(picture))
    _write_picture(svg, lambda: fleet_svg(picture))


def _write_picture(path: str | None, draw: Callable[[], str]) -> None:
    if path is None:
        return
    text, place = draw(), Path(path)
    try:
        if place.exists() and not place.is_file():  # a device or a pipe, such as /dev/stdout
            place.write_text(text, encoding="utf-8")
            return
        # Beside the last picture, which stays if the disk is full. A link goes on to lead to the new one.
        place = place.resolve()
        beside = place.with_name(f".{place.name}.new")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(place)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Perhaps only the file itself may be written, as one that is mounted into a container.
            place.write_text(text, encoding="utf-8")
        finally:
            with suppress(OSError):
                beside.unlink()
    except OSError as error:
        raise DranodeError(f"the picture {path} cannot be written: {error.strerror}") from error


def fail(message: str) -> NoReturn:
    """End the command with one sentence on stderr and exit status 1."""
    raise DranodeError(message)
