"""The nodes of a YAML document, as the Go library sees its text."""

# mypy: allow-untyped-calls
# (the stubs of PyYAML leave most of its methods without types)

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from yaml.reader import ReaderError

from dranode.cdi.errors import CDIError
from dranode.cdi.loader.yaml_syntax import GoSyntax


class Scalar(msgspec.Struct, frozen=True):
    """A scalar. `plain`: its type follows from its text; `tag` is in the long form, or "" for none."""

    value: str
    tag: str
    plain: bool
    line: int


class Sequence(msgspec.Struct):
    """A list of nodes."""

    line: int
    items: list[YAMLNode] = msgspec.field(default_factory=list)


class Mapping(msgspec.Struct):
    """Key and value nodes in the order of the document, duplicates included."""

    line: int
    pairs: list[tuple[YAMLNode, YAMLNode]] = msgspec.field(default_factory=list)


class Alias(msgspec.Struct, frozen=True):
    """`*name` with the node that it stands for, the last one of that anchor. A node may contain its own alias."""

    name: str
    node: Scalar | Sequence | Mapping
    line: int


YAMLNode: TypeAlias = Scalar | Sequence | Mapping | Alias


class _Composer:
    """Composes nodes from events. An anchor may be set twice; the last one counts."""

    def __init__(self, syntax: GoSyntax) -> None:
        self._syntax = syntax
        self._anchors: dict[str, Scalar | Sequence | Mapping] = {}

    def node(self) -> YAMLNode:
        event = self._syntax.get_event()
        line = event.start_mark.line + 1
        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                raise CDIError(f"line {line}: *{event.anchor} is not anchored before")
            return Alias(event.anchor, self._anchors[event.anchor], line)
        if isinstance(event, ScalarEvent):
            return self._anchored(event, Scalar(event.value, event.tag or "", event.implicit[0], line))
        if isinstance(event, SequenceStartEvent):
            sequence = Sequence(line)
            self._anchored(event, sequence)
            while not self._syntax.check_event(SequenceEndEvent):
                sequence.items.append(self.node())
            self._syntax.get_event()
            return sequence
        if not isinstance(event, MappingStartEvent):
            raise TypeError(event)
        mapping = Mapping(line)
        self._anchored(event, mapping)
        while not self._syntax.check_event(MappingEndEvent):
            mapping.pairs.append((self.node(), self.node()))
        self._syntax.get_event()
        return mapping

    def _anchored(self, event: Any, node: Scalar | Sequence | Mapping) -> YAMLNode:
        if event.anchor:
            self._anchors[event.anchor] = node
        return node


def first_document(data: bytes, ahead: int = 0) -> YAMLNode | None:
    """Compose the first document of a text; return None if there is none.

    Args:
        data: the text.
        ahead: how many tokens the library scans behind the one at which it sees that the document has ended.

    Raises:
        CDIError: the Go library would refuse the text; the message has the line.
    """
    try:
        syntax = GoSyntax(data)
        syntax.get_event()
        if syntax.check_event(StreamEndEvent):
            return None
        syntax.get_event()
        node = _Composer(syntax).node()
        syntax.scan_ahead(ahead)
        syntax.get_event()
    except ReaderError as error:
        raise CDIError(f"byte {error.position}: {error.reason}") from error
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise CDIError(f"{where}{error.problem or 'is not YAML'}") from error
    return node
