"""The page of the reference with the names that a driver imports, made from their docstrings."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import dranode.api
import dranode.driver
from dranode.driver.testing import check_plugin
from release.reference import plain

_MEMBER: Final = re.compile(r"<(\w+\.\w+): [^>]*>")
_SECTION: Final = re.compile(r"^(Attributes|Raises|Args|Yields|Returns):\n((?:(?: {4,}.*)?\n?)+)", re.MULTILINE)
_ENTRY: Final = re.compile(r"^ {4}(?P<name>[\w, .]+): (?P<text>.+(?:\n {5,}\S.*)*)", re.MULTILINE)
_LINE: Final = 100
_MODULE: Final = re.compile(r"\b(?:dranode|collections|typing|pathlib)\.[a-z_.]+(?=[A-Z])")


def names() -> str:
    """Return a page with every exported name: its signature, what it promises, and its methods."""
    introduction = (
        "# Names for drivers\n\nEverything that a driver imports. `dranode.driver` is the seam, `dranode.api` has the "
        "documents of Kubernetes, and `check_plugin`, for the driver's test, is in `dranode.driver.testing`. "
        "[How to write a driver](../drivers.md). [What stays](../stability.md).\n\n"
        "| name | from | what |\n| --- | --- | --- |"
    )
    modules = (dranode.api, dranode.driver)
    places = {name: module.__name__ for module in modules for name in module.__all__}
    objects = {name: getattr(module, name) for module in reversed(modules) for name in module.__all__}
    objects, places = objects | {"check_plugin": check_plugin}, places | {"check_plugin": check_plugin.__module__}
    table = [f"| [`{name}`](#{name}) | `{places[name]}` | {plain(_first(value))} |" for name, value in objects.items()]
    return "\n".join([introduction, *table, "", *(_section(name, value) for name, value in objects.items())])


def _section(name: str, value: Any) -> str:
    parts = [f"## `{name}` {{ #{name} }}\n", *_promise(value)]
    if isinstance(value, type) and issubclass(value, enum.Enum):
        parts.append(f"Values: {', '.join(f'`{each.name}`' for each in value)}.\n")
    else:
        parts.insert(1, f"```python\n{_signature(name, value)}\n```\n")
    for method, function in _methods(value):
        parts += [f"### `{name}.{method}` {{ #{name}.{method} }}\n"]
        parts += [f"```python\n{_signature(method, function)}\n```\n", *_promise(function)]
    return "\n".join(parts)


def _methods(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public methods that a class defines itself; properties too."""
    if not isinstance(value, type) or issubclass(value, enum.Enum):
        return
    for name, member in vars(value).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not name.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
            yield name, function


def _signature(name: str, value: Any) -> str:
    if isinstance(value, property):
        return name
    if inspect.isclass(value) and (inspect.isabstract(value) or getattr(value, "_is_protocol", False)):
        return f"class {name}"
    signature = inspect.signature(value)
    parameters = [str(each) for each in signature.parameters.values() if each.name not in ("self", "cls")]
    if any(each.kind is each.KEYWORD_ONLY for each in signature.parameters.values()):
        first = next(at for at, each in enumerate(signature.parameters.values()) if each.kind is each.KEYWORD_ONLY)
        parameters.insert(first, "*")
    answer = str(signature.replace(parameters=[])).removeprefix("()").removesuffix(" -> None")
    line = f"{name}({', '.join(parameters)}){answer}"
    if len(line) > _LINE:
        line = f"{name}(\n    " + ",\n    ".join(parameters) + f",\n){answer}"
    line = _MODULE.sub("", line).replace("'", "").replace("<factory>", "...")
    return _MEMBER.sub(r"\1", line)


def _promise(value: Any) -> Iterator[str]:
    """Yield a docstring as Markdown: paragraphs, and a list for each of its sections."""
    text = inspect.getdoc(value) or ""
    yield _SECTION.sub("", text).strip() + "\n"
    for title, entries in _SECTION.findall(text):
        yield f"{title}:\n"
        yield "\n".join(f"- `{name}`: {' '.join(what.split())}" for name, what in _ENTRY.findall(entries)) + "\n"


def _first(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0]
