"""The node and the cluster that the tests in these folders use."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.apiserver import ApiServer
from tests.fakes.doctor import FakeNode
from tests.fakes.pods import PodCluster, explained


@pytest.fixture
def cluster() -> Iterator[PodCluster]:
    with ApiServer() as api:
        yield PodCluster(api)


@pytest.fixture
def explain(cluster: PodCluster, tmp_path: Path) -> Callable[..., Any]:
    return partial(explained, cluster, tmp_path)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    # pytest's own folders have names that are too long for a socket path.
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="d") as folder:
        yield FakeNode(Path(folder), stack)
