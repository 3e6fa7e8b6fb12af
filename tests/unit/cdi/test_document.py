"""How a runtime reads a CDI document, and why it rejects one."""

import pytest

from dranode.cdi.document import load_spec
from dranode.cdi.errors import CDIError
from dranode.cdi.rules import validate

DEVICES = '"devices": [{"name": "d", "containerEdits": {"env": ["A=1"]}}]'
GOOD = '{"cdiVersion": "0.3.0", "kind": "example.com/cpu", ' + DEVICES + "}"
HEAD = "cdiVersion: 1.1.0\nkind: example.com/cpu\ndevices:\n"
YAML = f"{HEAD}- name: d\n  containerEdits: {{env: [A=1]}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace('"devices"', '"foo": 1, "devices"'), "foo: is not a field of the specification"),
        (GOOD.replace('"env"', '"foo": 1, "env"'), "devices[0].containerEdits.foo: is not a field"),
        (GOOD.replace('"kind"', '"Kind"'), "Kind: is not a field of the specification (names are case-sensitive)"),
        (GOOD.replace('["A=1"]', '["A=1", [2]]'), "devices[0].containerEdits.env[1]: is a list, not a single value"),
        (GOOD.replace('["A=1"]', '"A=1"'), 'devices[0].containerEdits.env: is "A=1", not a list'),
        (
            GOOD.replace('"env": ["A=1"]', '"additionalGids": [4294967296]'),
            '.additionalGids[0]: is "4294967296", not a whole number from 0 to 4294967295',
        ),
        (
            GOOD.replace('"env": ["A=1"]', '"intelRdt": {"enableMonitoring": "maybe"}'),
            'devices[0].containerEdits.intelRdt.enableMonitoring: is "maybe", not true or false',
        ),
        (
            GOOD.replace('"env": ["A=1"]', '"mounts": [{"hostPath": "/a", "containerPath": "/b"}, null]'),
            "devices[0].containerEdits.mounts[1]: is null, which crashes every runtime that reads it",
        ),
        (GOOD.replace("{", '{"kind": "a/b", ', 1), 'line 1: key "kind" is given twice'),
        (f"{YAML}annotations: {{1: a, '1': b}}\n", 'annotations: line 6: key "1" is given twice'),
        (f"{YAML}annotations: {{<<: {{a: x}}, <<: {{b: y}}}}\n", 'annotations: line 6: key "<<" is given twice'),
        (GOOD.replace("A=1", "A=\\/x"), r"line 1: runtimes do not read the escape \/; write / alone"),
        (GOOD.replace("A=1", "\\ud83d\\ude00"), "line 1: "),
        (GOOD.replace("A=1", "A=\x7f"), "control characters are not allowed"),
        (f"{HEAD}- name: !!bool yes\n", 'devices[0].name: "yes" does not match its tag !!bool'),
        (f"{HEAD}- name: !!int x\n", 'devices[0].name: "x" does not match its tag !!int'),
        (f"{HEAD}- name: !!binary '-'\n", "devices[0].name: !!binary is not followed by base64"),
        ("kind: a/b\nx: *y\n", "line 2: found undefined alias"),
        ("kind: a/b\n\tx: 1\n", "line 2: found a tab character that violates indentation"),
        ("%YAML 1.2\n---\n" + GOOD, "line 1: runtimes do not read %YAML 1.2; remove the line"),
        ("[]", "the document is a list, not an object"),
        ("hello", 'is "hello", not an object'),
        ("", "there is no document"),
        ("[" * 200, "is nested more than 100 levels deep"),
        ("- " * 200, "is nested more than 100 levels deep"),
        (b"kind: \xff", "byte 6: "),
    ],
)
def test_a_document_that_cannot_be_decoded_is_refused_with_path_and_reason(text: str | bytes, message: str) -> None:
    with pytest.raises(CDIError) as refused:
        load_spec(text.encode() if isinstance(text, str) else text)
    assert message in str(refused.value)


@pytest.mark.parametrize("depth", [1_000, 100_000])
@pytest.mark.parametrize("opening", ["[", "- ", "{a: ", "a: {b: "])
def test_deep_nesting_is_refused_and_does_not_crash_the_process(opening: str, depth: int) -> None:
    assert not validate((opening * depth).encode()).ok


def test_exponentially_expanding_aliases_are_refused() -> None:
    lines = ["a: &a {x: y}"]
    lines += [
        f"{name}: &{name} {{{', '.join(f'k{index}: *{before}' for index in range(9))}}}"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    assert not validate("\n".join(lines).encode()).ok
    bomb = "&a [x, x, x, x, x, x, x, x, x, x]"
    for name, before in zip("bcdefg", "abcdef", strict=True):
        bomb = f"{bomb}, &{name} [{', '.join([f'*{before}'] * 10)}]"
    assert not validate(f"{HEAD}- name: d\n  containerEdits: {{env: [{bomb}]}}\n".encode()).ok


def test_an_object_that_contains_itself_is_refused() -> None:
    assert not validate(f"{YAML}annotations: &a {{<<: *a}}\n".encode()).ok
    assert not validate(f"{HEAD}- &a {{name: d, containerEdits: *a}}\n".encode()).ok


def test_a_scalar_keeps_its_spelling_and_a_null_leaves_its_list() -> None:
    spec = load_spec(
        f"{HEAD}- name: 010\n  containerEdits: {{env: [A=1, null], additionalGids: [null, 0x10, 1_0]}}\n".encode()
    )
    (device,) = spec.devices
    assert (device.name, device.container_edits.env) == ("010", ("A=1",))
    assert device.container_edits.additional_gids == (16, 10)


def test_own_keys_override_merged_ones_and_earlier_merges_override_later_ones() -> None:
    merged = "{<<: [{a: first, b: first}, {b: second, c: second}], a: own, null: nobody}"
    annotations = load_spec(f"{YAML}annotations: {merged}\n".encode()).annotations
    assert annotations == {"a": "own", "b": "first", "c": "second"}


def test_tabs_comments_and_later_documents_are_ignored() -> None:
    for text in (GOOD.replace(", ", ",\t"), f"# a comment\n{YAML}", f"{YAML}---\nother: document\n", f"\ufeff{GOOD}"):
        assert validate(text.encode()).ok, text


def test_a_verdict_has_the_first_decoding_error_or_all_broken_rules() -> None:
    assert len(validate(b"[]").problems) == 1
    assert len(validate(b"kind: 5").problems) == 3
    verdict = validate(GOOD.encode())
    assert verdict.ok
    assert verdict.spec == load_spec(GOOD.encode())


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (GOOD.replace("0.3.0", "1.0.0"), "containerd 1.7 (CDI library v0.8.1) refuses version 1.0.0"),
        (GOOD.replace("0.3.0", "0.7.0"), "podman 4.9, containerd 1.7.15 and older refuse version 0.7.0"),
        (GOOD.replace("example.com/cpu", "a/cpu"), "crash over a vendor or class of one letter: a/cpu"),
        (GOOD.replace("0.3.0", "0.8.0").replace('"env": ["A=1"]', '"intelRdt": {"closID": "/"}'), 'refuses closID "/"'),
        (
            GOOD.replace('"env": ["A=1"]', '"deviceNodes": [{"path": "/dev/a", "permissions": "none"}]'),
            'refuse the permissions "none"',
        ),
    ],
)
def test_a_warning_names_older_runtimes_that_refuse_a_spec(text: str, warning: str) -> None:
    verdict = validate(text.encode())
    assert verdict.ok, verdict.problems
    assert [sentence for sentence in verdict.warnings if warning in sentence]
    assert not validate(GOOD.encode()).warnings


def test_an_error_is_one_printable_line_of_limited_length() -> None:
    key = "\x1b[2J\n\u202e" + "k" * 100_000
    for error in (CDIError("has an odd key", key), CDIError(f"is {key}")):
        assert str(error).isprintable()
        assert len(str(error)) < 1_100
    assert str(CDIError("has an odd key", key)).endswith("has an odd key")


@pytest.mark.parametrize("text", ["0x_", "0x", "-0X_", "0b_", "0o_", "+0o"])
def test_a_number_prefix_without_a_digit_is_a_string(text: str) -> None:
    document = f"cdiVersion: 0.6.0\nkind: a.com/b\nannotations: {{mask: {text}}}\ndevices: []\n"
    assert load_spec(document.encode()).annotations == {"mask": text}
    with pytest.raises(CDIError):
        load_spec(f"containerEdits: {{deviceNodes: [{{path: /dev/a, major: {text}}}]}}".encode())
