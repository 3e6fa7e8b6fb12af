"""Quantities and cpu-lists, which stand in everything."""

import contextlib

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.api.cpuset import CPUSet
    from dranode.api.quantity import Quantity


def test_one_input(data: bytes) -> None:
    """Return what is written again is read as the same."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        quantity = Quantity(text)
        assert quantity == Quantity(str(quantity))
    with contextlib.suppress(ValueError):
        cpus = CPUSet.parse(text)
        assert CPUSet.parse(str(cpus)) == cpus


if __name__ == "__main__":
    fuzz(test_one_input)
