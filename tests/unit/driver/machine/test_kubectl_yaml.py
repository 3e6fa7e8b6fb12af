"""Lists as kubectl prints them: what is read line by line is what PyYAML reads."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dranode.driver.core.api.errors import DocumentError
from dranode.driver.machine import yaml_files
from dranode.driver.machine.kubectl_yaml import list_document

TAIL: Final = 'kind: List\nmetadata:\n  resourceVersion: ""\n'
LIMIT: Final = 1_000_000
# Pieces that lines are made of at random, some of which mean something else in YAML.
PIECES: Final = (
    *("a: b", "b: 'c d'", 'c: "d"', "d:", "e: {}", "f: []", "g: |", "h: |-", "i: yes", "j: 012", "k: 1.5", "null: x"),
    *("l: --flag", "m: a # b", "n: a: b", "o: &x y", "p: *x", "q: '''", "r: ''''", "- a", "- b: c", "- - d", "-", "#x"),
    *(
        "plain",
        "text 'with' quotes",
        "",
        "  ",
        "s: ~",
        "t: 1:20",
        "u: a,[b]{c}",
        "80: v",
        "w: é",
        "x: !!str 1",
        "y: ? z",
    ),
    *(
        "a: -1",
        "z: >",
        "'k': v",
        "aa:  two  spaces  ",
        "bb: 'open",
        "close'",
        "cc: x:",
        "dd: -",
        "<<: {a: b}",
        "ee: %x",
    ),
)


def read(text: str) -> Any | None:
    return list_document(text, yaml_files._load, yaml_files._resolved, LIMIT)


def loaded(text: str) -> list[Any] | None:
    try:
        return yaml_files._load(text)
    except yaml.YAMLError:
        return None


def text_of(items: list[Any], **style: Any) -> str:
    written: str = yaml.safe_dump(items, default_flow_style=False, **style)
    return f"apiVersion: v1\nitems:\n{written}{TAIL}"


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(4 if depth < 4 else 2)
    if kind == 0:
        words = (
            "plain",
            "it's",
            'say "so"',
            "a: b",
            "- x",
            "#no",
            "yes",
            "on",
            "null",
            "12",
            "0x1F",
            "1.5",
            "é",
            "",
            "|",
        )
        return " ".join(chance.choice(words) for _ in range(chance.choice((1, 1, 3, 40))))
    if kind == 1:
        return chance.choice(
            (True, None, 7, -7, 1.5, "1e3", "line\nline\n", "  deep\nx", "x\n\n\ny", "tab\there", {}, [])
        )
    if kind == 2:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    keys = ("name", "a.b/c", "x_y", "spec", "no", "12", "odd key", "é")
    return {key: value(chance, depth + 1) for key in chance.sample(keys, chance.randrange(6))}


@pytest.mark.parametrize("seed", range(300))
def test_what_a_program_writes_is_read_as_pyyaml_reads_it(seed: int) -> None:
    chance = random.Random(seed)
    items = [{"kind": "Pod", "metadata": value(chance, 2), "spec": value(chance)} for _ in range(3)]
    text = text_of(items, width=chance.choice((40, 80, 1000)), allow_unicode=chance.random() < 0.5)
    assert (
        [read(text)] == loaded(text) == [{"apiVersion": "v1", "items": items, "kind": "List", **yaml.safe_load(TAIL)}]
    )


@pytest.mark.parametrize("seed", range(1500))
def test_lines_put_together_at_random_are_read_as_pyyaml_reads_them_or_not_at_all(seed: int) -> None:
    chance = random.Random(seed)
    lines = ["- kind: Pod"]
    column = 2
    for _ in range(chance.randrange(1, 9)):
        column = max(0, column + chance.choice((-2, 0, 0, 0, 0, 2, 2, 1)))
        lines.append(" " * column + chance.choice(PIECES))
    text = "\n".join(("apiVersion: v1", "items:", "- a: b", *lines, chance.choice(("kind: List", "- c: d", "")), ""))
    known = read(text)
    if known is not None:
        assert [known] == loaded(text)


def test_most_of_what_kubectl_prints_is_read_line_by_line() -> None:
    """With a loader that loads nothing but what is around the items."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a.b/c": "d"}, "creationTimestamp": None},
        "spec": {"containers": [{"args": ["--x", "-1", "a b"], "env": [], "image": "r.io/a:v1", "ports": [{"p": 80}]}]},
        "status": {"message": "0/5 nodes are available: it's " + "word " * 30, "text": "one\ntwo\n"},
    }
    text = text_of([pod, copy.deepcopy(pod)]).replace(
        "text: 'one\n\n      two\n\n      '", "text: |\n      one\n      two"
    )
    assert "    text: |\n" in text

    def load(rest: str) -> list[Any]:
        assert "Pod" not in rest
        return yaml_files._load(rest)

    document = list_document(text, load, yaml_files._resolved, LIMIT)
    assert document is not None
    assert document["items"] == [pod, pod]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kind: Pod\n",
        "items:\n- a: &x b\n  c: *x\nkind: List\n",
        "items:\n- a: b\n  a: c\nkind: List\n",
        "items:\n- a: b\nkind: List\n---\nkind: Pod\n",
        "items:\n- a: b\nitems:\n- c: d\n",
        "items:\n- a: b\nkind: &x List\n",
        "items:\n- a:\n    b: c\n   d: e\n",
    ],
)
def test_what_cannot_be_read_item_by_item_is_left_to_pyyaml(text: str) -> None:
    assert read(text) is None


def test_a_list_of_more_values_than_allowed_is_left_to_pyyaml() -> None:
    text = text_of([{"a": "b"}] * 10)
    assert list_document(text, yaml_files._load, yaml_files._resolved, 20) is None


def test_a_large_list_is_read_with_its_places(tmp_path: Path) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p" * 100}}
    file = tmp_path / "list.yaml"
    file.write_text(text_of([pod] * 1000), "utf-8")
    documents = yaml_files.read_documents(file)
    assert [documents[0].document, documents[-1].document, len(documents)] == [pod, pod, 1000]
    file.write_text(text_of([pod] * 1000).replace("  kind: Pod", "  kind: Pod\n  kind: Pod", 1), "utf-8")
    with pytest.raises(DocumentError, match='the key "kind" stands twice in one mapping'):
        yaml_files.read_documents(file)
