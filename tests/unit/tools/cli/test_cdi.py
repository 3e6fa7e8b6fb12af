import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dranode.tools.cli.cdi import command

GOOD = (
    '{"cdiVersion": "0.3.0", "kind": "example.com/cpu", "devices": [{"name": "d", "containerEdits": {"env": ["A=1"]}}]}'
)


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, ["validate", *map(str, arguments)])


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    contents = {
        "good": GOOD,
        "crashing": GOOD.replace("example.com/cpu", "e/c"),
        "bad": GOOD.replace('"d"', '"d-"').replace("A=1", "A"),
    }
    paths = {name: tmp_path / f"{name}.json" for name in contents}
    for name, content in contents.items():
        paths[name].write_text(content)
    return paths | {"missing": tmp_path / "missing.json", "folder": tmp_path}


def test_a_file_that_loads_everywhere_has_no_error_and_no_warning(files: dict[str, Path]) -> None:
    result = _run(files["good"], "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.output) == [{"file": str(files["good"]), "ok": True, "error": None, "warnings": []}]


def test_standard_input_is_checked_like_a_file() -> None:
    result = CliRunner().invoke(command, ["validate", "-", "-o", "json"], input=GOOD.replace("A=1", "A"))
    assert result.exit_code == 1
    (answer,) = json.loads(result.output)
    assert (answer["file"], answer["ok"]) == ("-", False)
    assert "env" in answer["error"]


def test_a_crash_of_older_libraries_is_only_a_warning(files: dict[str, Path]) -> None:
    result = _run(files["crashing"], "-o", "json")
    (answer,) = json.loads(result.output)
    assert (result.exit_code, answer["ok"], answer["error"]) == (0, True, None)
    assert [warning.split(":")[0] for warning in answer["warnings"]] == [
        "containerd 2.2 and older (CDI library v1.1.0) crash over a vendor or class of one letter",
    ]


def test_one_bad_file_fails_the_command_and_all_are_reported_in_order(files: dict[str, Path]) -> None:
    result = _run(files["bad"], files["good"], files["missing"], files["folder"], "-o", "json")
    answers = json.loads(result.output)
    assert result.exit_code == 1
    assert [answer["ok"] for answer in answers] == [False, True, False, False]
    assert answers[0]["error"].startswith('devices[0].name: "d-" must')
    assert answers[0]["error"].endswith('; devices[0].containerEdits.env[0]: "A" is not NAME=value')
    assert answers[2]["error"] == "cannot be read: No such file or directory"
    assert answers[3]["error"] == "cannot be read: Is a directory"


def test_yaml_says_the_same_as_json(files: dict[str, Path]) -> None:
    arguments = (files["bad"], files["crashing"])
    assert yaml.safe_load(_run(*arguments, "-o", "yaml").output) == json.loads(_run(*arguments, "-o", "json").output)


def test_the_text_output_has_each_file_with_its_reasons(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files["folder"])
    result = _run("bad.json", "good.json", "crashing.json")
    assert result.exit_code == 1
    for text in ("bad.json", "devices[0].name", "not everywhere", "yes"):
        assert text in result.output


def test_a_document_cannot_send_control_characters_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(GOOD.replace('"d"', '"\\e[31m[red]"'))
    output = _run(path).output
    assert "\x1b" not in output
    assert "\\x1b[31m[red]" in output


def test_no_file_is_wrong_usage() -> None:
    assert _run().exit_code == 2
