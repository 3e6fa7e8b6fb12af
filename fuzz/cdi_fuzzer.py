"""A CDI spec of anybody's: the verdict of the reference loader, whatever the file says."""

import contextlib

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.cdi.document import load_spec
    from dranode.cdi.errors import CDIError
    from dranode.cdi.rules import validate


def test_one_input(data: bytes) -> None:
    """A verdict, never an exception; what is good loads."""
    verdict = validate(data)
    loaded = None
    with contextlib.suppress(CDIError):
        loaded = load_spec(data)
    assert not verdict.ok or loaded is not None


if __name__ == "__main__":
    fuzz(test_one_input)
