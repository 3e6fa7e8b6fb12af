"""The CPU driver from the framework's side: a machine's files in, devices and grants out; PCIe roots as in A.16."""

from pathlib import Path
from typing import Any

import pytest

from dranode.api.errors import UsageError
from dranode.api.resource import DeviceAttribute
from dranode.cdi.spec import CDIDevice, ContainerEdits, Spec
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin, plugin
from dranode.cpu.sysfs import read_pcie_roots
from dranode.driver.claims.grant import Config
from dranode.driver.machine.folder import HostRoot
from dranode.driver.testing import check_plugin
from dranode.sim.machines.forms import open_machine
from tests.fakes.cpu import cpus
from tests.fakes.machine import machine

SERVER = "sockets=2,numa=2,l3=1,cores=2,threads=2"


def driver(**options: Any) -> CPUPlugin:
    made = plugin(open_machine(SERVER), options)
    assert isinstance(made, CPUPlugin)
    return made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_by": "socket"},
        {"device_mode": "individual"},
        {"reserved_cpus": "0,8", "threads": "full-core", "compat_attributes": True, "node_allocatable_mapping": True},
    ],
)
def test_the_driver_keeps_the_contract_in_every_mode_that_picks(options: dict[str, Any], tmp_path: Path) -> None:
    own = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "sharing": "pod"}
    check_plugin(driver(**options), tmp_path, [own])


def test_the_options_of_other_drivers_are_ignored() -> None:
    assert driver(gpu_sharing="shared", node_name="n").options == CPUOptions(keep_shared=True)


def test_reserved_cpus_that_do_not_exist_are_refused_when_the_machine_is_read() -> None:
    with pytest.raises(UsageError, match="names CPUs that this machine does not have: 99"):
        driver(reserved_cpus="99").discover()


def test_a_configuration_is_decoded_with_its_path() -> None:
    assert driver().parse_config(Config("FromClaim", {"cpuset": "1,0"}, "config[0]")).cpuset == "0-1"


def test_a_spec_of_another_kind_recovers_nothing() -> None:
    device = CDIDevice(name="claim-u", container_edits=ContainerEdits(env=("DRA_CPUSET_u=0-1",)))
    ours = Spec(cdi_version="0.8.0", kind="dra.k8s.io/cpu", devices=(device,))
    got = driver().recover("u", ours)
    assert got is not None
    assert got.held == cpus("0-1")
    assert driver().recover("u", Spec(cdi_version="0.8.0", kind="dra.cpu/metadata", devices=(device,))) is None


ROOTS = {
    "sys/devices/pci0000:00/pci_bus/0000:00/cpulistaffinity": "0-7\n",
    "sys/devices/pciaabb:ff/pci_bus/aabb:ff/cpulistaffinity": "8-15\n",
    **{
        f"sys/devices/{name}/pci_bus/x/cpulistaffinity": "0"
        for name in ("pci0000:0", "pci0000:000", "pci000000", "pciAABB:FF", "pci000g:00", "pci0000:0z", "pci_bus")
    },
    "sys/devices/0000:00:1f.0/x": "",
}


def test_pcie_roots_are_found_by_name_with_their_local_cpus() -> None:
    assert read_pcie_roots(machine(ROOTS)) == ({"pci0000:00": cpus("0-7"), "pciaabb:ff": cpus("8-15")}, ())


def test_older_kernels_report_the_cpus_as_a_mask_only() -> None:
    files = {"sys/devices/pci0000:00/pci_bus/0000:00/cpuaffinity": "1,0000000f\n"}
    assert read_pcie_roots(machine(files)) == ({"pci0000:00": cpus("0-3,32")}, ())


def test_a_machine_without_roots_has_none() -> None:
    assert read_pcie_roots(machine({"sys/devices/system/cpu/online": "0"})) == ({}, ())
    assert read_pcie_roots(machine({"proc/x": ""})) == ({}, ())


def test_an_unreadable_root_is_named_and_the_others_are_read() -> None:
    files = {**ROOTS, "sys/devices/pci0001:0c/x": "", "sys/devices/pci0002:00/pci_bus/0002:00/cpulistaffinity": "a-b"}
    roots, warnings = read_pcie_roots(machine(files))
    assert set(roots) == {"pci0000:00", "pciaabb:ff"}
    assert [warning.split(" is not published: ")[0] for warning in warnings] == [
        "PCIe root pci0001:0c",
        "PCIe root pci0002:00",
    ]
    assert '"a-b" in the cpu-list' in warnings[1]


def test_roots_are_published_only_on_demand() -> None:
    files = {
        **ROOTS,
        "sys/devices/system/cpu/online": "0-15",
        "sys/devices/system/node/node0/cpulist": "0-7",
        "sys/devices/system/node/node1/cpulist": "8-15",
    }
    name = "resource.kubernetes.io/pcieRoot"
    shown = CPUPlugin(machine(files), CPUOptions(expose_pcie_roots=True)).discover().devices
    assert [device.attributes[name] for device in shown] == [
        DeviceAttribute(strings=("pci0000:00",)),
        DeviceAttribute(strings=("pciaabb:ff",)),
    ]
    assert all(name not in device.attributes for device in CPUPlugin(machine(files), CPUOptions()).discover().devices)


@pytest.mark.parametrize(("isolation", "warned"), [("quiet", True), ("cpuset", False)])
def test_a_host_root_without_the_nodes_files_is_reported_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, isolation: str, *, warned: bool
) -> None:
    plugin(HostRoot(), {"max_isolation": isolation, "host_root": str(tmp_path)})
    assert ("claims with isolation beyond cpuset will be refused; set --cpu-host-root" in caplog.text) is warned
    assert (f"root={tmp_path}: there is no proc/irq" in caplog.text) is warned
    (tmp_path / "proc" / "irq").mkdir(parents=True)
    caplog.clear()
    plugin(HostRoot(), {"max_isolation": isolation, "host_root": str(tmp_path)})
    assert not caplog.text
