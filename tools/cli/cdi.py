"""`dranode cdi`: checks whether container runtimes would load CDI specs."""

import sys
from typing import Any

import click
import msgspec

from dranode.api.errors import printable
from dranode.cdi.regular_file import read_given, read_to_end
from dranode.cdi.rules import validate
from dranode.driver.machine.yaml_files import STDIN
from dranode.show.output import console, emit, output_option
from dranode.show.terminal import columns


@click.group(short_help="Check whether a runtime would load CDI specs.")
def command() -> None:
    """Check CDI specs, the files that tell container runtimes how to give devices to containers.

    \b
    Example:
      dranode cdi validate /var/run/cdi/*.json
    """


class _Answer(msgspec.Struct, frozen=True):
    file: str
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "ok": not self.problems,
            "error": "; ".join(self.problems) or None,
            "warnings": list(self.warnings),
        }


def _answer(file: str) -> _Answer:
    try:
        data = read_to_end(sys.stdin.buffer) if file == STDIN else read_given(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return _Answer(file, (f"cannot be read: {reason}",))
    verdict = validate(data)
    return _Answer(file, tuple(str(problem) for problem in verdict.problems), verdict.warnings)


def _draw(answers: list[_Answer]) -> None:
    from rich.text import Text

    table = columns("file", "loads", "why")
    for answer in answers:
        loads, color = (
            ("no", "red") if answer.problems else ("not everywhere", "yellow") if answer.warnings else ("yes", "green")
        )
        reasons = "\n".join(map(printable, answer.problems or answer.warnings))
        table.add_row(printable(answer.file), Text(loads, style=color), reasons)
    console().print(table)


@command.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@output_option
@click.pass_context
def validate_files(ctx: click.Context, files: tuple[str, ...], output: str) -> None:
    """Report whether a runtime would load each FILE (- is the standard input), and why not.

    The verdict is that of the newest release of the CDI library in Go (v1.1.1). Warnings name older runtimes that would
    reject the file. The exit status is 1 if a file would not be loaded.

    \b
    Example:
      dranode cdi validate /var/run/cdi/*.json
      dranode cdi validate spec.yaml -o json
    """
    answers = [_answer(file) for file in files]
    if not emit([answer.document for answer in answers], output):
        _draw(answers)
    if any(answer.problems for answer in answers):
        ctx.exit(1)
