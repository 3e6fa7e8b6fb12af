from typing import Any

import pytest

from dranode.api.errors import ClaimConflictError, ClaimError
from dranode.api.quantity import Quantity
from dranode.api.resource import DeviceRequestAllocationResult
from dranode.driver.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant, Config, Grant
from dranode.driver.claims.held import ClaimRef, Held, HeldDevice, Holding
from dranode.gpu.config import parse_gpu_config
from dranode.gpu.grants import Home, Intent, gpu_sources, grant_gpus
from dranode.gpu.inventory import GPUInventory, GPUKind
from dranode.gpu.scan import scan
from tests.fakes.gpu import DEVICES, Machine
from tests.fakes.gpu_machines import flex, hgx, laptop, mi300x

MINE = ClaimRef("default", "mine", "uid-mine")
OTHER = ClaimRef("team", "other", "uid-other")
FIRST, SECOND = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
UUIDS = {FIRST: "GPU-00000000-0000-4000-8000-0123456789ab", SECOND: "GPU-00000001-0000-4000-8000-0123456789ab"}


def config(**fields: Any) -> Config:
    document = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig", **fields}
    return Config("FromClaim", parse_gpu_config(Config("FromClaim", document, "config[0]")), "config[0]")


def result(device: str, request: str = "gpu", **fields: Any) -> DeviceRequestAllocationResult:
    return DeviceRequestAllocationResult(request=request, driver="dra.gpu", pool="node", device=device, **fields)


def give(
    machine: Machine | GPUInventory,
    *results: DeviceRequestAllocationResult,
    configs: tuple[Config, ...] = (),
    held: Held | None = None,
) -> ClaimGrant:
    inventory = machine if isinstance(machine, GPUInventory) else scan(machine.root())
    drivers = {function.address: function.driver for gpu in inventory.gpus for function in gpu.functions}
    claim = AllocatedClaim(MINE, tuple(AllocatedResult(each, configs) for each in results))
    return grant_gpus(claim, held or Held(), inventory, drivers)


def holds(device: str, state: Any = None, *, whole: bool = True) -> Held:
    """What another claim holds, by the device's name or, if given, by its grant's state."""
    return Held.of((Holding(OTHER, (HeldDevice(device, gpu_sources(device, state), whole=whole),)),))


def refusal(
    machine: Machine,
    *results: DeviceRequestAllocationResult,
    configs: tuple[Config, ...] = (),
    held: Held | None = None,
) -> str:
    with pytest.raises(ClaimError) as caught:
        give(machine, *results, configs=configs, held=held)
    return str(caught.value)


def env(one: Grant) -> list[str]:
    assert one.edits is not None
    return list(one.edits.env)


def meant(one: Grant) -> Intent:
    intent = Intent.of(one)
    assert intent is not None
    return intent


def test_a_grant_records_the_gpu_and_no_device_node() -> None:
    (one,) = give(hgx(), result(FIRST)).grants
    assert one.state == {"address": "0000:1b:00.0", "vendor": "nvidia"}
    assert one.edits is not None
    assert one.edits.device_nodes == ()
    assert env(one) == [
        f"DRA_GPU_0000_1B_00_0={UUIDS[FIRST]}",
        "NVIDIA_VISIBLE_DEVICES=void",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ]


def test_variables_of_two_gpus_never_overwrite_each_other() -> None:
    both = [env(one) for one in give(hgx(), result(FIRST), result(SECOND, "other")).grants]
    values: dict[str, set[str]] = {}
    for entry in (entry for entries in both for entry in entries):
        name, _, value = entry.partition("=")
        values.setdefault(name, set()).add(value)
    assert {name for name, each in values.items() if len(each) > 1} == set()


def test_a_partition_has_its_number_and_is_named_by_address() -> None:
    (one,) = give(mi300x(gpus=1), result("gpu-0000-0c-00-0-p3")).grants
    assert meant(one).partition == 3
    assert env(one) == ["DRA_GPU_0000_0C_00_0_P3=0000:0c:00.0"]


def test_visibility_vendor_lists_the_gpus_of_the_request_on_each_of_its_grants() -> None:
    configs = (config(visibility="vendor"),)
    for one in give(hgx(), result(FIRST), result(SECOND), configs=configs).grants:
        assert f"CUDA_VISIBLE_DEVICES={UUIDS[FIRST]},{UUIDS[SECOND]}" in env(one)


@pytest.mark.parametrize(
    ("machine", "device", "entry"),
    [
        (mi300x(gpus=1, parts=1), "gpu-0000-0c-00-0", "ROCR_VISIBLE_DEVICES=GPU-53b1c8f2d4e60700"),
        (mi300x(gpus=1), "gpu-0000-0c-00-0-p1", "ROCR_VISIBLE_DEVICES=0"),
    ],
)
def test_amd_has_its_list(machine: Machine, device: str, entry: str) -> None:
    (one,) = give(machine, result(device), configs=(config(visibility="vendor"),)).grants
    assert entry in env(one)


@pytest.mark.parametrize(
    ("machine", "device"), [(mi300x(gpus=1), "gpu-0000-0c-00-0"), (flex(vfs=0), "gpu-0000-4d-00-0")]
)
def test_a_gpu_that_programs_may_see_as_several_has_no_variable(machine: Machine, device: str) -> None:
    (one,) = give(machine, result(device), configs=(config(visibility="vendor"),)).grants
    assert not [entry for entry in env(one) if not entry.startswith("DRA_")]


def test_a_list_for_gpus_of_two_requests_is_refused() -> None:
    message = refusal(hgx(), result(FIRST, "a"), result(SECOND, "b"), configs=(config(visibility="vendor"),))
    assert message == (
        "claim default/mine has visibility vendor and nvidia GPUs in requests a and b, but a container's variable "
        "can list the GPUs of one request only; use one request or visibility none"
    )


def test_graphics_asks_for_all_of_nvidias_capabilities() -> None:
    (one,) = give(hgx(), result(FIRST), configs=(config(mode="graphics"),)).grants
    assert "NVIDIA_DRIVER_CAPABILITIES=all" in env(one)


def test_admin_access_is_marked_and_holds_nothing() -> None:
    held = holds(FIRST)
    (one,) = give(hgx(), result(FIRST, admin_access=True), held=held).grants
    assert one.admin
    assert "DRA_ADMIN_ACCESS=true" in env(one)


def test_admin_access_to_a_partition_is_granted_beside_the_holder_of_the_whole_gpu() -> None:
    held = holds("gpu-0000-4d-00-0")
    (one,) = give(flex(), result("gpu-0000-4d-00-1", admin_access=True), held=held).grants
    assert one.admin


def test_admin_access_never_takes_a_gpu_from_its_driver() -> None:
    (one,) = give(laptop(), result("gpu-0000-01-00-0", admin_access=True), configs=(config(mode="vfio"),)).grants
    assert meant(one).homes == ()


@pytest.mark.parametrize(
    ("asked", "other"), [("gpu-0000-4d-00-0", "gpu-0000-4d-00-3"), ("gpu-0000-4d-00-3", "gpu-0000-4d-00-0")]
)
def test_a_gpu_and_its_partitions_are_never_both_granted_and_both_claims_are_named(asked: str, other: str) -> None:
    with pytest.raises(ClaimConflictError) as caught:
        give(flex(), result(asked), held=holds(other))
    assert str(caught.value) == (
        f'claim default/mine was allocated device "{asked}", but claim team/other holds "{other}" of the same GPU; '
        "it can be prepared once that claim is unprepared"
    )


def test_a_claim_with_a_whole_gpu_and_its_partition_is_refused() -> None:
    message = refusal(flex(), result("gpu-0000-4d-00-0", "a"), result("gpu-0000-4d-00-2", "b"))
    assert '"gpu-0000-4d-00-0" and "gpu-0000-4d-00-2", which overlap on the same GPU' in message


def test_a_share_has_its_amount_of_memory() -> None:
    share = result(FIRST, share_id="8a3a", consumed_capacity={"shares": Quantity(1), "memory": Quantity("8Gi")})
    (one,) = give(hgx(), share).grants
    assert one.share_id == "8a3a"
    assert f"DRA_GPU_0000_1B_00_0_MEMORY={8 << 30}" in env(one)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M" in env(one)


@pytest.mark.parametrize("name", ["memory", "dra.gpu/memory"])
def test_the_memory_of_a_share_is_read_under_either_name(name: str) -> None:
    (one,) = give(hgx(), result(FIRST, share_id="8a3a", consumed_capacity={name: Quantity("8Gi")})).grants
    assert f"DRA_GPU_0000_1B_00_0_MEMORY={8 << 30}" in env(one)


def test_a_lower_limit_overrides_the_shares_memory() -> None:
    share = result(FIRST, share_id="8a3a", consumed_capacity={"dra.gpu/memory": Quantity("8Gi")})
    (one,) = give(hgx(), share, configs=(config(sharing={"memoryLimit": "6Gi"}),)).grants
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=6144M" in env(one)


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        (((FIRST, "8Gi"), (SECOND, "4Gi")), "0=8192M,1=4096M"),
        (((SECOND, "4Gi"), (FIRST, "8Gi")), "0=8192M,1=4096M"),
        (((FIRST, "8Gi"), (FIRST, "4Gi"), (SECOND, "2Gi")), "0=12288M,1=2048M"),
    ],
)
def test_limits_of_several_gpus_are_in_the_order_of_cuda(sizes: tuple[tuple[str, str], ...], limits: str) -> None:
    shares = [
        result(device, share_id=f"{index}", consumed_capacity={"memory": Quantity(memory)})
        for index, (device, memory) in enumerate(sizes)
    ]
    for one in give(hgx(), *shares, configs=(config(visibility="vendor"),)).grants:
        variables = env(one)
        assert {f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits}", "CUDA_DEVICE_ORDER=PCI_BUS_ID"} <= set(variables)
        assert [entry.count("GPU-") for entry in variables if entry.startswith("CUDA_VISIBLE")] == [2]


def test_a_limit_above_the_allocation_is_refused_with_both_amounts() -> None:
    share = result(FIRST, share_id="8a3a", consumed_capacity={"memory": Quantity("8Gi")})
    message = refusal(hgx(), share, configs=(config(sharing={"memoryLimit": "16Gi"}),))
    assert "sharing.memoryLimit 16Gi, more than the 8Gi that it was allocated" in message


def test_a_limit_that_no_variable_can_enforce_is_refused() -> None:
    message = refusal(flex(vfs=0), result("gpu-0000-4d-00-0"), configs=(config(sharing={"memoryLimit": "1Gi"}),))
    assert "intel GPUs have no variable to limit it" in message


def test_exclusive_use_of_a_share_is_refused() -> None:
    message = refusal(hgx(), result(FIRST, share_id="8a3a"), configs=(config(sharing={"strategy": "exclusive"}),))
    assert message.startswith(f'request "gpu" with device "{FIRST}" of claim default/mine asks for an exclusive GPU')


def test_vfio_records_the_drivers_of_the_functions_in_the_gpus_iommu_group() -> None:
    machine = laptop()
    machine.driver("xhci_hcd")
    machine.pci("0000:01:00.2", 0x1022, 0x1639, 0x0C0330, driver="xhci_hcd", group=99)
    (one,) = give(machine, result("gpu-0000-01-00-0"), configs=(config(mode="vfio"),)).grants
    assert meant(one).homes == (
        Home(address="0000:01:00.0", driver="nvidia"),
        Home(address="0000:01:00.1", driver="snd_hda_intel"),
    )


@pytest.mark.parametrize(
    ("machine", "one", "why"),
    [
        (hgx(), result(FIRST, share_id="8a3a"), "is a share"),
        (mi300x(gpus=1), result("gpu-0000-0c-00-0-p1"), "is a partition"),
        (flex(), result("gpu-0000-4d-00-0"), "has virtual functions"),
    ],
)
def test_vfio_is_refused_for_a_device_without_its_own_pci_function(
    machine: Machine, one: DeviceRequestAllocationResult, why: str
) -> None:
    assert f"has mode vfio but {why}" in refusal(machine, one, configs=(config(mode="vfio"),))


def test_a_virtual_function_is_passed_to_a_virtual_machine_without_its_gpu() -> None:
    (one,) = give(flex(), result("gpu-0000-4d-00-2"), configs=(config(mode="vfio"),)).grants
    assert meant(one).homes == (Home(address="0000:4d:00.2", driver="xe"),)


WHOLE, PART = "gpu-0000-0c-00-0", "gpu-0000-0c-00-0-p3"


def recorded(machine: Machine, device: str, **fields: Any) -> Any:
    """The recorded state of a grant of this device."""
    return give(machine, result(device, **fields)).grants[0].state


def mode(machine: Machine, compute: str | None) -> Machine:
    """An AMD GPU in another partition mode; None for one that cannot be read."""
    folder = machine.root().resolve(f"{DEVICES}/0000:0c:00.0")
    machine.remove(f"{folder}/current_compute_partition")
    machine.remove(f"{folder}/current_memory_partition")
    if compute is not None:
        machine.put(f"{folder}/current_compute_partition", compute)
    return machine


@pytest.mark.parametrize(
    ("before", "device", "after", "asked"),
    [
        pytest.param(mi300x(gpus=1), PART, mi300x(gpus=1, parts=1), WHOLE, id="whole again"),
        pytest.param(mi300x(gpus=1, parts=1), WHOLE, mi300x(gpus=1), PART, id="in parts now"),
        pytest.param(
            mi300x(gpus=1), PART, mode(mi300x(gpus=1, parts=2), "DPX"), "gpu-0000-0c-00-0-p0", id="in fewer parts now"
        ),
        pytest.param(
            mode(mi300x(gpus=1), None),
            PART,
            mode(mi300x(gpus=1, parts=2), None),
            "gpu-0000-0c-00-0-p0",
            id="in fewer parts now, of a mode that cannot be read",
        ),
        pytest.param(flex(), "gpu-0000-4d-00-3", flex(vfs=0), "gpu-0000-4d-00-0", id="without virtual functions now"),
        pytest.param(flex(vfs=0), "gpu-0000-4d-00-0", flex(), "gpu-0000-4d-00-3", id="with virtual functions now"),
    ],
)
def test_a_repartitioned_gpu_is_not_granted_beside_earlier_grants(
    before: Machine, device: str, after: Machine, asked: str
) -> None:
    with pytest.raises(ClaimConflictError, match=f'team/other holds "{device}" of the same GPU'):
        give(after, result(asked), held=holds(device, recorded(before, device)))


def test_partitions_of_the_same_mode_go_to_different_claims() -> None:
    state = recorded(mi300x(gpus=1), PART)
    assert give(mi300x(gpus=1), result("gpu-0000-0c-00-0-p4"), held=holds(PART, state)).grants


@pytest.mark.parametrize("machine", [mi300x(gpus=1), flex()])
def test_records_without_a_partition_mode_count_as_the_current_mode(machine: Machine) -> None:
    first, second = [gpu for gpu in scan(machine.root()).gpus if gpu.kind is not GPUKind.GPU][:2]
    state: dict[str, Any] = {"address": first.address, "vendor": first.vendor}
    if first.partition is not None:
        state["partition"] = first.partition
    held = holds(first.name, state)
    assert give(machine, result(second.name), held=held).grants
    for asked in (first.name, first.parent_name or ""):
        with pytest.raises(ClaimConflictError):
            give(machine, result(asked), held=held)
    with pytest.raises(ClaimConflictError):
        give(machine, result(first.name, share_id="s"), held=held)
    assert give(machine, result(first.name, share_id="s"), held=holds(first.name, state, whole=False)).grants
