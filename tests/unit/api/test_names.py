"""Which names are valid, on both sides of every limit."""

from collections.abc import Callable
from functools import partial

import pytest

from dranode.api.names import (
    is_dns_label,
    is_dns_subdomain,
    is_label_name,
    is_label_value,
    is_qualified_name,
    named_value,
    qualified,
)

SUBDOMAIN = ".".join(["a" * 63] * 3) + "." + "b" * 61
FORMS: dict[str, tuple[Callable[[str], bool], list[str], list[str]]] = {
    "a label": (is_dns_label, ["a", "0", "a-0", "a" * 63], ["", "A", "-a", "a-", "a.b", "a_b", "a" * 64, "a\n", "ä"]),
    "a subdomain": (
        is_dns_subdomain,
        ["a", "a.b-c.0", "a" * 100, SUBDOMAIN],
        ["", ".a", "a.", "a..b", "a.-b", "A.b", "a_b", SUBDOMAIN + "b"],
    ),
    "a driver": (partial(is_dns_subdomain, longest=63), ["a" * 63], ["a" * 64]),
    "an attribute": (
        is_qualified_name,
        ["a", "_A9", "a" * 32, f"{'d' * 63}/a"],
        ["", "9a", "a-b", "a" * 33, "/a", "d/", f"{'d' * 64}/a", "d/e/f", "D/a"],
    ),
    "a label's value": (is_label_value, ["", "a", "A.b_c-9", "a" * 63], ["-a", "a.", "a b", "a" * 64]),
    "a label's name": (
        is_label_name,
        ["a", "A.b_c-9", "a" * 63, f"{SUBDOMAIN}/{'a' * 63}"],
        ["", "a" * 64, "/a", "d/", f"{SUBDOMAIN}b/a", "D/a", "-a"],
    ),
}


def test_the_longest_subdomain_has_253_characters() -> None:
    assert len(SUBDOMAIN) == 253


@pytest.mark.parametrize("form", FORMS)
def test_a_name_is_valid_up_to_its_limit_and_no_further(form: str) -> None:
    judge, good, bad = FORMS[form]
    assert {name: judge(name) for name in good} == dict.fromkeys(good, True)
    assert {name: judge(name) for name in bad} == dict.fromkeys(bad, False)


def test_a_name_without_a_domain_is_the_drivers() -> None:
    assert (qualified("cores", "dra.cpu"), qualified("other/cores", "dra.cpu")) == ("dra.cpu/cores", "other/cores")
    both = {"cores": 1, "dra.cpu/cores": 2}
    assert (named_value(both, "cores", "dra.cpu"), named_value(both, "dra.cpu/cores", "dra.cpu")) == (1, 2)
    assert (
        named_value({"dra.cpu/cores": 2}, "cores", "dra.cpu")
        == named_value({"cores": 2}, "dra.cpu/cores", "dra.cpu")
        == 2
    )
    assert named_value({"other/cores": 3}, "cores", "dra.cpu") is None
