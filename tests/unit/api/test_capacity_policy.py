"""The request policies of a capacity that the API server accepts, and how it rejects others (KEP-5075)."""

import pytest

from dranode.api.capacity_policy import policy_problems
from dranode.api.documents import decode
from dranode.api.quantity import Quantity
from dranode.api.resource import CapacityRequestPolicy


def policy(default: str = "", values: str = "", low: str = "", step: str = "", high: str = "") -> CapacityRequestPolicy:
    range_ = {name: value for name, value in (("min", low), ("step", step), ("max", high)) if value}
    fields = {"default": default, "validValues": values.split(), "validRange": range_}
    return decode(CapacityRequestPolicy, {name: value for name, value in fields.items() if value})


@pytest.mark.parametrize(
    ("capacity", "given", "why"),
    [
        ("4", policy(values="1"), "needs a default"),
        ("4", policy(low="1", step="1"), "needs a default"),
        ("4", policy("1", "2"), "the default 1, which is not one of"),
        ("4", policy("1", "1 1"), "do not ascend"),
        ("4", policy("1", "1 5"), "allows 5, more than the capacity of 4"),
        ("40", policy("1", "1 2 3 4 5 6 7 8 9 10 11"), "has 11 validValues, more than 10"),
        ("4", policy("1", "1", low="1"), "has both validValues and validRange"),
        ("4", policy("5", low="5"), "the minimum 5, which is not within 0 and the capacity of 4"),
        ("4", policy("1", low="-1"), "the minimum -1"),
        ("4", policy("2", low="2", step="2", high="1"), "the maximum 1"),
        ("4", policy("2", low="2", step="2", high="5"), "the maximum 5"),
        ("4", policy("1", low="2"), "the default 1, which is not 2 or more"),
        ("4", policy("5", low="2", high="4"), "the default 5, which is not 2 or more, up to 4"),
        ("4", policy("1", low="1", step="0"), "the step 0, which is not positive"),
        ("1", policy("1", low="1", step="1"), "the minimum 1 and the step 1, together more than the capacity of 1"),
        ("9", policy("3", low="2", step="2"), "the default 3, which is not a whole number of steps of 2 from 2"),
        ("9", policy("2", low="2", step="2", high="5"), "the maximum 5, which is not a whole number of steps"),
    ],
)
def test_a_policy_against_the_rules_is_refused_with_its_values(
    capacity: str, given: CapacityRequestPolicy, why: str
) -> None:
    assert why in "\n".join(policy_problems(Quantity(capacity), given))


@pytest.mark.parametrize(
    "given",
    [
        policy(),
        policy("1"),
        policy("1", low="1", step="1"),
        policy("4", low="0", step="2", high="8"),
        policy("1500m", low="500m", step="500m"),
        policy("1Ki", "1 1024 2Ki"),
        policy("2Mi", low="0"),
    ],
)
def test_a_policy_within_the_rules_is_accepted(given: CapacityRequestPolicy) -> None:
    assert list(policy_problems(Quantity("1Mi"), given)) == []
