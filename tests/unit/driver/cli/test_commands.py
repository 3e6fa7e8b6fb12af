"""The program's commands: an unknown name is answered with similar ones."""

import click
import pytest
from click.testing import CliRunner

from dranode.api.errors import UsageError
from dranode.driver.cli.commands import cli, run


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
def test_an_unknown_command_is_answered_with_similar_ones(word: str, hint: str) -> None:
    done = CliRunner().invoke(cli, [word, "--machine", "cores=2"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == f'there is no command "{word}"; {hint}'


@pytest.mark.parametrize("words", [["--help"], ["claims", "--help"], ["machine", "show", "--help"]])
def test_existing_commands_are_found(words: list[str]) -> None:
    assert CliRunner().invoke(cli, words).exit_code == 0


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["-n=b", "-A=true", "a", "--", "-n=c"], "b True -n=c\n"),
        (["--namespace=true", "-A=false", "--insecure-skip-tls-verify=false"], "true False \n"),
    ],
)
def test_options_may_have_the_forms_of_kubectl(
    words: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @click.argument("rest", nargs=-1)
    @click.option("-n", "--namespace")
    @click.option("-A", "--all-namespaces", is_flag=True)
    def command(rest: tuple[str, ...], namespace: str, *, all_namespaces: bool) -> None:
        click.echo(f"{namespace} {all_namespaces} {' '.join(rest[1:])}")

    with pytest.raises(SystemExit):
        run(command, words)
    assert capsys.readouterr().out == output
