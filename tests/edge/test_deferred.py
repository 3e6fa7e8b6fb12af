"""Modules that are put off: not there until they are touched, whole when they are; each in a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_DEFER = "import sys; from dranode.driver.process.deferred import defer_untouched; defer_untouched()\n"


def printed(code: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", _DEFER + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_serve_leaves_them_alone() -> None:
    code = """
from dranode.driver.cli import serve
import dranode.driver.serve.service, dranode.driver.kube.cluster, dranode.driver.local.store
import dranode.driver.kubelet.podresources, dranode.driver.kubelet.service, dranode.driver.serve.pinning
from dranode.driver.plugins import load_plugins
load_plugins(["cpu"], None, {})
import logging
from dranode.driver.process import logs
logs.set_up("text", 0)
logging.warning("Python 3.12 and newer ask which task logs")
inside = ("asyncio.events", "grpc.aio._server", "google.protobuf.text_format", "email.message", "grpc")
print(*(name for name in inside if name in sys.modules))
"""
    assert printed(code) == ""


def test_a_driver_listens_before_it_loads_what_decides() -> None:
    """In the order of use: kubelet's first question is answered without what reads archives, protobuf and claims."""
    code = """
from dranode.driver.cli import serve
from dranode.driver.plugins import load_plugins
from dranode.driver.process.malloc import stay_small
load_plugins(["cpu"], None, {})
stay_small()
late = ("dranode.driver.core.claims.grant", "dranode.driver.core.claims.health", "dranode.driver.node", "dranode.cdi")
late = (*late, "google.protobuf.descriptor", "sqlite3", "ssl", "bz2", "lzma", "ctypes", "_hashlib", "email.message")
print(*(name for name in late if name in sys.modules))
"""
    assert printed(code, MALLOC_ARENA_MAX="1", MALLOC_TRIM_THRESHOLD_="131072") == ""


def test_the_allocator_is_set_where_the_environment_has_not_done_it() -> None:
    code = "from dranode.driver.process.malloc import stay_small\nstay_small()\nprint('ctypes' in sys.modules)"
    assert printed(code, MALLOC_ARENA_MAX="1") == "True"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import asyncio, grpc\nasync def five(): return 5\nprint(asyncio.run(five()))", "5"),
        ("import grpc\nfrom asyncio import subprocess\nprint(subprocess.PIPE)", "-1"),
        ("import grpc\nprint(grpc.aio.Server.__name__, grpc.aio.UsageError.__name__)", "Server UsageError"),
        ("from google.protobuf.internal import python_message as it\nprint(it.enum_type_wrapper is not None)", "True"),
        ("import tempfile, ipaddress\nprint(len(tempfile.mkdtemp()) > 0, ipaddress.ip_address('::1'))", "True ::1"),
        ("from importlib.metadata import metadata\nprint(metadata('grpcio')['Name'])", "grpcio"),
    ],
)
def test_code_that_touches_one_notices_nothing(code: str, shown: str) -> None:
    assert printed(code) == shown
