"""What the Go library from v1.1.1 on makes of documents that older ones load."""

from __future__ import annotations

import pytest

from dranode.cdi.errors import CDIError
from dranode.cdi.loader.direct import load_directly
from dranode.cdi.loader.validate import validate

HEAD = "cdiVersion: 1.1.0\nkind: example.com/cpu\ndevices:\n"
GOOD = f"{HEAD}- name: d\n  containerEdits: {{env: [A=1]}}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{HEAD}- Name: d\n", "devices[0].Name: is no field that it knows, letter by letter"),
        (f"{HEAD}- name: !!bool yes\n", 'devices[0].name: "yes" is no boolean of YAML 1.2, as its tag says'),
        (f"{GOOD}annotations: {{1: a, '1': b}}\n", 'annotations: line 6: key "1" is given twice'),
        (f"{GOOD}annotations: {{<<: {{a: x}}, <<: {{b: y}}}}\n", 'annotations: line 6: key "<<" is given twice'),
        (f"{GOOD}...\n\x07", "character 94: is a control character, which no file may have"),
    ],
)
def test_what_only_the_way_by_json_takes_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(CDIError) as refused:
        load_directly(text.encode())
    assert str(refused.value) == problem


JSON = (
    '{"cdiVersion": "1.1.0", "kind": "example.com/cpu", "devices": [{"name": "d", "containerEdits": {"env": ["A=1"]}}]}'
)


# By yaml_parser_fetch_more_tokens of go.yaml.in/yaml v3.0.5, read, and parse_document_end, which asks for one token.
@pytest.mark.parametrize(
    ("text", "reads"),
    [
        (f"{GOOD}...\n@", 2),
        (f"{GOOD}...\n%FOO\n", 2),
        (f"{GOOD}...\n] @", 3),
        (f"{GOOD}...\n] ] @", 4),
        # Two tokens in one: a list begins, and its first item.
        (f"{GOOD}...\n- @", 4),
        (f"{JSON}\n] @", 2),
        (f"{JSON}\n] ] @", 3),
        (f"{JSON}\n] ] ] @", 4),
        (f"{GOOD}---\n@", 2),
        # After a bracket that closes nothing it is as outside of brackets, where no list begins in a line's middle.
        (f"{JSON}\n] - b", 2),
    ],
)
def test_two_tokens_behind_the_end_of_the_document_have_to_be_tokens(text: str, reads: int) -> None:
    """`reads`: which token, from that at which the end is seen, is none."""
    released = "CDI library v1.1.1"
    verdict = validate(text.encode())
    assert verdict.ok
    assert any(sentence.startswith(released) for sentence in verdict.warnings) is (reads <= 3)


def test_what_is_no_token_where_the_document_ends_is_refused_by_all() -> None:
    assert not validate(f"{JSON}\n@".encode()).ok


def test_what_is_no_text_is_refused_also_after_the_document() -> None:
    with pytest.raises(CDIError, match=r"byte 94: is no text"):
        load_directly(f"{GOOD}...\n".encode() + b"\xff")


def test_a_scalar_keeps_its_spelling_and_a_null_leaves_its_list() -> None:
    spec = load_directly(
        f"{HEAD}- name: 010\n  containerEdits: {{env: [A=1, null], additionalGids: [null, 5]}}\n".encode()
    )
    (device,) = spec.devices
    assert (device.name, device.container_edits.env, device.container_edits.additional_gids) == ("010", ("A=1",), (5,))


def test_own_keys_override_merged_ones_and_earlier_sources_later_ones() -> None:
    merged = "{<<: [{a: first, b: first}, {b: second, c: second}], a: own, null: nobody}"
    annotations = load_directly(f"{GOOD}annotations: {merged}\n".encode()).annotations
    assert annotations == {"a": "own", "b": "first", "c": "second"}


def test_the_verdict_names_the_release_and_the_runtime_that_has_it() -> None:
    (warning,) = validate(GOOD.replace("1.1.0", "0.8.0").replace("- name: d", "- name: +5").encode()).warnings
    assert warning.startswith('CDI library v1.1.1 (containerd 2.4.2) refuses it: devices[0].name: "+5" must have')
