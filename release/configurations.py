"""The opaque configurations of the drivers as JSON Schemas for editors, and the page with their fields."""

import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Any, Final

import msgspec

from dranode.api.quantity import Quantity
from dranode.cpu.config import API_VERSION as CPU_API_VERSION
from dranode.cpu.config import CPUConfig
from dranode.gpu.config import API_VERSION as GPU_API_VERSION
from dranode.gpu.config import GPUConfig
from dranode.memory.config import API_VERSION as MEMORY_API_VERSION
from dranode.memory.config import MemoryConfig

CONFIGURATIONS: Final[Mapping[str, tuple[str, type[msgspec.Struct]]]] = {
    "CPUConfig": (CPU_API_VERSION, CPUConfig),
    "GPUConfig": (GPU_API_VERSION, GPUConfig),
    "MemoryConfig": (MEMORY_API_VERSION, MemoryConfig),
}
# An attribute in a docstring: its name, a colon, and its text, whose further lines are indented more.
_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+(?:\n {6,}\S.*)*)", re.MULTILINE)
_OF_ITSELF: Final = frozenset({"apiVersion", "kind"})


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of an opaque configuration, with the two fields that identify it."""
    version, model = CONFIGURATIONS[kind]
    document: dict[str, Any] = msgspec.json.schema(model, schema_hook=_custom)
    for definition in document["$defs"].values():
        _describe(definition)
    fields = document["$defs"][kind]
    fields["properties"] = {**fields["properties"], "apiVersion": {"const": version}, "kind": {"const": kind}}
    fields["required"] = sorted({"apiVersion", "kind", *fields.get("required", ())})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind, **document}


def _custom(kind: type) -> dict[str, Any]:
    """Return the schema of a type that msgspec does not know: a quantity of Kubernetes, such as `10Gi`."""
    if kind is Quantity:
        return {"type": ["string", "number"], "description": "A quantity, such as 10Gi."}
    raise NotImplementedError


def _describe(definition: dict[str, Any]) -> None:
    """Move the description of each attribute from the docstring to its field, where editors show it."""
    text = cleandoc(definition.get("description", ""))
    said = {name: " ".join(sentence.split()) for name, sentence in _ATTRIBUTE.findall(text)}
    definition["description"] = text.partition("\n\nAttributes:")[0]
    for field, value in definition.get("properties", {}).items():
        words = re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", field)
        if words in said:
            value["description"] = said[words]


def configurations() -> str:
    """Return a page with the fields of every opaque configuration, from its schema."""
    introduction = (
        "The fields of `opaque.parameters` in a claim or class. Every field except `apiVersion` and `kind` is "
        "optional. How to use them: [CPUs](../configuration.md), [GPUs](../gpu.md), [memory](../memory.md).\n"
    )
    parts = ["# Opaque configurations\n", introduction]
    for kind, (version, _) in CONFIGURATIONS.items():
        parts.append(
            f"## {kind}\n\n`apiVersion: {version}`, `kind: {kind}`, as [JSON Schema](../schemas/{kind}.json).\n\n"
            "| field | value | what |\n| --- | --- | --- |"
        )
        rows = fields(schema(kind), kind)
        parts += [f"| `{name}` | {value} | {what.replace('|', '&#124;')} |" for name, value, what in rows]
        parts.append("")
    return "\n".join(parts)


def fields(document: Mapping[str, Any], name: str, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each field of a definition with its values and its description, followed by the fields inside it."""
    for field, value in document["$defs"][name]["properties"].items():
        if field in _OF_ITSELF:
            continue
        kinds = [_resolved(document, form) for form in value.get("anyOf", [value]) if form.get("type") != "null"]
        what = value.get("description") or next((form["description"] for form in kinds if "description" in form), "")
        yield f"{prefix}{field}", ", ".join(map(_words, kinds)), what
        for form in kinds:
            if "properties" in form:
                yield from fields(document, form["title"], f"{prefix}{field}.")


def _resolved(document: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = value.get("$ref")
    return document["$defs"][reference.rsplit("/", 1)[-1]] if reference else value


def _words(value: Mapping[str, Any]) -> str:
    if "enum" in value:
        return ", ".join(f"`{form}`" for form in value["enum"])
    kind = value["type"]
    names = {"object": "fields of its own", "boolean": "`true`, `false`"}
    return " or ".join(names.get(form, form) for form in ([kind] if isinstance(kind, str) else kind))
