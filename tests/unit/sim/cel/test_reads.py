"""Which attributes an expression reads."""

import pytest

from dranode.sim.cel.declarations import KnownToCEL
from dranode.sim.cel.expression import attributes_read

KNOWN = KnownToCEL()
X = ("a.example.com", "x")


@pytest.mark.parametrize(
    ("expression", "read"),
    [
        ('device.attributes["a.example.com"].x == 1', {X}),
        ('device.attributes["a.example.com"]["x"] == 1', {X}),
        ('has(device.attributes["a.example.com"].x)', {X}),
        ('"x" in device.attributes["a.example.com"]', {X}),
        ('device.attributes["a.example.com"].?x.orValue(1) == 1', {X}),
        ('device["attributes"]["a.example.com"].x == 1', {X}),
        ('device.driver == "d" && device.attributes["a.example.com"].x.y == 1', {X}),
        ('device.capacity["a.example.com"].memory.compareTo(quantity("1Gi")) > 0', set()),
        ("device.allowMultipleAllocations", set()),
        ("true", set()),
        ("not an expression", set()),
        # Not by a constant name, so any attribute may be read.
        ('size(device.attributes["a.example.com"]) == 1', None),
        ('"a.example.com" in device.attributes', None),
        ('device.attributes["a.example.com"].exists(name, name == "x")', None),
        ('cel.bind(d, device.attributes["a.example.com"], d.x == 1)', None),
        ("device.attributes[device.driver].x == 1", None),
        ('device.attributes["a.example.com"][device.driver] == 1', None),
        ("[device].size() == 1", None),
        ('device[device.driver]["a.example.com"] == 1', None),
    ],
)
def test_attributes_are_known_if_their_names_are_constant(expression: str, read: set[tuple[str, str]] | None) -> None:
    assert attributes_read(expression, KNOWN) == (None if read is None else frozenset(read))
