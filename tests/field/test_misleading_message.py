"""Bug reports of messages that led to the wrong place."""

from pathlib import Path

import pytest

from dranode.cdi.document import load_spec
from dranode.cdi.errors import CDIError
from dranode.cpu.sysfs import read_topology
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.server import Credentials
from tests.fakes.apiserver import Fault, api_server
from tests.fakes.machine import CPU, cpu_files, machine


def test_a_web_page_instead_of_an_answer_is_shown(tmp_path: Path) -> None:
    """Where the address is not the API server's, a login page or a load balancer's page comes with status 200."""
    with api_server() as api:
        api.faults.append(Fault(path="/api/v1/nodes/node", status=200, body="<html>Sign in</html>"))
        client = Client(Connection(Credentials(api.kubeconfig(tmp_path / "kubeconfig"))))
        with pytest.raises(
            ApiError, match=r"begins with b'<html>Sign in</html>'; check that the address is that of an API server"
        ):
            client.send(APIRequest("GET", "/api/v1/nodes/node", "get nodes"))


def test_a_list_of_online_cpus_that_lxcfs_replaced_is_named_as_the_cause() -> None:
    """lxcfs numbers a container's CPUs from 0, whichever CPUs its cgroup allows."""
    files = {f"{CPU}/online": "0", f"{CPU}/present": "0-3"}
    for cpu in range(4):
        files |= cpu_files(cpu, core_cpus_list=str(cpu), physical_package_id="0")
    assert read_topology(machine(files)).warnings == ()
    pods = {"cpuset.cpus.effective": "2", "cpuset.mems.effective": "0"}
    files |= {f"sys/fs/cgroup/kubepods/{name}": text for name, text in pods.items()}
    (warning,) = read_topology(machine(files)).warnings
    assert "/sys/fs/cgroup/kubepods lets pods run on CPUs 2" in warning
    assert "lxcfs" in warning


@pytest.mark.parametrize("field", ["enableCMT", "enableMBM"])
def test_a_field_that_the_cdi_specification_removed_is_reported_as_removed(field: str) -> None:
    """The text of 0.7.0 to 1.0.0 allows it, and every newer library refuses it."""
    edits = f'{{"intelRdt": {{"closID": "a", "{field}": false}}}}'
    device = f'{{"name": "a", "containerEdits": {edits}}}'
    text = f'{{"cdiVersion": "0.7.0", "kind": "vendor.com/class", "devices": [{device}]}}'
    with pytest.raises(CDIError, match=rf"{field}: was removed in CDI 1.1.0, and is refused whatever cdiVersion says"):
        load_spec(text.encode())
