"""A CEL selector of somebody's DeviceClass."""

import contextlib

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.api.errors import DranodeError
    from dranode.api.resource import Device, DeviceAttribute
    from dranode.sim.cel.expression import compile_selector

DEVICE = Device(
    name="gpu-0",
    attributes={
        "model": DeviceAttribute(string="a"),
        "slots": DeviceAttribute(int_=4),
        "whole": DeviceAttribute(bool_=True),
    },
)
_LONGEST = 400


def test_one_input(data: bytes) -> None:
    """Compile it, and ask it about a device."""
    text = data[:_LONGEST].decode("utf-8", "replace")
    with contextlib.suppress(DranodeError):
        compile_selector(text).matches("gpu.example.com", DEVICE)


if __name__ == "__main__":
    fuzz(test_one_input)
