"""Reads files of Kubernetes documents as kubectl accepts and prints them: YAML or JSON, several of them, a `List`.

This is the only reader of YAML except that of CDI specs (`cdi.document`). It can read everything that it writes.

The text is UTF-8, or UTF-16 with a byte order mark, which is what a redirection in Windows PowerShell writes.

YAML is read the way the API machinery reads it (sigs.k8s.io/yaml with go.yaml.in/yaml v2: YAML 1.1 booleans, also y and
n, no dates, no base-60 numbers), but strictly: a repeated key, a key that is not a string, a `<<` after a key that it
overrides, and an alias that contains itself are refused.
"""

import codecs
import json
import math
import re
import sys
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from dranode.api.documents import kind_of, to_v1
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument, check_header, check_unique
from dranode.cdi.document import FORMS, add_resolvers, go_integer
from dranode.cdi.regular_file import LARGEST, MOST, read_given, read_to_end

STDIN: Final = "-"
# PyYAML and libyaml recurse, so a deeper document could exhaust the stack.
_MAX_DEPTH: Final = 100
_MAX_NODES: Final = 20_000_000
# How much text aliases may stand for: a manifest repeats only a few lines with them.
_MAX_COPIED: Final = 1_000_000
_MAX_COPIED_TEXT: Final = 64 << 20
_LEAST_WITH_EXPONENT: Final = 1e21  # encoding/json of Go writes larger numbers with an exponent
_TAG: Final = "tag:yaml.org,2002:"
_SHOWN: Final = 40  # characters of a value in an error
_BOOLEANS: Final = {
    "bool": (r"[yYnN]|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|true|True|TRUE|false|False|FALSE", "yYnNoOtTfF")
}
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_SEPARATOR: Final = re.compile(r"^---(?=\s)", re.MULTILINE)
# UTF-32 comes before UTF-16, because the mark of UTF-16 LE is the beginning of that of UTF-32 LE.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# JSON writes characters beyond 16 bits as a pair of such escapes. One half alone is not a character.
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class StrictError(DocumentError):
    """YAML or JSON that other readers may accept, but not this one, for example because a key is repeated."""


def load_documents(paths: Iterable[Path | str]) -> tuple[SourceDocument, ...]:
    """Read the documents of all files in order, those of `resource.k8s.io` in their v1 form.

    Raises:
        DocumentError: a file cannot be read, is not YAML or JSON, or holds nothing, something that is not a Kubernetes
            document, a document with an unknown kind or API version, or the same object twice.
    """
    documents = tuple(_v1(source) for path in paths for source in read_documents(path))
    check_unique(documents)
    return documents


def read_documents(path: Path | str) -> tuple[SourceDocument, ...]:
    """Read the documents of one file as they are written, with the items of lists one by one.

    Raises:
        DocumentError: the file cannot be read, is not YAML or JSON, or holds nothing or something that is not a
            Kubernetes document.
    """
    file = str(path)
    documents, problems = _documents(_parse(_decoded(_content(file, LARGEST), file), file), file)
    if problems:
        raise problems[0]
    return documents


def read_each_document(path: Path | str) -> tuple[tuple[SourceDocument, ...], tuple[DocumentError, ...]]:
    """Return the documents of a file that can be read, and the errors of the others.

    Raises:
        DocumentError: the file cannot be read or holds nothing.
    """
    file = str(path)
    text = _decoded(_content(file, LARGEST), file)
    parsed: list[Any] = []
    unread: list[DocumentError] = []
    try:
        parsed = _parse(text, file)
    except DocumentError:
        # One damaged document makes the whole stream unreadable, so try the documents one by one.
        for part in _parts(text):
            try:
                parsed += _parse(part, file)
            except DocumentError as error:
                unread.append(error)
    if not parsed and unread:
        return (), tuple(unread)
    documents, problems = _documents(parsed, file)
    return documents, (*unread, *problems)


def _documents(parsed: list[Any], file: str) -> tuple[tuple[SourceDocument, ...], tuple[DocumentError, ...]]:
    """Return the documents with their numbers, and the errors of everything else."""
    if not parsed:
        raise DocumentError(f"{file} holds no document")
    documents: list[SourceDocument] = []
    problems: list[DocumentError] = []
    for document in parsed:
        index = len(documents) + len(problems)
        try:
            documents += [SourceDocument(file, index + number, item) for number, item in enumerate(_items(document))]
        except DocumentError as error:
            placed = DocumentError(f"{file}, document {index + 1}: {error}")
            placed.__cause__ = error
            problems.append(placed)
    return tuple(documents), tuple(problems)


def _parts(text: str) -> Iterator[str]:
    """Yield the YAML documents of a text, each after as many empty lines as there are lines before it."""
    # The empty lines keep the line numbers in errors right.
    start = 0
    for match in _SEPARATOR.finditer(text):
        yield "\n" * text.count("\n", 0, start) + text[start : match.start()]
        start = match.start()
    yield "\n" * text.count("\n", 0, start) + text[start:]


def read_yaml(path: Path | str, *, first: bool = False) -> Any:
    """Read the only YAML or JSON document of a file, of any type; None for an empty file. See `parse_yaml`.

    Raises:
        DocumentError: the file cannot be read, is not YAML or JSON, or holds several documents.
    """
    file = str(path)
    return parse_yaml(_content(file), file, first=first)


def parse_yaml(content: bytes, place: str, *, first: bool = False) -> Any:
    """Read the only YAML or JSON document of a file's content, of any type; None for an empty one.

    Args:
        content: the bytes.
        place: what errors call the file.
        first: whether documents after the first one are ignored.

    Raises:
        StrictError: there are several documents, or one is refused by the strict rules.
        DocumentError: the content is not YAML or JSON.
    """
    documents = _parse(_decoded(content, place), place)
    if len(documents) > 1 and not first:
        raise StrictError(f"{place} holds {len(documents)} documents, but one is expected")
    return documents[0] if documents else None


def dump_yaml(document: Any) -> str:
    """Return a plain document as YAML; strings that a YAML reader could take for another type are quoted."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _v1(source: SourceDocument) -> SourceDocument:
    with source.names_errors():
        check_header(source.document)
        return SourceDocument(source.file, source.index, to_v1(source.document))


def _content(file: str, most: int = MOST) -> bytes:
    try:
        return _standard_input(most) if file == STDIN else read_given(file, most)
    except OSError as error:
        raise DocumentError(f"{file} cannot be read: {error.strerror}") from error


def _decoded(content: bytes, file: str) -> str:
    try:
        encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
        return content.decode(encoding).replace("\n\ufeff", "\n")  # joined files have further marks
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{file} is not {error.encoding.upper()} text: byte {error.start} is {error.object[error.start]:#04x}"
        ) from error


def _standard_input(most: int) -> bytes:
    buffer = getattr(sys.stdin, "buffer", None)  # a program may have replaced it with a stream of text
    return read_to_end(buffer, most) if buffer is not None else sys.stdin.read().encode()


def _parse(text: str, file: str) -> list[Any]:
    if text.lstrip()[:1] == "{":  # JSON, or YAML in the flow style
        try:
            documents = list(_json_values(text))
        except DocumentError as error:
            raise StrictError(f"{file}: {error}") from error
        except (ValueError, RecursionError):
            documents = []
        # Otherwise the YAML reader decides; it also reports where the text is wrong.
        if documents and not _too_deep(documents) and _has_characters(documents, text):
            return documents
    try:
        return _load(text)
    except yaml.YAMLError as error:
        kind = StrictError if isinstance(error, yaml.constructor.ConstructorError) else DocumentError
        raise kind(f"{file} is not YAML: {_sentence(error, text)}") from error


def _json_values(text: str) -> Iterator[Any]:
    """Yield the values of a text with one JSON value after another, such as the output of several kubectl calls."""
    decoder = json.JSONDecoder(object_pairs_hook=_mapping, parse_float=_number, parse_constant=_number)
    start = 0
    while space := _SPACE.match(text, start):
        if space.end() == len(text):
            return
        value, start = decoder.raw_decode(text, space.end())
        yield value


def _load(text: str) -> list[Any]:
    _check_size(text)
    return [document for document in yaml.load_all(text, _StrictLoader) if document is not None]


def _too_deep(document: Any) -> bool:
    level = [document]
    for _ in range(_MAX_DEPTH + 1):  # the list of documents is a level of its own
        members = (node.values() if isinstance(node, dict) else node for node in level)
        level = [value for values in members for value in values if isinstance(value, (dict, list))]
    return bool(level)


def _has_characters(document: Any, text: str) -> bool:
    """Return whether its strings can be encoded: JSON escapes may spell half of a surrogate pair."""
    if _SURROGATE.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return False
    return True


def _check_size(text: str) -> None:
    """Refuse a text that would exhaust the stack or the memory: libyaml recurses, and aliases become copies.

    Raises:
        ConstructorError: the text is nested too deeply, or its aliases stand for too many values.
    """
    # The anchor of each node around the current one, and the counts before it.
    open_nodes: list[tuple[str | None, int, int]] = []
    anchored: dict[str, tuple[int, int]] = {}
    count = length = copied = copied_length = 0
    for event in yaml.parse(text, _EventLoader):
        if isinstance(event, yaml.AliasEvent):
            # An alias counts as much as the node that it repeats, so aliases of aliases add up ("billion laughs").
            nodes, characters = anchored.get(event.anchor or "", (1, 0))
            count, length = count + nodes, length + characters
            copied, copied_length = copied + nodes, copied_length + characters
        elif isinstance(event, yaml.ScalarEvent):
            count, length = count + 1, length + len(event.value)
            if event.anchor is not None:
                anchored[event.anchor] = (1, len(event.value))
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, count, length))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before, shorter = open_nodes.pop()
            if anchor is not None:
                anchored[anchor] = (count - before, length - shorter)
        if len(open_nodes) > _MAX_DEPTH:
            raise _refusal(f"it is nested deeper than {_MAX_DEPTH} levels", event)
        _check_copies(event, count, copied, copied_length)


def _check_copies(event: Any, count: int, copied: int, copied_length: int) -> None:
    if count > _MAX_NODES:
        raise _refusal(f"with its aliases written out it has more than {_MAX_NODES} values", event)
    if copied > _MAX_COPIED or copied_length > _MAX_COPIED_TEXT:
        raise _refusal(f"its aliases stand for more than {_MAX_COPIED} values or {_MAX_COPIED_TEXT >> 20} MiB", event)


def _refusal(problem: str, at: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, at.start_mark)


def _items(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the document, or the items of a `List`; items of a typed list may omit the API version and kind.

    A plain array is treated as a list.
    """
    if isinstance(document, list) and document:
        for item in document:
            yield from _items(item)
        return
    if isinstance(document, dict) and isinstance(document.get("kind"), str):
        kind: str = document["kind"]
        if not kind.endswith("List"):
            yield document
            return
        items = document.get("items") or []
        if isinstance(items, list):
            inherited = (
                {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
            )
            for item in items:
                yield from _items({**inherited, **item} if isinstance(item, dict) else item)
            return
        raise DocumentError(f"a list is expected, not {kind_of(items)}", "items")
    if isinstance(document, dict) and "kind" in document:
        raise DocumentError(f"{document['kind']!r} is not a string", "kind")
    raise DocumentError("this is not a Kubernetes document: a mapping with a kind is expected")


def _number(text: str) -> int | float:
    """Return a number as its form in JSON, through which kubectl sends it: 1e3 and 8.0 are whole numbers.

    Raises:
        ValueError: JSON has no such number, for example NaN.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"JSON has no number {text}")
    return int(value) if value.is_integer() and abs(value) < _LEAST_WITH_EXPONENT else value


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DocumentError(f'the key "{key}" is given twice in one object; keep one of them')
            seen.add(key)
    return mapping


def _sentence(error: yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.reader.ReaderError) and isinstance(error.character, int):
        # Its position counts characters, or bytes if PyYAML has libyaml.
        before = text[: text.index(chr(error.character))]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        return f"the character U+{error.character:04X} is not allowed in it (line {line}, column {column})"
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "it cannot be read"
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else problem


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may come without libyaml
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_EventLoader: Any = getattr(yaml, "CLoader", yaml.Loader)  # constructs nothing: only its events are read


class _Dumper(_SafeDumper):  # type: ignore[misc] # chosen at run time
    """PyYAML's safe dumper, which also accepts tuples, writes no aliases, and quotes ambiguous strings."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


class _StrictLoader(_SafeLoader):  # type: ignore[misc] # chosen at run time
    """PyYAML's safe loader with the scalars of the API machinery and without silent repairs."""

    yaml_implicit_resolvers: Final[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}
    bool_values: Final = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = True) -> dict[Hashable, Any]:  # noqa: ARG002, FBT001, FBT002 - PyYAML's signature
        # flatten_mapping puts the keys of "<<" before the mapping's own keys, which may override them. For the API
        # machinery only those after "<<" do.
        own = {id(key_node): place for place, (key_node, _) in enumerate(node.value)}
        merge = max((own[id(key_node)] for key_node, _ in node.value if key_node.tag == f"{_TAG}merge"), default=0)
        self.flatten_mapping(node)
        mapping: dict[Hashable, Any] = {}
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                written = repr(key) if isinstance(key, (dict, list)) else key_node.value
                raise _refusal(f"the key {written} is not a string; quote it", key_node)
            if key in seen:
                raise _refusal(f'the key "{key}" is given twice in one mapping; keep one of them', key_node)
            if id(key_node) in own:
                seen.add(key)
                if key in mapping and own[id(key_node)] < merge:
                    raise _refusal(f'kubectl would override the key "{key}" by that of "<<"; put "<<" first', key_node)
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError) as error:  # PyYAML raises these for "!!int x" and the like
            kind = node.tag.rpartition(":")[2]
            shown = " ".join(str(node.value).split())[:_SHOWN]
            raise _refusal(f'"{shown}" cannot be read as {kind}', node) from error

    def construct_integer(self, node: yaml.ScalarNode) -> int | float | str:
        if not re.fullmatch(FORMS["int"][0], node.value):  # after an explicit tag
            raise ValueError("this is not an integer")
        value = go_integer(node.value)
        return node.value if value == math.inf else value

    def construct_number(self, node: yaml.ScalarNode) -> int | float | str:
        text: str = node.value.replace("_", "")
        # An abbreviated commit such as 12e4567 is too large for a float, so Go reads it as a string.
        return node.value if math.isinf(float(text)) else _number(text)

    def construct_whole_map(self, node: yaml.MappingNode) -> dict[Hashable, Any]:
        return self.construct_mapping(node)

    def construct_whole_seq(self, node: yaml.SequenceNode) -> list[Any]:
        return [self.construct_object(item, deep=True) for item in node.value]


# A mapping or list is constructed at once and not in two steps, so that PyYAML detects one that contains itself.
_StrictLoader.add_constructor(f"{_TAG}map", _StrictLoader.construct_whole_map)
_StrictLoader.add_constructor(f"{_TAG}seq", _StrictLoader.construct_whole_seq)
_StrictLoader.add_constructor(f"{_TAG}int", _StrictLoader.construct_integer)
_StrictLoader.add_constructor(f"{_TAG}float", _StrictLoader.construct_number)
_StrictLoader.add_constructor(f"{_TAG}merge", _SafeLoader.construct_yaml_str)  # as a value

# These types have no form in JSON, so no Kubernetes document has them.
for _tag in ("binary", "omap", "pairs", "set", "timestamp"):
    _StrictLoader.add_constructor(f"{_TAG}{_tag}", _SafeLoader.construct_undefined)

# The dumper gets the same forms, so that it quotes every string that the loader would take for something else.
for _kind in (_StrictLoader, _Dumper):
    add_resolvers(_kind, FORMS | _BOOLEANS)
_Dumper.add_representer(tuple, _SafeDumper.represent_list)
