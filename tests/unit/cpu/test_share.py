"""The sentence about who holds the CPUs that a claim needs."""

import pytest

from dranode.cpu.grouped import named_holders
from tests.fakes.cpu import cpus, holding

FOUR = "0 held by default/c0 and 1 by default/c1 and 2 by default/c2 and 3 by default/c3"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        (0, ""),
        (1, "0 held by default/c0"),
        (4, FOUR),
        (5, f"{FOUR} and more by 1 other claim"),
        (6, f"{FOUR} and more by 2 other claims"),
    ],
)
def test_four_holders_are_named_and_the_others_are_counted(claims: int, said: str) -> None:
    held = holding(**{f"c{number}": str(number) for number in range(claims)})
    assert named_holders(held, cpus("0-15")) == said
