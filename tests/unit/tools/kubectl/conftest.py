"""The node and the cluster that the tests in this folder use."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.apiserver import ApiServer
from tests.fakes.doctor import FakeNode
from tests.fakes.pods import PodCluster


@pytest.fixture
def cluster() -> Iterator[PodCluster]:
    with ApiServer() as api:
        yield PodCluster(api)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    # pytest's own folders have names that are too long for a socket path.
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="d") as folder:
        yield FakeNode(Path(folder), stack)
