"""The program's commands: a name that is none of them is answered with those that may be meant."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dranode.api.errors import UsageError
from dranode.driver.cli.commands import cli


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("topolgy", "did you mean topology?"),
        ("claim", "did you mean claims?"),
        ("slice", "did you mean slices?"),
        ("docter", "did you mean doctor?"),
        ("xyz", "dranode --help lists them"),
    ],
)
def test_a_command_that_is_none_is_answered_with_those_that_may_be_meant(word: str, hint: str) -> None:
    done = CliRunner().invoke(cli, [word, "--machine", "cores=2"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == f'there is no command "{word}"; {hint}'


@pytest.mark.parametrize("words", [["--help"], ["claims", "--help"], ["machine", "show", "--help"]])
def test_commands_that_are_there_are_found(words: list[str]) -> None:
    assert CliRunner().invoke(cli, words).exit_code == 0
