"""Asks the installed drivers about their opaque configurations, all at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dranode.api.errors import ClaimError
from dranode.api.validation import FieldError
from dranode.driver.claims.grant import Config
from dranode.driver.claims.plugin import Plugin


def parameter_errors(plugin: Plugin, origin: Any, parameters: Any, path: str) -> Iterator[FieldError]:
    """Every error: a driver names its first one, so it is asked again without the field that was wrong."""
    removed: list[str] = []
    while (error := _first_error(plugin, origin, parameters, path)) is not None:
        # What is only wrong since another field is gone is none.
        # The list of fields that there are, behind the semicolon, names them all.
        said = error.message.partition("; there are ")[0]
        if not any(re.search(rf"\b{re.escape(name)}\b", said) for name in removed):
            yield error
        name = _wrong_field(error, path, parameters)
        if name is None:
            return
        removed.append(name)
        parameters = {key: value for key, value in parameters.items() if key != name}


def _wrong_field(error: FieldError, path: str, parameters: Any) -> str | None:
    """The field that an error is about, if the configuration can be read without it."""
    unknown = re.search(r"\bunknown field (\w+)", error.message)
    below = error.path.removeprefix(path).removeprefix(".")
    name = unknown[1] if unknown and not below else re.split(r"[.\[]", below)[0]
    known = isinstance(parameters, Mapping) and name in parameters and name not in ("apiVersion", "kind")
    return name if known else None


def _first_error(plugin: Plugin, origin: Any, parameters: Any, path: str) -> FieldError | None:
    try:
        plugin.parse_config(Config(origin, parameters, path or "parameters"))
    except ClaimError as error:
        text = str(error)
        rest = text.removeprefix(path or "parameters")
        where, colon, message = rest.partition(": ")
        if colon and rest != text and where[:1] in ("", ".", "["):
            return FieldError(f"{path}{where}" if path else where.removeprefix("."), message)
        return FieldError(path, rest.strip())
    return None
