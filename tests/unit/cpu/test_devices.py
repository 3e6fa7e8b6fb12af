"""The devices of every mode; rows of A.15, adapted to devices that are named by CPU id."""

import json
from collections import Counter
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.documents import encode_json
from dranode.api.errors import UsageError
from dranode.cpu.devices import cpu_devices, individual_cpus, left_out
from dranode.cpu.options import CPUOptions, DeviceMode, GroupBy, Isolation, Threads, check_reserved, read_options
from dranode.cpu.topology import Topology
from dranode.driver.claims.plugin import Inventory
from dranode.driver.slices.desired import desired_slices
from dranode.driver.slices.publishable import publishable
from tests.fakes.cpu import MACHINES, cpus, typed
from tests.fakes.slices import slice_problems
from tests.fakes.topology import regular, topology

# Two sockets with one NUMA node each, four cores with two threads: the example of the reference sheet, 2.3.
EXAMPLE = regular(sockets=2, numa=1, l3=1, cores=4, threads=2)
INDIVIDUAL = CPUOptions(mode=DeviceMode.INDIVIDUAL)
# What is published about the second core of EXAMPLE, and about its first thread.
SECOND_CORE = {
    "resource.kubernetes.io/numaNode": {"int": 0},
    "dra.cpu/socketID": {"int": 0},
    "dra.cpu/cpuID": {"int": 1},
    "dra.cpu/coreID": {"int": 1},
    "dra.cpu/cacheL3ID": {"int": 0},
    "dra.cpu/coreType": {"string": "standard"},
    "dra.cpu/smtEnabled": {"bool": True},
}
RANGE = {"default": "1", "validRange": {"min": "1", "step": "1"}}


def published(machine: Topology, options: CPUOptions, roots: dict[str, CPUSet] | None = None) -> list[Any]:
    made: list[Any] = json.loads(encode_json(cpu_devices(machine, options, roots or {})))
    return made


def names(machine: Topology, options: CPUOptions) -> list[str]:
    return [device.name for device in cpu_devices(machine, options, {})]


def test_a_numa_group_is_the_reference_device_with_a_request_policy() -> None:
    roots = {"pci0000:17": cpus("0-3,8-11"), "pci0000:00": cpus("0-3,8-11"), "pci0000:80": cpus("4-7,12-15")}
    options = CPUOptions(reserved=cpus("0,8"), compat_attributes=True, node_allocatable_mapping=True)
    first, second = published(EXAMPLE, options, roots)
    assert first == {
        "name": "cpudevnuma000",
        "allowMultipleAllocations": True,
        "attributes": {
            "resource.kubernetes.io/numaNode": {"int": 0},
            "dra.cpu/numaNodeID": {"int": 0},
            "dra.net/numaNode": {"int": 0},
            "dra.cpu/socketID": {"int": 0},
            "dra.cpu/smtEnabled": {"bool": True},
            "dra.cpu/numCPUs": {"int": 6},
            "resource.kubernetes.io/pcieRoot": {"strings": ["pci0000:00", "pci0000:17"]},
        },
        "capacity": {"dra.cpu/cpu": {"value": "6", "requestPolicy": RANGE}},
        "nodeAllocatableResources": {"cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}},
    }
    assert (second["name"], second["capacity"]["dra.cpu/cpu"]["value"]) == ("cpudevnuma001", "8")


def test_a_socket_group_publishes_its_socket() -> None:
    first, _ = published(EXAMPLE, CPUOptions(group_by=GroupBy.SOCKET, reserved=cpus("0,8")))
    assert first == {
        "name": "cpudevsocket000",
        "allowMultipleAllocations": True,
        "attributes": {
            "dra.cpu/socketID": {"int": 0},
            "dra.cpu/numCPUs": {"int": 6},
            "dra.cpu/smtEnabled": {"bool": True},
        },
        "capacity": {"dra.cpu/cpu": {"value": "6", "requestPolicy": RANGE}},
    }


def test_the_machine_is_one_group() -> None:
    (one,) = published(EXAMPLE, CPUOptions(group_by=GroupBy.MACHINE, reserved=cpus("0,8")))
    assert one["name"] == "cpudevmachine"
    assert one["attributes"] == {"dra.cpu/numCPUs": {"int": 14}, "dra.cpu/smtEnabled": {"bool": True}}
    assert one["capacity"]["dra.cpu/cpu"]["value"] == "14"


def test_an_individual_device_is_named_after_its_cpu() -> None:
    options = CPUOptions(mode=DeviceMode.INDIVIDUAL, reserved=cpus("0,8"), node_allocatable_mapping=True)
    first, second, *rest = published(EXAMPLE, options)
    assert first == {
        "name": "cpu001",
        "attributes": SECOND_CORE,
        "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}},
    }
    assert second["name"] == "cpu009"
    assert len(rest) == 12


def test_siblings_are_adjacent_and_names_do_not_shift() -> None:
    assert names(MACHINES["M1"], INDIVIDUAL) == ["cpu000", "cpu002", "cpu001", "cpu003"]
    reserved = CPUOptions(mode=DeviceMode.INDIVIDUAL, reserved=cpus("0"))
    assert names(MACHINES["M1"], reserved) == ["cpu002", "cpu001", "cpu003"]
    four_way = regular(sockets=1, numa=1, l3=1, cores=2, threads=4)
    assert names(four_way, INDIVIDUAL)[:5] == ["cpu000", "cpu002", "cpu004", "cpu006", "cpu001"]


def of_the_kernel(device: dict[str, Any]) -> tuple[bool, ...]:
    return tuple(device["attributes"][f"dra.cpu/{name}"]["bool"] for name in ("isolated", "nohzFull"))


def test_with_whole_cores_an_individual_device_is_a_core() -> None:
    options = INDIVIDUAL._replace(threads=Threads.FULL_CORE, reserved=cpus("8"), node_allocatable_mapping=True)
    machine = replace(EXAMPLE, isolated=cpus("2,10-11"), nohz_full=cpus("2-3,10-11"))
    first, second, third, *rest = published(machine, options)
    assert first == {
        "name": "core001",
        "attributes": {
            **SECOND_CORE,
            "dra.cpu/numCPUs": {"int": 2},
            "dra.cpu/isolated": {"bool": False},
            "dra.cpu/nohzFull": {"bool": False},
        },
        "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "2"}}},
    }
    assert [(one["name"], *of_the_kernel(one)) for one in (second, third)] == [
        ("core002", True, True),
        ("core003", False, True),
    ]
    assert len(rest) == 4


@pytest.mark.parametrize(
    ("machine", "reserved", "roots", "slices", "per_numa"),
    [
        ("M1", "", False, 1, {0: 4}),
        ("M4", "0", False, 1, {0: 3, 1: 4}),
        ("M2", "", False, 1, {0: 4}),
        ("M3", "", False, 1, {0: 4}),
        ("M4", "", False, 1, {0: 4, 1: 4}),
        ("M7", "", False, 2, {0: 120, 1: 120}),
        ("M7", "", True, 4, {0: 120, 1: 120}),
        ("M6", "", False, 2, {0: 69, 1: 69}),
        ("M5", "", False, 1, {0: 64, 1: 64}),
        ("M1", "0-1", False, 1, {0: 2}),
        ("M1", "0-3", False, 1, {}),
    ],
)
def test_the_number_of_slices_is_as_published(
    machine: str, reserved: str, *, roots: bool, slices: int, per_numa: dict[int, int]
) -> None:
    options = CPUOptions(mode=DeviceMode.INDIVIDUAL, reserved=cpus(reserved))
    near = {"pci0000:00": MACHINES[machine].online} if roots else {}
    made = cpu_devices(MACHINES[machine], options, near)
    specs = desired_slices("dra.cpu", "worker1", Inventory(devices=made))
    assert len(specs) == slices
    nodes = Counter(device.attributes["resource.kubernetes.io/numaNode"].int_ for device in made)
    assert nodes == per_numa


@pytest.mark.parametrize(
    ("reserved", "threads", "capacity"),
    [
        ("0-1", Threads.ANY, {"value": "6", "requestPolicy": RANGE}),
        ("0-5", Threads.ANY, {"value": "2", "requestPolicy": RANGE}),
        ("0-6", Threads.ANY, {"value": "1", "requestPolicy": {"default": "1", "validValues": ["1"]}}),
        (
            "0,4",
            Threads.FULL_CORE,
            {"value": "6", "requestPolicy": {"default": "2", "validRange": {"min": "2", "step": "2"}}},
        ),
        (
            "0-1,4-5",
            Threads.FULL_CORE,
            {"value": "4", "requestPolicy": {"default": "2", "validRange": {"min": "2", "step": "2"}}},
        ),
        ("0-2,4-6", Threads.FULL_CORE, {"value": "2", "requestPolicy": {"default": "2", "validValues": ["2"]}}),
    ],
)
def test_a_capacity_has_a_request_policy(reserved: str, threads: Threads, capacity: Any) -> None:
    machine = regular(sockets=1, numa=1, l3=1, cores=4, threads=2)
    (one,) = published(machine, CPUOptions(reserved=cpus(reserved), threads=threads))
    assert one["capacity"] == {"dra.cpu/cpu": capacity}


def test_a_group_without_cpus_is_not_a_device() -> None:
    assert names(EXAMPLE, CPUOptions(reserved=cpus("0-3,8-11"))) == ["cpudevnuma001"]


def test_a_half_reserved_core_is_not_published_if_cores_are_whole() -> None:
    options = CPUOptions(reserved=cpus("0"), threads=Threads.FULL_CORE)
    first, _ = published(EXAMPLE, options)
    assert first["capacity"]["dra.cpu/cpu"]["value"] == "6"
    assert left_out(EXAMPLE, options) == (
        "CPUs 8 share a core with reserved CPUs, so with --threads full-core no claim gets them",
    )


def test_with_cores_of_unequal_size_the_request_step_is_the_largest_core() -> None:
    hybrid = topology({0: (0, 0, 0, 0), 1: (0, 0, 0, 0), 2: (1, 0, 0, 0), 3: (2, 0, 0, 0), 4: (3, 0, 0, 0)})
    (one,) = published(hybrid, CPUOptions(threads=Threads.FULL_CORE))
    capacity = one["capacity"]["dra.cpu/cpu"]
    # The fifth CPU would be half a request.
    assert capacity["value"] == "4"
    assert capacity["requestPolicy"] == {"default": "2", "validRange": {"min": "2", "step": "2"}}


def test_cores_of_incompatible_sizes_are_requested_by_the_cpu() -> None:
    odd = topology({cpu: (cpu // 3, 0, 0, 0) for cpu in range(5)})
    (one,) = published(odd, CPUOptions(threads=Threads.FULL_CORE))
    assert one["capacity"]["dra.cpu/cpu"]["requestPolicy"] == RANGE


@pytest.mark.parametrize("mode", list(DeviceMode))
def test_one_cpu_is_kept_for_interrupts_if_claims_may_isolate_all_others(mode: DeviceMode) -> None:
    quiet = CPUOptions(mode=mode, max_isolation=Isolation.QUIET)
    assert (count(quiet), count(quiet._replace(reserved=cpus("0")))) == (15, 15)
    assert count(quiet._replace(max_isolation=Isolation.CPUSET)) == 16


def count(options: CPUOptions) -> int:
    """The number of published CPUs on a machine of 16."""
    devices = cpu_devices(regular(sockets=1, numa=2, l3=1, cores=4, threads=2), options, {})
    return sum(int(each.capacity["dra.cpu/cpu"].value.value) if each.capacity else 1 for each in devices)


def test_cpus_of_no_group_are_left_for_containers_without_claims() -> None:
    machine = topology({0: (0, 0, 0, 0), 1: (1, 0, 0, 0), 2: (2, 0, None, 0)})
    (one,) = published(machine, CPUOptions(keep_shared=True))
    assert one["capacity"]["dra.cpu/cpu"]["value"] == "2"


def test_a_node_that_spans_sockets_publishes_no_socket() -> None:
    spanning = topology({cpu: (cpu, cpu // 2, 0, 0) for cpu in range(4)})
    (one,) = published(spanning, CPUOptions())
    assert "dra.cpu/socketID" not in one["attributes"]


@pytest.mark.parametrize("group_by", [GroupBy.NUMANODE, GroupBy.SOCKET])
def test_a_machine_without_numa_and_package_information_is_one_group(group_by: GroupBy) -> None:
    untold = topology({cpu: (cpu, -1, None, None) for cpu in range(4)})
    (one,) = published(untold, CPUOptions(group_by=group_by))
    assert one["name"] in ("cpudevnuma000", "cpudevsocket000")
    assert set(one["attributes"]) == {"dra.cpu/smtEnabled", "dra.cpu/numCPUs"}


def test_unknown_attributes_of_an_individual_cpu_are_left_out() -> None:
    untold = topology({0: (-1, -1, None, None)})
    (one,) = published(untold, INDIVIDUAL)
    assert set(one["attributes"]) == {"dra.cpu/cpuID", "dra.cpu/cacheL3ID", "dra.cpu/coreType", "dra.cpu/smtEnabled"}
    assert one["attributes"]["dra.cpu/cacheL3ID"] == {"int": -1}


def test_cpus_outside_every_node_are_named() -> None:
    partly = topology({0: (0, 0, 0, 0), 1: (1, 0, None, 0)})
    assert names(partly, CPUOptions()) == ["cpudevnuma000"]
    assert left_out(partly, CPUOptions()) == ("CPUs 1 are in no device: the kernel reports no NUMA node for them",)


def test_core_types_are_published_for_groups_of_one_type() -> None:
    machine = typed(EXAMPLE, {cpu: "e-core" if cpu in (4, 5, 6, 7, 12, 13, 14, 15) else "p-core" for cpu in range(16)})
    first, second = published(machine, CPUOptions())
    assert first["attributes"]["dra.cpu/coreType"] == {"string": "p-core"}
    assert second["attributes"]["dra.cpu/coreType"] == {"string": "e-core"}
    (mixed,) = published(machine, CPUOptions(group_by=GroupBy.MACHINE))
    assert "dra.cpu/coreType" not in mixed["attributes"]


@pytest.mark.parametrize(
    ("field", "counted", "named"),
    [("isolated", "numIsolatedCPUs", "isolated"), ("nohz_full", "numNohzFullCPUs", "nohzFull")],
)
def test_isolated_and_tickless_cpus_are_published_if_there_are_any(field: str, counted: str, named: str) -> None:
    machine = replace(EXAMPLE, **{field: cpus("1,9")})
    assert [one["attributes"][f"dra.cpu/{counted}"]["int"] for one in published(machine, CPUOptions())] == [2, 0]
    single = [one["name"] for one in published(machine, INDIVIDUAL) if one["attributes"][f"dra.cpu/{named}"]["bool"]]
    assert single == ["cpu001", "cpu009"]


def test_a_core_is_isolated_only_if_all_its_threads_are() -> None:
    options = INDIVIDUAL._replace(threads=Threads.FULL_CORE)
    machine = replace(EXAMPLE, isolated=cpus("1,2,10"))
    isolated = {one["name"]: one["attributes"]["dra.cpu/isolated"]["bool"] for one in published(machine, options)}
    assert [name for name, whole in isolated.items() if whole] == ["core002"]


@pytest.mark.parametrize("name", ["cpudevnuma000", "cpu1", "cpu0001", "core1", "gpu001", "cpu001x", "xcpu001", ""])
def test_other_names_are_not_individual_cpus(name: str) -> None:
    assert individual_cpus(name, EXAMPLE) is None


@pytest.mark.parametrize(("name", "expected"), [("cpu009", "9"), ("core001", "1,9"), ("core077", "77")])
def test_an_individual_device_has_its_cpu_or_its_core(name: str, expected: str) -> None:
    assert individual_cpus(name, EXAMPLE) == cpus(expected)


@pytest.mark.parametrize(
    ("mode", "group_by", "threads", "machine"),
    [
        *product(
            DeviceMode,
            GroupBy,
            (Threads.ANY, Threads.FULL_CORE),
            (
                EXAMPLE,
                regular(sockets=1, numa=1, l3=1, cores=1, threads=1),
                regular(sockets=2, numa=4, l3=2, cores=4, threads=2),
                regular(sockets=1, numa=2, l3=1, cores=3, threads=4),
                topology({cpu: (cpu, -1, None, None) for cpu in range(3)}),
                topology({0: (0, 0, 3, 0), 1: (0, 0, 3, 0), 2: (1, 0, 9, 0)}),
                MACHINES["M7"],
            ),
        )
    ],
)
def test_every_mode_publishes_valid_devices(
    mode: DeviceMode, group_by: GroupBy, threads: Threads, machine: Topology
) -> None:
    roots = {f"pci0000:{index:02x}": machine.online for index in range(30)}
    options = CPUOptions(
        mode=mode, group_by=group_by, threads=threads, compat_attributes=True, node_allocatable_mapping=True
    )
    inventory = Inventory(devices=cpu_devices(machine, options, roots))
    assert publishable(inventory).warnings == ()
    for spec in desired_slices("dra.cpu", "worker1", inventory):
        assert slice_problems(spec) == []


def test_with_too_many_roots_only_the_attribute_is_left_out() -> None:
    roots = {f"pci0000:{index:02x}": EXAMPLE.online for index in range(60)}
    inventory = publishable(Inventory(devices=cpu_devices(EXAMPLE, CPUOptions(group_by=GroupBy.MACHINE), roots)))
    assert set(inventory.devices[0].attributes) == {"dra.cpu/smtEnabled", "dra.cpu/numCPUs"}
    (warning,) = inventory.warnings
    assert warning == (
        'attribute "resource.kubernetes.io/pcieRoot" of device "cpudevmachine" is left out: '
        "the device has 62 attribute values, more than 48"
    )


def test_options_are_read_as_serve_names_them() -> None:
    options = {"device_mode": "grouped", "group_by": "socket", "reserved_cpus": "0-1", "threads": "full-core"}
    assert read_options({**options, "compat_attributes": True, "gpu_sharing": "shared"}) == CPUOptions(
        mode=DeviceMode.GROUPED,
        group_by=GroupBy.SOCKET,
        reserved=cpus("0-1"),
        threads=Threads.FULL_CORE,
        compat_attributes=True,
        keep_shared=True,
    )
    assert read_options({}) == CPUOptions(keep_shared=True)
    assert read_options({"keep_shared": False}) == CPUOptions()
    # As in manifests that leave the other option at its default.
    single = {"device_mode": "individual", "group_by": "numanode"}
    assert read_options(single) == CPUOptions(mode=DeviceMode.INDIVIDUAL, keep_shared=True)


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"device_mode": "single"}, '--cpu-device-mode is grouped or individual, not "single"'),
        ({"group_by": "l3"}, '--group-by is numanode or socket or machine, not "l3"'),
        (
            {"device_mode": "individual", "group_by": "socket"},
            "--group-by socket needs groups of CPUs, and --cpu-device-mode individual publishes none",
        ),
        ({"threads": "half"}, '--threads is any or full-core, not "half"'),
        ({"threads": "one-per-core"}, '--threads is any or full-core, not "one-per-core"'),
        ({"reserved_cpus": "0-"}, '--reserved-cpus: "0-" in the cpu-list "0-" is neither a CPU nor a range'),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, str], phrase: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_options(options)
    assert phrase in str(raised.value)


def test_reserved_cpus_must_exist_and_leave_something() -> None:
    offline = replace(EXAMPLE, offline=cpus("16-17"))
    check_reserved(CPUOptions(reserved=cpus("0-14,16")), offline)
    with pytest.raises(UsageError, match=r"--reserved-cpus 14-20 names CPUs .* does not have: 18-20; it has 0-17"):
        check_reserved(CPUOptions(reserved=cpus("14-20")), offline)
    with pytest.raises(UsageError, match="--reserved-cpus 0-15 leaves no CPU for claims"):
        check_reserved(CPUOptions(reserved=cpus("0-15")), offline)
    with pytest.raises(UsageError, match="--reserved-cpus 0-16 leaves no CPU for claims: only 0-15 are online"):
        check_reserved(CPUOptions(reserved=cpus("0-16")), offline)
    firsts = CPUSet(core.first() for core in EXAMPLE.cores)
    check_reserved(CPUOptions(reserved=firsts), offline)
    with pytest.raises(UsageError, match="leaves no whole core for claims with --threads full-core"):
        check_reserved(CPUOptions(reserved=firsts, threads=Threads.FULL_CORE), offline)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Two NUMA nodes of eight CPUs, two threads a core: the last of the largest groups gives up one CPU.
        ({}, {"cpudevnuma000": 8, "cpudevnuma001": 7}),
        ({"threads": Threads.FULL_CORE}, {"cpudevnuma000": 8, "cpudevnuma001": 6}),
        ({"group_by": GroupBy.MACHINE}, {"cpudevmachine": 15}),
        ({"reserved": cpus("0")}, {"cpudevnuma000": 7, "cpudevnuma001": 8}),
        # A reserved CPU that is offline is available to nobody.
        ({"reserved": cpus("99")}, {"cpudevnuma000": 8, "cpudevnuma001": 7}),
    ],
)
def test_one_cpu_is_left_for_containers_without_claims(options: dict[str, Any], expected: dict[str, int]) -> None:
    machine = regular(sockets=1, numa=2, l3=1, cores=4, threads=2)
    devices = published(machine, CPUOptions(keep_shared=True, **options))
    assert {one["name"]: int(one["capacity"]["dra.cpu/cpu"]["value"]) for one in devices} == expected
    assert [one["attributes"]["dra.cpu/numCPUs"]["int"] for one in devices] == list(expected.values())


@pytest.mark.parametrize(("threads", "count"), [(Threads.ANY, 15), (Threads.FULL_CORE, 7)])
def test_all_individual_cpus_but_one_are_published(threads: Threads, count: int) -> None:
    machine = regular(sockets=1, numa=2, l3=1, cores=4, threads=2)
    kept = CPUOptions(mode=DeviceMode.INDIVIDUAL, threads=threads, keep_shared=True)
    assert len(published(machine, kept)) == count


def test_a_machine_with_a_single_cpu_has_none_to_publish() -> None:
    machine = regular(sockets=1, numa=1, l3=1, cores=1, threads=1)
    assert published(machine, CPUOptions(keep_shared=True)) == []
    assert published(machine, CPUOptions(mode=DeviceMode.INDIVIDUAL, keep_shared=True)) == []
