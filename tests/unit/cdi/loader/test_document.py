from __future__ import annotations

import pytest

from dranode.cdi.errors import CDIError
from dranode.cdi.loader.document import load_spec
from dranode.cdi.loader.validate import validate

DEVICES = '"devices": [{"name": "d", "containerEdits": {"env": ["A=1"]}}]'
GOOD = '{"cdiVersion": "0.3.0", "kind": "example.com/cpu", ' + DEVICES + "}"


def _refusal(text: str) -> str:
    with pytest.raises(CDIError) as refused:
        load_spec(text.encode())
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace('"devices"', '"foo": 1, "devices"'), "foo: is no field that the library knows"),
        (
            GOOD.replace('"env"', '"foo": 1, "env"'),
            "devices[0].containerEdits.foo: is no field that the library knows",
        ),
        (
            GOOD.replace('["A=1"]', '["A=1", [2]]'),
            "devices[0].containerEdits.env[1]: is a list and must be text",
        ),
        (
            GOOD.replace('"env": ["A=1"]', '"additionalGids": [4294967296]'),
            ".additionalGids[0]: is 4294967296 and must be a whole number from 0 to 4294967295",
        ),
        (
            GOOD.replace('"env": ["A=1"]', '"intelRdt": {"enableMonitoring": "yes"}'),
            'devices[0].containerEdits.intelRdt.enableMonitoring: is the text "yes" and must be true or false',
        ),
        (
            GOOD.replace('"env": ["A=1"]', '"mounts": [{"hostPath": "/a", "containerPath": "/b"}, null]'),
            "devices[0].containerEdits.mounts[1]: is null, which crashes every runtime that reads it",
        ),
        (GOOD.replace("{", '{"kind": "a/b", ', 1), 'line 1: key "kind" is given twice'),
        (GOOD.replace("A=1", "A=\\/x"), "line 1: found unknown escape character '/'"),
        (
            GOOD.replace("A=1", "\\ud83d\\ude00"),
            "line 1: a surrogate escape is no character; write the character itself",
        ),
        (GOOD.replace("A=1", "A=\x7f"), "special characters are not allowed"),
        ("- " * 200, "line 1: is nested more than 100 levels deep"),
        ("kind: a/b\nx: *y\n", "line 2: *y is not anchored before"),
        ("kind: a/b\nx: &y [*y]\n", "line 2: what &y anchors contains *y"),
        ("kind: a/b\n\tx: 1\n", "line 2: a tab stands where indentation is expected"),
        ("%YAML 1.2\n---\n" + GOOD, "only %YAML 1.1 is read"),
        ("[]", "the document is a list and must be an object"),
        ("hello", 'the document is the text "hello" and must be an object'),
        ("", "there is no document"),
        ("null", "there is no document"),
        ("[" * 200, "line 1: is nested more than 100 levels deep"),
    ],
)
def test_a_document_that_does_not_decode_is_refused_with_place_and_reason(text: str, message: str) -> None:
    assert message in _refusal(text)


def test_aliases_that_multiply_without_end_are_refused_soon() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    assert "aliases repeat too much" in _refusal("\n".join(lines))


def test_the_fields_of_a_document_are_those_spelt_out_even_as_null() -> None:
    text = GOOD.replace('"env"', '"netDevices": null, "ENV"')
    assert load_spec(text.encode()).fields == {
        "cdiVersion",
        "kind",
        "devices",
        "name",
        "containerEdits",
        "netDevices",
        "env",
    }


def test_two_spellings_of_a_field_are_read_into_one_place_in_byte_order() -> None:
    text = GOOD.replace(DEVICES, DEVICES + ', "DEVICES": [{"name": "x", "annotations": {"a": "b"}}, {"name": "y"}]')
    (device,) = load_spec(text.encode()).spec.devices
    assert (device.name, device.annotations, device.container_edits.env) == ("d", {"a": "b"}, ("A=1",))


def test_text_that_yaml_takes_for_something_else_is_read_as_the_library_prints_that() -> None:
    text = "cdiVersion: 0.6.0\nkind: a/b\nannotations: {a: 010, b: yes, c: 1.50, d: 1e6, e: ~, 7: 0x10}\n"
    spec = load_spec(text.encode()).spec
    assert spec.annotations == {"a": "8", "b": "true", "c": "1.5", "d": "1e+06", "e": "", "7": "16"}


def test_a_verdict_holds_one_problem_where_a_document_does_not_decode_and_all_where_it_does() -> None:
    assert len(validate(b"[]").problems) == 1
    assert len(validate(b"kind: 5").problems) == 3
    assert validate(GOOD.encode()).ok


@pytest.mark.parametrize(
    "head", ["%YAML\t1.1", "%YAML \t 1.1\t", "%YAML\t1.1\t# a word", "%TAG\t!\ttag:example.com,2000:"]
)
def test_tabs_part_the_words_of_a_directive(head: str) -> None:
    assert load_spec(f"{head}\n---\n{GOOD}".encode()) == load_spec(GOOD.encode())


def test_a_tab_makes_no_other_directive_right() -> None:
    for head in ("%YAML\t1.2", "%YAML1.1", "%\tYAML 1.1", "%FOO\tbar"):
        with pytest.raises(CDIError):
            load_spec(f"{head}\n---\n{GOOD}".encode())


def test_an_error_is_one_printable_line_that_ends() -> None:
    key = "\x1b[2J\n\u202e" + "k" * 100_000
    for error in (CDIError("has an odd key", key), CDIError(f"is {key}")):
        assert str(error).isprintable()
        assert len(str(error)) < 1_100
    assert str(CDIError("has an odd key", key)).endswith("has an odd key")
