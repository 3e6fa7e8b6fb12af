import errno

from hypothesis import given, note, settings
from hypothesis import strategies as st

from dranode.api.semver import semver_from_numbers
from dranode.driver.slices.publishable import publishable
from dranode.gpu.devices import counters, gpu_devices
from dranode.gpu.health import AERCounts, GPUCondition, counted, expired, handled, present, report, taints, wedged, xid
from dranode.gpu.plugin import GPUPlugin
from dranode.gpu.scan import scan
from dranode.sim.machines.tree import leaves
from tests.fakes.gpu import Machine
from tests.fakes.gpu_machines import flex, hgx, laptop, mi300x, power

MACHINES = {"flex": flex, "hgx": hgx, "laptop": laptop, "mi300x": mi300x, "power": power}
ERRORS = [errno.EPERM, errno.EACCES, errno.EIO, errno.EINVAL, errno.ENODEV]
FILES = {
    name: sorted(
        path for path, node in leaves(make().tree) if isinstance(node, bytes) and path.startswith(("sys", "proc"))
    )
    for name, make in MACHINES.items()
}


@st.composite
def damaged(draw: st.DrawFn) -> Machine:
    """A machine some of whose files fail, hold nonsense or are missing."""
    name = draw(st.sampled_from(sorted(MACHINES)))
    machine = MACHINES[name]()
    broken = draw(st.lists(st.sampled_from(FILES[name]), unique=True, max_size=12))
    note(f"{name}: {broken}")
    for path in broken:
        match draw(st.integers(0, 2)):
            case 0:
                machine.failures[path] = draw(st.sampled_from(ERRORS))
            case 1:
                machine.put(path, draw(st.binary(max_size=40)))
            case _:
                machine.remove(path)
    return machine


@settings(max_examples=60)
@given(damaged(), st.booleans())
def test_damaged_files_never_stop_discovery_or_break_the_slice(machine: Machine, shared: bool) -> None:  # noqa: FBT001 - drawn
    found = GPUPlugin(machine.root(), shared=shared).discover()
    sound = publishable(found)
    assert sound.devices == found.devices
    assert sound.warnings == found.warnings


@settings(max_examples=25)
@given(damaged())
def test_discovery_is_a_function_of_the_files(machine: Machine) -> None:
    assert scan(machine.root()) == scan(machine.root())


@settings(max_examples=25)
@given(damaged())
def test_the_parts_of_a_gpu_use_up_its_counters_exactly(machine: Machine) -> None:
    inventory = scan(machine.root())
    room = {each.name: each.counters["parts"].value.value for each in counters(inventory)}
    whole: dict[str, float] = {}
    parts: dict[str, float] = {}
    for device in gpu_devices(inventory, shared=False):
        for taken in device.consumes_counters:
            sums = whole if taken.counter_set == device.name else parts
            sums[taken.counter_set] = sums.get(taken.counter_set, 0) + float(taken.counters["parts"].value.value)
    assert whole == parts == room


@given(st.text(alphabet="0123456789.-+aZ ", max_size=80))
def test_a_published_driver_version_is_valid_for_the_api_server(text: str) -> None:
    version = semver_from_numbers(text)
    if version is not None:
        numbers, _, build = version.partition("+")
        assert [str(int(part)) for part in numbers.split(".")] == numbers.split(".")
        assert len(numbers.split(".")) == 3
        assert "+" not in version or all(build.split("."))
        assert len(version) <= 64


ADDRESSES = ["0000:01:00.0", "0000:00:02.0"]
STEPS = st.one_of(
    st.tuples(st.just("aer"), st.sampled_from(ADDRESSES), st.integers(0, 9)),
    st.tuples(st.just("wedged"), st.sampled_from(ADDRESSES), st.sampled_from(["none", "rebind"])),
    st.tuples(st.just("xid"), st.sampled_from(ADDRESSES), st.sampled_from([13, 48, 79])),
    st.tuples(st.just("bind"), st.sampled_from(ADDRESSES), st.none()),
)


@given(st.lists(STEPS, max_size=20))
def test_every_gpu_becomes_healthy_again(steps: list[tuple[str, str, int | str | None]]) -> None:
    inventory = scan(laptop().root())
    now = 1_800_000_000.0
    condition = present(GPUCondition(), inventory, now)
    for kind, address, value in steps:
        now += 1
        match kind, value:
            case "aer", int(count):
                condition = counted(condition, address, AERCounts(fatal=count), now)
            case "wedged", str(methods):
                condition = wedged(condition, address, methods, now)
            case "xid", int(number):
                condition = xid(condition, address, number, now)
            case _:
                condition = handled(condition, "bind", address)
        assert set(taints(condition)) == {one.device for one in report(condition) if one.message}
    for address in ADDRESSES:
        condition = wedged(condition, address, "none", now)
    assert taints(expired(condition, now + 3600)) == {}
