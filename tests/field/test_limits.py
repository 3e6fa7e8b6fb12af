"""Bug reports of missing or unexpected limits."""

import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.exec_credentials import ExecCredentials
from dranode.driver.kube.kubeconfig_file import ConfigExec
from dranode.driver.kube.server import Credentials, UnreachableError
from tests.fakes.apiserver import Fault, api_server
from tests.fakes.waiting import PATIENCE


def test_a_hanging_credential_program_delays_a_driver_for_one_limited_run_only(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho run >>{tmp_path}/runs\nsleep 3600\n")
    program.chmod(0o755)
    hanging = ConfigExec(command=str(program), api_version="client.authentication.k8s.io/v1", interactive_mode="Never")
    credentials = ExecCredentials(hanging, {}, seconds=2.0)

    def ask(number: int) -> None:
        del number
        with pytest.raises(UnreachableError, match="it took more than 2 s"):
            credentials.headers()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_server_that_answers_after_seven_seconds_is_not_taken_for_unreachable(tmp_path: Path) -> None:
    with api_server() as api:
        api.put("nodes", {"metadata": {"name": "node", "uid": "node-uid"}})
        api.faults.append(Fault(seconds=7.0, times=99))
        source = Credentials(api.kubeconfig(tmp_path / "kubeconfig"))
        driver = Client(Connection(source, retries=True), retries=True)
        request = APIRequest("GET", "/api/v1/nodes/node", "get nodes")
        assert driver.send(request)["metadata"]["name"] == "node"


def test_a_too_low_limit_on_open_files_is_reported_in_one_sentence(tmp_path: Path) -> None:
    """With few descriptors gRPC aborts the process without a message, and Python with a traceback."""
    program = Path(sys.executable).with_name("dranode")
    options = [f"--{name}={tmp_path / name}" for name in ("store", "kubelet-root", "cdi-dir")]
    command = [str(program), "serve", "--machine=cores=4", "--node-name=node", *options]
    limited = f"ulimit -n 16; exec {shlex.join(command)}"
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("dranode: this process may open 16 files and needs 128; raise RLIMIT_NOFILE")
    assert done.stderr.count("\n") == 1
