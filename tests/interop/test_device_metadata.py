"""Device metadata as Kubernetes' own Go package of each release reads it: `make interop-allocator`."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from dranode.api.resource import DeviceAttribute
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.metadata import device_metadata
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record
from tests.interop.cache import CACHE

pytestmark = pytest.mark.interop

SOURCE: Final = Path(__file__).with_name("metadata") / "main.go"
# The first release with the package, the last that reads only v1alpha1, and those that read v1beta1.
VERSIONS: Final = ("v0.36.0", "v0.36.6", "v0.37.0", "v0.37.2", "v0.38.0-alpha.0")


def reader(version: str) -> Path:
    """Return a program that reads metadata with the package of a release; it is built once."""
    folder = CACHE / "metadata" / version
    program = folder / "metadata"
    if program.exists() and program.stat().st_mtime > SOURCE.stat().st_mtime:
        return program
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, folder)
    (folder / "go.mod").write_text(
        f"module metadata\n\ngo 1.24\n\nrequire k8s.io/dynamic-resource-allocation {version}\n"
    )
    command = ["go", "build", "-mod=mod", "-o", str(program), "."]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "GOFLAGS": "-mod=mod"})
    return program


@pytest.mark.skipif("ALLOCATOR_SCENARIOS" not in os.environ, reason="make interop-allocator builds Go programs")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_go_package_of_each_release_reads_what_is_written(version: str) -> None:
    cpus = {"dra.cpu/cpuset": DeviceAttribute(string="0-3"), "dra.cpu/nodes": DeviceAttribute(ints=(0, 1))}
    grants = (Grant(request="cpus/big", pool="node", device="cpudevnuma000", attributes=cpus),)
    record = Record(uid="u", namespace="ns", name="c", grants=grants, pod_claim_name="mine")
    (file,) = device_metadata("dra.cpu", "/data", record, Inventory(()))
    done = subprocess.run([str(reader(version))], input=file.text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"u cpus/big cpudevnuma000 0-3\n", b"")
