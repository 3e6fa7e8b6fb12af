"""Many threads decode every type for the first time at once."""

import subprocess
import sys

import pytest

# Switch threads as often as possible, after a barrier: without a lock this crashes almost every time.
_RACE = """
import sys, threading
from msgspec import ValidationError, convert
from importlib import import_module
from dranode.api.documents import decode
from dranode.api.errors import DocumentError
module, *names = sys.argv[1:]
kinds = [getattr(import_module(module), name) for name in names]
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)
document = {"metadata": {"name": "a"}, "spec": {}, "status": {}, "uid": "a", "grants": [{}]}
def first(kind):
    barrier.wait()
    for _ in range(50):
        try:
            convert(document, kind) if module == "dranode.cdi.spec" else decode(kind, document)
        except (ValidationError, DocumentError):
            pass
threads = [threading.Thread(target=first, args=(kinds[number % len(kinds)],)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize(
    ("module", "kinds"),
    [
        ("api.resource", "ResourceSlice"),
        ("api.resource", "ResourceClaim"),
        ("api.resource", "ResourceClaim ResourceClaimTemplate Pod Node DeviceClass"),
        ("driver.claims.record", "Record"),
        ("cdi.spec", "Spec"),
        ("cpu.config", "CPUConfig"),
        ("cpu.treatment", "Treatment"),
        ("gpu.config", "GPUConfig"),
        ("gpu.grants", "Intent"),
    ],
)
def test_threads_may_decode_a_type_for_the_first_time_concurrently(module: str, kinds: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RACE, f"dranode.{module}", *kinds.split()], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
