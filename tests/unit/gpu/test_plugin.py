import itertools
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.errors import ClaimConflictError, ClaimError, DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Conflict, Prepared, Refused
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Health
from dranode.driver.machine.folder import HostRoot
from dranode.driver.node.node import NodeClaims
from dranode.driver.slices.publishable import publishable
from dranode.driver.testing import check_plugin
from dranode.gpu.nvml import NVMLFacts
from dranode.gpu.plugin import GPUPlugin, plugin
from tests.fakes.drivers import DAMAGES
from tests.fakes.gpu import DEVICES, DRIVERS, Machine
from tests.fakes.gpu_kernel import Crash, Kernel
from tests.fakes.gpu_machines import crowd, flex, hgx, laptop, mi300x, plain

GPU_CONFIG = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig"}
RTX = "gpu-0000-01-00-0"


def claim(name: str, *devices: str, admin: bool = False, share: str | None = None, **config: Any) -> ResourceClaim:
    same = {"request": "gpu", "driver": "dra.gpu", "pool": "node", "adminAccess": admin or None, "shareID": share}
    results = [{**same, "device": device} for device in devices]
    opaque = {"source": "FromClaim", "opaque": {"driver": "dra.gpu", "parameters": {**GPU_CONFIG, **config}}}
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
            "status": {"allocation": {"devices": {"results": results, "config": [opaque] if config else []}}},
        },
    )


def ref(asked: ResourceClaim) -> ClaimRef:
    return ClaimRef.of(asked)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture
def nodes(folder: Path) -> Iterator[Any]:
    opened: list[NodeClaims] = []

    def start(driver: GPUPlugin, boot_id: str = "") -> NodeClaims:
        while opened:
            opened.pop().close()
        # A clock that leaps, so that no test waits for a holder that stays.
        node = NodeClaims(driver, folder / "data", folder / "cdi", clock=itertools.count(step=10).__next__)
        node.open(boot_id)
        opened.append(node)
        return node

    yield start
    while opened:
        opened.pop().close()


def prepare(node: NodeClaims, asked: ResourceClaim) -> Any:
    answer = node.prepare({ref(asked): asked})[asked.metadata.uid]
    match answer:
        case Prepared(devices):
            return devices
        case Conflict(reason):
            raise ClaimConflictError(reason)
        case Refused(reason):
            raise DranodeError(reason)


def spec(folder: Path, asked: ResourceClaim) -> Any:
    (path,) = (folder / "cdi").glob(f"*{asked.metadata.uid}*")
    return json.loads(path.read_text())


def bound(machine: Machine, address: str = "0000:01:00.0") -> str | None:
    return machine.bound(address)


@pytest.mark.parametrize("sharing", ["exclusive", "shared"])
@pytest.mark.parametrize("make", [hgx, mi300x, flex, laptop])
def test_the_driver_keeps_the_contract(make: Any, sharing: str, tmp_path: Path) -> None:
    configs = [GPU_CONFIG, {**GPU_CONFIG, "visibility": "vendor"}]
    check_plugin(plugin(make().root(), {"sharing": sharing}), tmp_path, configs)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("make", [hgx, mi300x, flex, laptop, crowd, plain])
def test_published_devices_are_valid(make: Any, shared: bool) -> None:  # noqa: FBT001 - a parameter of the test
    found = GPUPlugin(make().root(), shared=shared).discover()
    sound = publishable(found)
    assert sound.devices == found.devices
    assert sound.warnings == found.warnings


def test_options_of_other_drivers_are_ignored() -> None:
    assert plugin(hgx().root(), {"device_mode": "grouped"}).driver == "dra.gpu"


def test_the_spec_has_current_device_numbers_and_the_ledger_has_none(nodes: Any, folder: Path) -> None:
    machine, asked = hgx(), claim("a", "gpu-0000-1b-00-0")
    node = nodes(GPUPlugin(machine.root()))
    prepare(node, asked)
    before = spec(folder, asked)["devices"][0]["containerEdits"]["deviceNodes"]
    assert before[2] == {"path": "/dev/nvidia-uvm", "type": "c", "major": 510, "permissions": "rw", "minor": 0}
    (record,) = node.records()
    assert record.grants[0].edits.device_nodes == ()
    machine.node("dev/nvidia-uvm", 234, 0)
    prepare(node, asked)
    assert spec(folder, asked)["devices"][0]["containerEdits"]["deviceNodes"][2]["major"] == 234


def test_a_missing_device_node_is_an_error_at_prepare_without_a_spec(nodes: Any, folder: Path) -> None:
    machine, asked = hgx(), claim("a", "gpu-0000-1b-00-0")
    machine.remove("dev/nvidia-uvm")
    node = nodes(GPUPlugin(machine.root()))
    with pytest.raises(DranodeError, match="needs device node /dev/nvidia-uvm, which does not exist"):
        prepare(node, asked)
    assert list((folder / "cdi").glob("*")) == []
    machine.node("dev/nvidia-uvm", 510, 0)
    assert prepare(node, asked)[0].cdi == ("dra.gpu/claim=claim-uid-a-0",)


def test_a_gpu_that_disappears_between_discovery_and_prepare_is_named(nodes: Any) -> None:
    machine, asked = hgx(), claim("a", "gpu-0000-1b-00-0")
    node = nodes(GPUPlugin(machine.root()))
    machine.remove(f"{DEVICES}/0000:1b:00.0")
    with pytest.raises(DranodeError, match=r"GPU 0000:1b:00\.0 is gone from the PCI bus"):
        prepare(node, asked)
    assert node.unprepare((ref(asked),)) == {"uid-a": None}


def test_a_claim_for_a_held_gpu_is_refused_and_both_claims_are_named(nodes: Any) -> None:
    node = nodes(GPUPlugin(hgx().root()))
    prepare(node, claim("a", "gpu-0000-1b-00-0"))
    with pytest.raises(ClaimConflictError, match=r"claim default/b .* claim default/a still holds"):
        prepare(node, claim("b", "gpu-0000-1b-00-0"))


def test_admin_access_is_given_beside_the_holder_and_marked(nodes: Any, folder: Path) -> None:
    node = nodes(GPUPlugin(hgx().root()))
    prepare(node, claim("a", "gpu-0000-1b-00-0"))
    watcher = claim("b", "gpu-0000-1b-00-0", admin=True)
    prepare(node, watcher)
    assert "DRA_ADMIN_ACCESS=true" in spec(folder, watcher)["devices"][0]["containerEdits"]["env"]


def test_unprepare_works_without_the_kernel_driver(nodes: Any) -> None:
    machine, asked = hgx(), claim("a", "gpu-0000-1b-00-0")
    node = nodes(GPUPlugin(machine.root()))
    prepare(node, asked)
    for path in ("proc/driver/nvidia", f"{DRIVERS}/nvidia", "dev/nvidiactl", "dev/nvidia0", "sys/module/nvidia"):
        machine.remove(path)
    assert node.unprepare((ref(asked),)) == {"uid-a": None}
    assert node.records() == ()


def test_vfio_binds_at_prepare_and_gives_back_at_unprepare(nodes: Any, folder: Path) -> None:
    machine, asked = laptop(), claim("vm", RTX, mode="vfio")
    kernel = Kernel(machine)
    node = nodes(GPUPlugin(kernel, groups=kernel.group))
    prepare(node, asked)
    assert bound(machine) == "vfio-pci"
    paths = [each["path"] for each in spec(folder, asked)["devices"][0]["containerEdits"]["deviceNodes"]]
    assert paths == ["/dev/vfio/vfio", "/dev/vfio/14"]
    node.discovery.read()
    # The second claim comes before the hardware is read again.
    for each in (asked, claim("next", RTX, mode="vfio")):
        prepare(node, each)
        node.unprepare((ref(each),))
        assert (bound(machine), bound(machine, "0000:01:00.1")) == ("nvidia", "snd_hda_intel")


@pytest.mark.parametrize("after", range(9))
def test_vfio_after_a_crash_at_any_write_has_the_same_result(after: int, nodes: Any) -> None:
    machine, asked = laptop(), claim("vm", RTX, mode="vfio")
    node = nodes(GPUPlugin(Kernel(machine, after=after), groups=Kernel(machine).group))
    try:
        prepare(node, asked)
    except Crash:
        assert bound(machine) in ("nvidia", None, "vfio-pci")
    # The restarted driver sees hardware halfway; the record still has the functions' original drivers.
    node = nodes(GPUPlugin(Kernel(machine), groups=Kernel(machine).group))
    prepare(node, asked)
    assert bound(machine) == "vfio-pci"
    node.unprepare((ref(asked),))
    assert (bound(machine), bound(machine, "0000:01:00.1")) == ("nvidia", "snd_hda_intel")


def test_vfio_is_bound_again_at_the_next_prepare_after_a_reboot(nodes: Any) -> None:
    machine, asked = laptop(), claim("vm", RTX, mode="vfio")
    prepare(nodes(GPUPlugin(Kernel(machine), groups=Kernel(machine).group), "boot-1"), asked)
    booted = laptop()
    node = nodes(GPUPlugin(Kernel(booted), groups=Kernel(booted).group), "boot-2")
    prepare(node, asked)
    assert bound(booted) == "vfio-pci"
    node.unprepare((ref(asked),))
    assert bound(booted) == "nvidia"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("make", "has", "refused", "free"),
    [
        (hgx, "gpu-0000-1b-00-0", "gpu-0000-1b-00-0", "gpu-0000-43-00-0"),
        (mi300x, "gpu-0000-0c-00-0-p3", "gpu-0000-0c-00-0", "gpu-0000-0c-00-0-p4"),
        (mi300x, "gpu-0000-0c-00-0", "gpu-0000-0c-00-0-p4", "gpu-0000-22-00-0-p4"),
        (flex, "gpu-0000-4d-00-3", "gpu-0000-4d-00-0", "gpu-0000-4d-00-4"),
    ],
)
def test_after_damage_to_the_ledger_a_gpu_and_its_partitions_stay_held(
    *, make: Any, has: str, refused: str, free: str, damage: Callable[[Path], None], nodes: Any, folder: Path
) -> None:
    machine, asked = make(), claim("a", has)
    first = prepare(nodes(GPUPlugin(machine.root())), asked)
    damage(folder)
    node = nodes(GPUPlugin(machine.root()))
    with pytest.raises(ClaimConflictError, match="claim default/a"):
        prepare(node, claim("b", refused))
    assert [one.device for one in prepare(node, claim("c", free))] == [free]
    assert prepare(node, asked) == first
    assert {record.name: bool(record.fingerprint) for record in node.records()} == {"a": True, "c": True}


@pytest.mark.parametrize("damage", DAMAGES)
def test_after_damage_to_the_ledger_containers_get_the_same_variables_as_before(
    damage: Callable[[Path], None], nodes: Any, folder: Path
) -> None:
    machine, asked = hgx(), claim("a", "gpu-0000-1b-00-0", visibility="vendor")
    prepare(nodes(GPUPlugin(machine.root())), asked)
    before = spec(folder, asked)
    damage(folder)
    # A claim that were decided again would get another UUID.
    machine.nvidia("0000:1b:00.0", 0, "NVIDIA H100 80GB HBM3", "GPU-ffffffff-0000-4000-8000-0123456789ab")
    node = nodes(GPUPlugin(machine.root()))
    prepare(node, asked)
    assert spec(folder, asked) == before
    machine.node("dev/nvidia-uvm", 234, 0)
    prepare(node, asked)
    assert spec(folder, asked)["devices"][0]["containerEdits"]["deviceNodes"][2]["major"] == 234


@pytest.mark.parametrize("damage", DAMAGES)
def test_after_damage_to_the_ledger_shares_are_still_shared(
    damage: Callable[[Path], None], nodes: Any, folder: Path
) -> None:
    machine, asked = hgx(), claim("a", "gpu-0000-1b-00-0", share="s-1")
    prepare(nodes(GPUPlugin(machine.root(), shared=True)), asked)
    damage(folder)
    node = nodes(GPUPlugin(machine.root(), shared=True))
    assert prepare(node, claim("b", "gpu-0000-1b-00-0", share="s-2"))[0].share_id == "s-2"
    assert prepare(node, asked)[0].share_id == "s-1"
    assert {ref.name for ref in node.store.book.held.holders({"0000:1b:00.0"})} == {"a", "b"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("adopted", [False, True])
def test_after_damage_to_the_ledger_vfio_is_restored_to_the_drivers_in_the_spec(
    adopted: bool,  # noqa: FBT001 - a parameter of the test
    damage: Callable[[Path], None],
    nodes: Any,
    folder: Path,
) -> None:
    machine, asked = laptop(), claim("vm", RTX, mode="vfio")
    Kernel(machine).write(f"{DRIVERS}/snd_hda_intel/unbind", "0000:01:00.1")
    prepare(nodes(GPUPlugin(Kernel(machine), groups=Kernel(machine).group)), asked)
    damage(folder)
    node = nodes(GPUPlugin(Kernel(machine), groups=Kernel(machine).group), "boot-1")
    if adopted:
        prepare(node, asked)
        assert bound(machine) == "vfio-pci"
    assert node.unprepare((ref(asked),)) == {"uid-vm": None}
    # The kernel alone would have bound the sound function to a driver from which an administrator had taken it.
    assert (bound(machine), bound(machine, "0000:01:00.1")) == ("nvidia", None)
    assert node.records() == ()


def test_a_gpu_of_another_vendor_stays_published_while_a_virtual_machine_has_it(nodes: Any) -> None:
    machine = Machine()
    machine.driver("mtgpu")
    machine.driver("vfio-pci")
    folder = machine.pci("0000:03:00.0", 0x1ED5, 0x0222, 0x030000, driver="mtgpu", group=7)
    machine.drm(folder, 0, 128)
    driver = GPUPlugin(Kernel(machine), groups=Kernel(machine).group)
    node = nodes(driver)
    prepare(node, claim("vm", "gpu-0000-03-00-0", mode="vfio"))
    assert bound(machine, "0000:03:00.0") == "vfio-pci"
    node.rescan()
    assert node.inventory.device("gpu-0000-03-00-0") is not None
    assert [one.health for one in driver.health(node.inventory)] == [Health.HEALTHY]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("vfio", "captured or made-up machine cannot be written to; run on the machine itself"),
        ("fast", r"status\.allocation\.devices\.config\[0\]\.opaque\.parameters is not a valid"),
    ],
)
def test_vfio_on_a_made_up_machine_and_a_wrong_configuration_are_refused(mode: str, reason: str, nodes: Any) -> None:
    with pytest.raises(DranodeError, match=reason):
        prepare(nodes(GPUPlugin(laptop().root())), claim("a", RTX, mode=mode))


def test_nvml_releases_a_gpu_before_it_is_unbound_from_its_driver(nodes: Any) -> None:
    machine = laptop()

    class Library:
        """NVML, which keeps the GPUs open unless it is told to release them."""

        def __init__(self) -> None:
            self.open = True
            self.free = False

        def gpus(self, bound: Collection[str]) -> dict[str, NVMLFacts]:
            del bound
            self.open = not self.free
            return {}

        def xids(self) -> tuple[tuple[str, int], ...]:
            self.open = not self.free
            return ()

        def needs(self) -> dict[str, str]:
            return {}

        @contextmanager
        def released(self) -> Iterator[None]:
            self.open, self.free = False, True
            yield
            self.free = False

    class Busy(Kernel):
        """A kernel that waits for users of the GPU; a test must not wait."""

        def write(self, path: str, content: str) -> None:
            # Health is checked by another thread at any time.
            list(driver.health(driver.discover()))
            if path.endswith("nvidia/unbind") and library.open:
                raise OSError(16, "Device or resource busy")
            super().write(path, content)

    library = Library()
    driver = GPUPlugin(Busy(machine), groups=Kernel(machine).group, nvml=library)
    prepare(nodes(driver), claim("vm", RTX, mode="vfio"))
    assert bound(machine) == "vfio-pci"


def test_a_claim_with_a_lost_record_is_refused_rather_than_started_without_its_gpu() -> None:
    driver = GPUPlugin(laptop().root())
    lost = Grant(request="gpu", pool="node", device=RTX)
    with pytest.raises(ClaimError, match="the record of what its containers get was lost"):
        driver.complete(ClaimRef("default", "a", "uid-a"), (lost,))
    driver.restore(ClaimRef("default", "a", "uid-a"), (lost,))


def test_a_card_that_is_plugged_in_is_found_at_the_next_reading(nodes: Any) -> None:
    machine = laptop()
    node = nodes(GPUPlugin(machine.root()))
    assert not node.rescan()
    machine.drm(machine.pci("0000:05:00.0", 0x1002, 0x740F, 0x038000, driver="amdgpu"), 5, 133)
    assert node.rescan()
    assert node.inventory.device("gpu-0000-05-00-0") is not None


def test_only_the_host_has_events_nvml_and_binding() -> None:
    here, elsewhere = plugin(HostRoot(), {}), plugin(hgx().root(), {})
    assert here._groups("/dev/null") is not None
    assert here._events is not None
    assert elsewhere._groups("/dev/null") is None
    assert elsewhere._events is None


@pytest.mark.parametrize("fields", [{"sharing": {"strategy": "exclusive"}}, {}, {"mode": "graphics"}])
@pytest.mark.parametrize("device", ["gpu-0000-0c-00-0", "gpu-0000-22-00-0-p2"])
@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_gpu_granted_as_a_whole_is_not_shared_after_the_option_changed(
    nodes: Any,
    folder: Path,
    device: str,
    fields: dict[str, Any],
    side_by_side: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    machine = mi300x(gpus=2) if device.endswith("p2") else mi300x(gpus=1, parts=1)
    first, whole, share = nodes(GPUPlugin(machine.root())), claim("a", device, **fields), claim("b", device, share="s")
    prepare(first, whole)
    if side_by_side:
        other, clock = GPUPlugin(machine.root(), shared=True), itertools.count(step=10).__next__
        second = NodeClaims(other, folder / "data", folder / "cdi", clock=clock)
        second.open()
    else:
        second = nodes(GPUPlugin(machine.root(), shared=True))
    with pytest.raises(ClaimConflictError, match=f'"{device}", which claim default/a still holds whole'):
        prepare(second, share)
    assert prepare(second, whole)
    assert second.unprepare((ref(whole),)) == {"uid-a": None}
    assert prepare(second, share)
    assert prepare(second, claim("c", device, share="t"))
    # A shared GPU is not granted whole either, whatever the option says.
    for driver in (GPUPlugin(machine.root(), shared=True), GPUPlugin(machine.root())):
        with pytest.raises(ClaimConflictError):
            prepare(nodes(driver), claim("d", device))
    second.close()


def test_a_gpu_of_a_virtual_machine_is_not_shared_after_the_option_changed(nodes: Any) -> None:
    machine = laptop()
    prepare(nodes(GPUPlugin(Kernel(machine), groups=Kernel(machine).group)), claim("vm", RTX, mode="vfio"))
    node = nodes(GPUPlugin(Kernel(machine), groups=Kernel(machine).group, shared=True))
    with pytest.raises(ClaimConflictError, match="which claim default/vm still holds whole"):
        prepare(node, claim("b", RTX, share="s"))
    assert bound(machine) == "vfio-pci"


@pytest.mark.parametrize("damage", DAMAGES)
def test_after_damage_to_the_ledger_a_gpu_granted_as_a_whole_is_still_not_shared(
    damage: Callable[[Path], None], nodes: Any, folder: Path
) -> None:
    machine = hgx()
    prepare(nodes(GPUPlugin(machine.root())), claim("a", "gpu-0000-1b-00-0"))
    damage(folder)
    node = nodes(GPUPlugin(machine.root(), shared=True))
    with pytest.raises(ClaimConflictError):
        prepare(node, claim("b", "gpu-0000-1b-00-0", share="s"))


def test_a_gpu_that_loses_its_driver_is_withdrawn_with_the_reason_and_comes_back(
    nodes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine = laptop()
    driver = GPUPlugin(machine.root())
    node, asked = nodes(driver), claim("a", RTX)
    prepare(node, asked)
    function = machine.root().resolve(f"{DEVICES}/0000:01:00.0")
    machine.remove(f"{function}/driver")
    for _ in range(2):
        node.rescan()
    assert node.inventory.device(RTX) is None
    assert caplog.text.count("GPU 0000:01:00.0 is left out: no driver is bound to it") == 1
    health = {each.device: each for each in driver.health(node.inventory)}
    assert (health[RTX].health, health[RTX].message) == (Health.UNHEALTHY, "no driver is bound to it")
    with pytest.raises(DranodeError, match="which this node does not have"):
        prepare(node, claim("b", RTX))
    # A held GPU stays held, whatever happens to the driver.
    machine.bind("0000:01:00.0", "nvidia")
    node.rescan()
    with pytest.raises(ClaimConflictError):
        prepare(node, claim("b", RTX))
    assert {each.health for each in driver.health(node.inventory)} == {Health.HEALTHY}


def test_a_gpu_that_never_had_a_driver_is_not_reported_as_unhealthy() -> None:
    machine = laptop()
    machine.remove(f"{machine.root().resolve(f'{DEVICES}/0000:01:00.0')}/driver")
    driver = GPUPlugin(machine.root())
    assert [each.device for each in driver.health(driver.discover())] == ["gpu-0000-00-02-0"]
