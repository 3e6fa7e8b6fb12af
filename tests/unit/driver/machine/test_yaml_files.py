import io
from pathlib import Path

import pytest

from dranode.api.errors import DocumentError
from dranode.driver.machine.yaml_files import (
    StrictError,
    dump_yaml,
    load_documents,
    parse_yaml,
    read_documents,
    read_yaml,
)


def written(folder: Path, text: str, name: str = "claims.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_documents_come_in_the_order_of_files_and_places(tmp_path: Path) -> None:
    first = written(tmp_path, "kind: Pod\nmetadata: {name: a}\n---\n---\nkind: Node\nmetadata: {generateName: b-}\n")
    second = written(tmp_path, '{"kind": "Node", "metadata": {"name": "c"}}', "nodes.json")
    sources = load_documents([first, second])
    assert [(source.kind, source.name, source.index) for source in sources] == [
        ("Pod", "a", 0),
        ("Node", "b-", 1),
        ("Node", "c", 0),
    ]
    assert sources[1].place == f"{first}, document 2 (Node b-)"


def test_a_list_is_split_and_its_items_inherit_a_typed_lists_kind(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: a}}
- apiVersion: resource.k8s.io/v1
  kind: DeviceClassList
  items: [{metadata: {name: b}}]
""",
    )
    assert [source.document for source in load_documents([path])] == [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "b"}},
    ]


def test_an_array_is_split_like_a_list(tmp_path: Path) -> None:
    path = written(tmp_path, '[{"kind": "Pod", "metadata": {"name": "a"}}, {"kind": "Pod", "metadata": {"name": "b"}}]')
    assert [source.name for source in load_documents([path])] == ["a", "b"]


def test_a_beta_claim_is_converted_to_v1_unless_it_is_read_as_written(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\n"
        "spec: {devices: {requests: [{name: r, deviceClassName: c}]}}\n",
    )
    request = load_documents([path])[0].document["spec"]["devices"]["requests"][0]
    assert request == {"name": "r", "exactly": {"deviceClassName": "c"}}
    assert read_documents(path)[0].document["spec"]["devices"]["requests"][0] == {"name": "r", "deviceClassName": "c"}


def test_scalars_are_read_as_the_api_machinery_does(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "kind: Pod\nday: 2020-01-01\nratio: 1:30\nyes_: [yes, y, Y, n, N, yE, !!bool y, 'y']\nx: 0x10\nf: 1.5\n"
        "q: 16Gi\nnothing: ~\nv: 1.10.0\ncommits: [72551e2, 01443e5, 1e-1, 12e4f, 12e4567]\n"
        f"whole: [08, 8.0, 0o17, 017, 1_000]\nlarge: [1e21, 18446744073709551616, {'1' * 5000}]\n"
        "prefixes: [0B11, 0X1F, -0b1, 0x_1, 0b_, 1e1_0, <<, NaN]\n",
    )
    document = load_documents([path])[0].document
    assert document == {
        "kind": "Pod", "day": "2020-01-01", "ratio": "1:30", "yes_": [True, True, True, False, False, "yE", True, "y"],
        "x": 16, "f": 1.5, "q": "16Gi", "nothing": None, "v": "1.10.0",
        "commits": [7255100, 144300000, 0.1, "12e4f", "12e4567"], "whole": [8, 8, 15, 15, 1000],
        "large": [1e21, 2.0**64, "1" * 5000], "prefixes": [3, 31, -1, 1, "0b_", 10**10, "<<", "NaN"],
    }  # fmt: skip
    assert [type(number) for number in document["whole"]] == [int] * 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kind: a\nx: {b: 1, b: 2}\n",
            'the key "b" is given twice in one mapping; keep one of them (line 2, column 11)',
        ),
        ('{"kind": "a", "x": {"b": 1, "b": 2}}', 'the key "b" is given twice in one object; keep one of them'),
        ("kind: a\n1: x\n", "the key 1 is not a string; quote it (line 2, column 1)"),
        ("kind: a\nx: &x {z: *x}\n", "found unconstructable recursive node (line 2, column 4)"),
        ("kind: [", "is not YAML"),
        ("kind: ä\n\nx: y\x07\n", r"the character U+0007 is not allowed in it (line 3, column 5)"),
        ("kind: a\nx: .inf\n", '".inf" cannot be read as float (line 2, column 4)'),
        ("kind: a\nx: !!int b\n", '"b" cannot be read as int (line 2, column 4)'),
        ("kind: a\nx: !!set {b}\n", "could not determine a constructor for the tag 'tag:yaml.org,2002:set'"),
        ('{"kind": "a", "x": "\\ud800"}', "is not YAML: found invalid Unicode character escape code"),
        ('{"kind": "a", "x": ' + "[" * 101 + "]" * 101 + "}", "it is nested deeper than 100 levels"),
        ("kind: a\ny: x\n", "the key y is not a string; quote it (line 2, column 1)"),
        ("kind: a\nx: {b: 4, <<: {b: 3}}\n", 'kubectl would override the key "b" by that of "<<"; put "<<" first'),
        ("kind: a\nx: &x {b: 1}\nz: {<<: *x, b: 2, b: 3}\n", 'the key "b" is given twice'),
        ("kind: !!python/name:os.system x\n", "could not determine a constructor"),
        ("- a\n", "a mapping with a kind is expected"),
        ("[]\n", "a mapping with a kind is expected"),
        ("name: a\n", "a mapping with a kind is expected"),
        ("kind: List\nitems: [1]\n", "a mapping with a kind is expected"),
        ("apiVersion: resource.k8s.io/v2\nkind: ResourceClaim\n", "apiVersion: resource.k8s.io has v1, v1beta2"),
        ("kind: " + "[" * 100_000, "it is nested deeper than 100 levels (line 1, column 106)"),
        ('{"kind": "a", "x": ' + "[" * 100_000, "it is nested deeper than 100 levels"),
        (
            "kind: a\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
            "its aliases stand for more than 1000000 values or 64 MiB",
        ),
        ("kind: a\nx: &x " + "y" * (1 << 20) + "\nz: [" + "*x, " * 65 + "]\n", "its aliases stand for more than"),
        (
            "kind: a\nx: &x [" + "y" * (1 << 20) + "]\nz: [" + "*x, " * 65 + "]\n",
            "its aliases stand for more than",
        ),
    ],
)  # fmt: skip
def test_a_document_that_is_not_kubernetes_is_refused_in_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DocumentError) as caught:
        load_documents([path])
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_what_json_has_no_number_for_is_a_string_as_in_yaml(number: str) -> None:
    assert parse_yaml(f'{{"x": {number}}}'.encode(), "it") == parse_yaml(f"x: {number}".encode(), "it") == {"x": number}


def test_json_may_escape_a_character_as_a_surrogate_pair(tmp_path: Path) -> None:
    (source,) = load_documents([written(tmp_path, '{"kind": "Pod", "x": "\\ud83d\\ude00"}')])
    assert source.document["x"] == "\U0001f600"


def test_a_mapping_may_override_a_merged_one(tmp_path: Path) -> None:
    path = written(tmp_path, "kind: Pod\nx: &x {a: 1, b: 2}\nw: &y {<<: *x, b: 3}\nz: {<<: [*y, *x], b: 4}\n")
    document = load_documents([path])[0].document
    assert (document["w"], document["z"]) == ({"a": 1, "b": 3}, {"a": 1, "b": 4})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"missing\.yaml cannot be read: No such file or directory"):
        load_documents([tmp_path / "missing.yaml"])
    binary = tmp_path / "binary"
    binary.write_bytes(b"kind: \xff")
    with pytest.raises(DocumentError, match=r"is not UTF-8 text: byte 6 is 0xff"):
        load_documents([binary])


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("kind: Pod\n"))
    assert load_documents(["-"])[0].place == "-, document 1 (Pod)"


def test_a_configuration_is_one_document_of_any_kind(tmp_path: Path) -> None:
    assert read_yaml(written(tmp_path, "logFormat: json\n")) == {"logFormat": "json"}
    assert read_yaml(written(tmp_path, "# nothing\n")) is None
    with pytest.raises(DocumentError, match="holds 2 documents, but one is expected"):
        read_yaml(written(tmp_path, "a: 1\n---\nb: 2\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "apiVersion: resource.k8s.io/v1\nkind: ResourceClam\nmetadata: {name: c}\n",
            'kind: the API group resource.k8s.io has no kind "ResourceClam"; did you mean "ResourceClaim"',
        ),
        ("kind: ResourceClass\n", 'kind: Kubernetes has no kind "ResourceClass"; did you mean "DeviceClass"'),
        ("kind: Pood\n", 'document 1 (Pood): kind: Kubernetes has no kind "Pood"; did you mean "Pod"'),
        (
            "apiVersion: resource.k8s.i/v1\nkind: ResourceClaim\n",
            'apiVersion: the API group "resource.k8s.i" is unknown; did you mean "resource.k8s.io"',
        ),
        (
            "apiVersion: extensions/v1beta1\nkind: Deployment\n",
            'apiVersion: there is no API group "extensions"; Deployment is in apps',
        ),
        ("apiVersion: v1\nkind: Job\n", 'kind: the core API has no kind "Job"; it is in batch'),
        ("", "holds no document"),
        ("# nothing\n---\n", "holds no document"),
    ],
)
def test_an_unknown_kind_is_refused_with_file_object_and_path(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DocumentError) as caught:
        load_documents([path])
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_v1beta1_claim_has_no_exactly(tmp_path: Path) -> None:
    claim = "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\nmetadata: {name: c}\n"
    path = written(tmp_path, claim + "spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}\n")
    with pytest.raises(
        DocumentError, match=r"\(ResourceClaim c\): spec\.devices\.requests\[0\]: v1beta1 has no exactly"
    ):
        load_documents([path])


def test_json_documents_may_follow_each_other(tmp_path: Path) -> None:
    text = '{"kind": "Pod", "metadata": {"name": "a"}}\n{"kind": "List", "items": [{"kind": "Node"}]}{"kind": "Pod"}\n'
    assert [source.kind for source in read_documents(written(tmp_path, text))] == ["Pod", "Node", "Pod"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize(
    "text", ['{"kind": "Pod", "metadata": {"name": "é"}}\r\n', "kind: Pod\r\nmetadata: {name: é}\r\n"]
)
def test_a_dump_in_a_windows_encoding_is_read(tmp_path: Path, encoding: str, text: str) -> None:
    path = tmp_path / "dump"
    marked = text if encoding in ("utf-16", "utf-32", "utf-8-sig") else f"\ufeff{text}"
    path.write_bytes(marked.encode(encoding))
    assert [source.name for source in read_documents(path)] == ["é"]


def test_joined_files_may_each_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffkind: Pod\n---\n\ufeffkind: Node\n")
    assert [source.kind for source in read_documents(path)] == ["Pod", "Node"]


def test_text_that_is_invalid_in_its_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(b"\xff\xfea")
    with pytest.raises(DocumentError, match="is not UTF-16-LE text: byte 2 is 0x61"):
        read_documents(path)


@pytest.mark.parametrize(
    "text",
    [
        "1.5e3",
        "-.5e3",
        "2026-02-30",
        "0x_",
        "0b_1",
        "on",
        "y",
        "12:30",
        "1_000",
        "010",
        "~",
        "<<",
        "",
        "#",
        "a: b",
        "\u00e9",
    ],
)
def test_a_written_text_reads_back_unchanged(text: str) -> None:
    assert parse_yaml(dump_yaml({"value": text}).encode(), "it") == {"value": text}


def test_written_yaml_has_no_aliases_and_accepts_tuples() -> None:
    shared = {"a": (1, 2)}
    assert dump_yaml([shared, shared]) == "- a:\n  - 1\n  - 2\n- a:\n  - 1\n  - 2\n"
    # kubectl would read a boolean and a number if they were not quoted.
    assert dump_yaml(["y", "72551e2"]) == "- 'y'\n- '72551e2'\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\na: 2\n", 'the key "a" is given twice'),
        ('{"a": 1, "a": 2}', 'the key "a" is given twice'),
        ("1: 2\n", "is not a string"),
        ("a: 1\n---\nb: 1\n", "it holds 2 documents"),
    ],
)
def test_strictly_invalid_yaml_is_told_from_text_that_is_not_yaml(text: str, sentence: str) -> None:
    with pytest.raises(StrictError, match=sentence):
        parse_yaml(text.encode(), "it")
    with pytest.raises(DocumentError, match="it is not YAML") as refused:
        parse_yaml(b"a: [", "it")
    assert not isinstance(refused.value, StrictError)
