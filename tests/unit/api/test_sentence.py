"""Text of documents reaches logs, Events and terminals as one limited line without control sequences."""

import logging
import sys
from pathlib import Path

import pytest

from dranode.api.errors import LONGEST, DocumentError, DranodeError, one_sentence, printable
from dranode.api.field_errors import FieldError
from dranode.cpu.config import parse_cpu_config
from dranode.driver.claims.events import MAX_NOTE
from dranode.driver.claims.grant import Config
from dranode.driver.process.logs import TextFormatter
from tests.fakes.program import run_program

FORGED = "2026-01-01T00:00:00.000 INFO prepare driver=dra.cpu claim=default/other devices=1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with ümlaut and 漢字", "plain, with ümlaut and 漢字"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[2J\x9b1m\x07\x7f", "\\x1b[2J\\x9b1m\\x07\\x7f"),
        ("\u202egnp\u2028\u2029\x85", "\\u202egnp\\u2028\\u2029\\x85"),
        ("\udc80\U000e0001", "\\udc80\\U000e0001"),
        ("\\n and 'quotes'", "\\n and 'quotes'"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_a_sentence_is_one_line_of_limited_length() -> None:
    assert (
        one_sentence("is not YAML: while scanning\n  in line 1\x1b[0m")
        == "is not YAML: while scanning in line 1\\x1b[0m"
    )
    assert one_sentence("x" * LONGEST) == "x" * LONGEST
    long = one_sentence(f'"{"v" * 9000}" is wrong; do this')
    assert len(long) <= LONGEST <= MAX_NOTE
    assert long.startswith('"vvv')
    assert "characters left out" in long
    assert long.endswith('" is wrong; do this')


@pytest.mark.parametrize("value", ["v" * 9000, f"0\n{FORGED}", "\x1b[2J" * 2000])
def test_every_error_is_one_line_whatever_its_value(value: str) -> None:
    errors = [DranodeError(value), DocumentError(value, value)]
    for parameters in ({"cpuset": value}, {"apiVersion": value, "kind": value}, {value: 1}):
        with pytest.raises(DranodeError) as refused:
            parse_cpu_config(Config("FromClaim", parameters, "spec.devices.config[0]"))
        errors.append(refused.value)
    field = FieldError(value, value)
    for text in (*map(str, errors), field.path, field.message):
        assert len(text) <= LONGEST
        assert text.isprintable()


def test_no_value_makes_a_line_that_looks_like_an_event() -> None:
    try:
        int(f"bad\n{FORGED}\x1b[1m", base=1)
    except ValueError as error:
        error.add_note(FORGED)
        information = sys.exc_info()
    record = logging.LogRecord("x", logging.INFO, "", 1, "claim=%s: %s", ("default/a", f"a\n{FORGED}"), information)
    first, *others = TextFormatter().format(record).splitlines()
    assert first.endswith(f"claim=default/a: a\\n{FORGED}")
    assert len(others) > 3
    assert all(line.startswith("    ") and line.isprintable() for line in others)


def test_check_prints_no_control_sequences_of_a_document(tmp_path: Path) -> None:
    name = "a\\e]0;title\\a\\e[2Jb\\nc"
    (tmp_path / "claim.yaml").write_text(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n"
        f'metadata: {{name: "{name}"}}\n'
        "spec:\n  devices:\n    requests: [{name: r, exactly: {deviceClassName: dra.cpu}}]\n"
        f'    config: [{{opaque: {{driver: dra.cpu, parameters: {{cpuset: "{name}"}}}}}}]\n'
    )
    done = run_program("check", "claim.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "\\x1b[2J" in done.stdout
    assert all(line.isprintable() for line in (done.stdout + done.stderr).split("\n"))
