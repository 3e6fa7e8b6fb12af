"""What a shell completes for the program and for the plug-in."""

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from dranode.driver.cli.commands import cli
from dranode.tools.kubectl.plugin import candidates, plugin


def offered(*words: str) -> list[str]:
    *before, incomplete = words
    complete = ShellComplete(cli, {}, "dranode", "_DRANODE_COMPLETE")
    return [item.value for item in complete.get_completions(before, incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_names_the_program_and_its_completion_variable(shell: str) -> None:
    for program, name in ((cli, "dranode"), (plugin, "kubectl-dranode")):
        ran = CliRunner().invoke(program, ["completion", shell])
        assert ran.exit_code == 0, ran.output
        assert f"_{name.upper().replace('-', '_')}_COMPLETE={shell}_complete" in ran.output
        assert name in ran.output


def test_commands_options_and_option_values_are_completed() -> None:
    assert offered("doc") == ["doctor"]
    assert "--machine" in offered("topology", "--ma")
    assert offered("topology", "-o", "js") == ["json"]
    assert next(candidates(["--context", "prod", "dev"])).startswith("devices\t")


def test_an_unknown_shell_is_refused_and_the_known_ones_are_named() -> None:
    ran = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert ran.exit_code == 2
    assert "bash" in ran.output
