"""Fixtures of the cluster tests: our image, and a cluster that can run it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.cluster import DRIVER_IMAGE, Cluster
from tests.interop.cluster_rows import ROWS, running
from tests.interop.engine import ROOT, base_image, build, buildah


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return our image as an archive."""
    tag = "localhost/dranode-test"
    build(ROOT, tag, "--build-arg", f"BASE={base_image()}")
    path = tmp_path_factory.mktemp("image") / "driver.tar"
    buildah("push", "--quiet", tag, f"oci-archive:{path}:{DRIVER_IMAGE}")
    return path


@pytest.fixture(params=ROWS or ["none/none"])
def cluster(request: pytest.FixtureRequest, archive: Path) -> Iterator[Cluster]:
    """Yield a cluster of each row, without the driver."""
    with running(request.param, archive) as made:
        yield made
