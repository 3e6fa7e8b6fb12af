"""The formats that strings can be validated against (k8s.io/apiserver/pkg/cel/library/format.go and what it calls)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Final

from dranode.sim.cel.declarations import FORMATS
from dranode.sim.cel.network import url_from
from dranode.sim.cel.values import NONE, FormatValue, OptionalValue

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))")

_LABEL_PROBLEM: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    f" an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_PROBLEM: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    f" end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_LABEL_1035_PROBLEM: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is"
    f" '{_LABEL_1035}')"
)
_QUALIFIED_PROBLEM: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    f" '{_QUALIFIED}')"
)
_VALUE_PROBLEM: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    f" '({_QUALIFIED})?')"
)
_TWO_PARTS_PROBLEM: Final = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    f" '{_QUALIFIED}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_MAX_LABEL: Final = 63
_MAX_SUBDOMAIN: Final = 253


def format_named(name: str) -> OptionalValue:
    """The format of that name."""
    return OptionalValue(format_of(name), present=True) if name in FORMATS else NONE


def format_of(name: str) -> FormatValue:
    """A format of the table."""
    return FormatValue(name, FORMATS[name][1])


def problems_of(form: FormatValue, text: str) -> OptionalValue:
    """Return what is wrong with the text; nothing if it is in the format."""
    problems = _VALIDATORS[form.name](text)
    return OptionalValue(problems, present=True) if problems else NONE


def _matched(pattern: str, longest: int, problem: str) -> Callable[[str], list[str]]:
    compiled = re.compile(pattern)

    def problems(text: str) -> list[str]:
        matches = compiled.fullmatch(text) is not None
        return [*_too_long(text, longest), *([] if matches else [problem])]

    return problems


def _too_long(text: str, longest: int) -> list[str]:
    return [f"must be no more than {longest} bytes"] if len(text.encode()) > longest else []


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """The same of what something is appended to: a dash at the end is fine."""

    def problems(text: str) -> list[str]:
        return check(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)

    return problems


def _label_value(text: str) -> list[str]:
    return _matched(f"({_QUALIFIED})?", _MAX_LABEL, _VALUE_PROBLEM)(text)


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if text.count("/") > 1:
        return [_TWO_PARTS_PROBLEM]
    problems: list[str] = []
    if slash:
        checked = (
            ["prefix part must be non-empty"] if not prefix else [f"prefix part {one}" for one in _subdomain(prefix)]
        )
        problems += checked
    if not name:
        return [*problems, "name part must be non-empty", _QUALIFIED_PROBLEM]
    named_ = _matched(_QUALIFIED, _MAX_LABEL, _QUALIFIED_PROBLEM)(name)
    return problems + [one if one == _QUALIFIED_PROBLEM else f"name part {one}" for one in named_]


def _uri(text: str) -> list[str]:
    try:
        url_from(text)
    except ValueError as error:
        return [str(error)]
    return []


def _is_date(text: str) -> bool:
    try:
        return re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) is not None and bool(date.fromisoformat(text))
    except ValueError:
        return text.startswith("0000-") and _is_date(f"2000{text[4:]}")


def _is_datetime(text: str) -> bool:
    day, letter, rest = text.lower().partition("t")
    found = _TIME.fullmatch(rest)
    return (
        bool(letter)
        and _is_date(day)
        and found is not None
        and found[1] <= "23"
        and found[2] <= "59"
        and found[3] <= "59"
    )


def _valid(holds: Callable[[str], bool], problem: str) -> Callable[[str], list[str]]:
    return lambda text: [] if holds(text) else [problem]


_label: Final = _matched(_LABEL, _MAX_LABEL, _LABEL_PROBLEM)
_subdomain: Final = _matched(_SUBDOMAIN, _MAX_SUBDOMAIN, _SUBDOMAIN_PROBLEM)
_label_1035: Final = _matched(_LABEL_1035, _MAX_LABEL, _LABEL_1035_PROBLEM)
_VALIDATORS: Final[dict[str, Callable[[str], list[str]]]] = {
    "dns1123Label": _label,
    "dns1123LabelPrefix": _prefix(_label),
    "dns1123Subdomain": _subdomain,
    "dns1123SubdomainPrefix": _prefix(_subdomain),
    "dns1035Label": _label_1035,
    "dns1035LabelPrefix": _prefix(_label_1035),
    "qualifiedName": _qualified_name,
    "labelValue": _label_value,
    "uri": _uri,
    "uuid": _valid(lambda text: _UUID.fullmatch(text) is not None, "does not match the UUID format"),
    "byte": _valid(lambda text: _BASE64.fullmatch(text) is not None, "invalid base64"),
    "date": _valid(_is_date, "invalid date"),
    "datetime": _valid(_is_datetime, "invalid datetime"),
}
