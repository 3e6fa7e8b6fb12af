"""Modules that are put off: not there until they are touched, whole when they are; each in a Python of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

_DEFER = "import sys; from dranode.driver.process.deferred import defer_untouched; defer_untouched()\n"


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", _DEFER + code], capture_output=True, text=True, check=False)
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
