"""For all tests: an example takes as long as the machine takes; no test fails on a clock."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from dranode.driver.machine.guard import release_host

settings.register_profile("dranode", deadline=None)
settings.load_profile("dranode")


@pytest.fixture(autouse=True)
def _own_machine() -> Iterator[None]:
    """A command that was tried on a made-up machine guards the host for the life of its process, which is ours."""
    yield
    release_host()
