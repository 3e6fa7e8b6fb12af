"""Modules that are put off: not there until they are touched, whole when they are; each in a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_DEFER = "import sys; from dranode.driver.process.deferred import defer_untouched; defer_untouched()\n"
_GROUP = """| ExceptionGroup:  (1 sub-exception)
  +-+---------------- 1 ----------------
    | KeyError
    +------------------------------------"""


def printed(code: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", _DEFER + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_threads_that_touch_at_once_what_is_loaded_in_part_all_get_it_whole() -> None:
    code = """
import hashlib, msgspec, threading
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)
found = []
def touch():
    barrier.wait()
    hashed = hashlib.blake2b(b"a").name
    found.append((msgspec.inspect.StructType, type(msgspec.inspect.type_info(int)) is msgspec.inspect.IntType, hashed))
threads = [threading.Thread(target=touch) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print(len(found), len(set(found)), *found[0][1:])
"""
    assert printed(code) == "8 1 True blake2b"


def test_an_api_server_by_an_ascii_name_is_reached_without_what_international_names_need() -> None:
    code = """
import socket
from dranode.driver.kube.server import Server, tls_context
listener = socket.create_server(("127.0.0.1", 0))
server = Server(f"https://localhost:{listener.getsockname()[1]}", dict, tls_context(None, verify=False))
listener.settimeout(5)
import threading
threading.Thread(target=lambda: listener.accept()[0].close()).start()
try:
    server.connect(5)
except OSError:
    print("encodings.idna" in sys.modules)
"""
    assert printed(code) == "False"


def test_msgspec_does_without_what_brings_half_of_pythons_own_tools() -> None:
    code = """
import msgspec, msgspec.inspect
from typing import Annotated, NotRequired, TypedDict
class Lamp(TypedDict):
    name: str
    watts: NotRequired[Annotated[int, msgspec.Meta(gt=0)]]
print(msgspec.json.decode(b'{"name": "a", "watts": 3}', type=Lamp))
print(*(name for name in ("typing_extensions", "inspect", "dataclasses") if name in sys.modules), sep="")
import typing_extensions
print(typing_extensions.TypedDict is not None)
"""
    assert printed(code) == "{'name': 'a', 'watts': 3}\n\nTrue"


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
        (
            "from datetime import *\nimport datetime as it\nprint(datetime.fromtimestamp(0, UTC).tzinfo, it.MAXYEAR)",
            "UTC 9999",
        ),
        ("import datetime, pickle\nprint(pickle.loads(pickle.dumps(datetime.date(2026, 1, 2))))", "2026-01-02"),
        (
            "import msgspec\nprint(msgspec.inspect.type_info(int), msgspec.json.schema(int))",
            "IntType(gt=None, ge=None, lt=None, le=None, multiple_of=None) {'type': 'integer'}",
        ),
        ("import uuid, platform\nprint(platform.system(), platform.python_implementation())", "Linux CPython"),
        ("import uuid\nfrom platform import python_implementation\nprint(python_implementation())", "CPython"),
        ("import calendar, textwrap\nprint(calendar.timegm((1970, 1, 2, 0, 0, 0)), textwrap.dedent('  a'))", "86400 a"),
        ("import traceback\ntraceback.print_exception(ExceptionGroup('', [KeyError()]), file=sys.stdout)", _GROUP),
    ],
)
def test_code_that_touches_one_notices_nothing(code: str, shown: str) -> None:
    assert printed(code) == shown
