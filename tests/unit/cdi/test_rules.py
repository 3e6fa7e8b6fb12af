import pytest

from dranode.cdi.rules import HOOK_NAMES, spec_problems
from dranode.cdi.spec import CDIDevice, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec
from dranode.cdi.version import with_minimum_version


def _spec(edits: ContainerEdits) -> Spec:
    device = CDIDevice(name="d", container_edits=edits)
    return with_minimum_version(Spec(cdi_version="", kind="example.com/cpu", devices=(device,)))


def _node(**fields: object) -> ContainerEdits:
    return ContainerEdits(device_nodes=(DeviceNode(**{"path": "/dev/a"} | fields),))  # type: ignore[arg-type] # a table


# The library's validation tests (reference sheet nri-cdi, B6 and B7).
@pytest.mark.parametrize(
    "edits",
    [
        ContainerEdits(env=("BAR=BARVALUE1", "A=", "a b=1=2")),
        _node(),
        _node(type="c"),
        _node(type="b", permissions="rwm"),
        _node(permissions="none"),
        _node(major=-1, minor=2**63 - 1, uid=2**32 - 1, gid=0, file_mode=0o666),
        ContainerEdits(mounts=(Mount(host_path="a", container_path="b"),)),
        *(ContainerEdits(hooks=(Hook(hook_name=name, path="x", timeout=-1),)) for name in HOOK_NAMES),
        ContainerEdits(intel_rdt=IntelRdt(clos_id="foo.bar")),
        ContainerEdits(intel_rdt=IntelRdt(clos_id="/")),
        ContainerEdits(intel_rdt=IntelRdt(clos_id="x" * 4095)),
        ContainerEdits(net_devices=(NetDevice(host_interface_name="eno1", name="netdev0"),)),
        ContainerEdits(additional_gids=(0,)),
    ],
)
def test_edits_within_the_rules_have_no_problem(edits: ContainerEdits) -> None:
    assert spec_problems(_spec(edits)) == ()


@pytest.mark.parametrize(
    ("edits", "path", "message"),
    [
        (ContainerEdits(), "", "is empty"),
        (ContainerEdits(env=("A=1", "=foo")), ".env[1]", '"=foo"'),
        (ContainerEdits(env=("FOOBAR",)), ".env[0]", "NAME=value"),
        (_node(path=""), ".deviceNodes[0].path", "is empty"),
        (_node(type="f"), ".deviceNodes[0].type", '"f"'),
        (_node(permissions="to land"), ".deviceNodes[0].permissions", '"to land"'),
        (_node(uid=2**32), ".deviceNodes[0].uid", "4294967296"),
        (_node(major=2**63), ".deviceNodes[0].major", "9223372036854775808"),
        (ContainerEdits(mounts=(Mount(host_path="", container_path="/b"),)), ".mounts[0].hostPath", "is empty"),
        (ContainerEdits(mounts=(Mount(host_path="/a", container_path=""),)), ".mounts[0].containerPath", "is empty"),
        (
            ContainerEdits(hooks=(Hook(hook_name="misCreateRuntime", path="/x"),)),
            ".hooks[0].hookName",
            "misCreateRuntime",
        ),
        (ContainerEdits(hooks=(Hook(hook_name="prestart", path=""),)), ".hooks[0].path", "is empty"),
        (ContainerEdits(hooks=(Hook(hook_name="prestart", path="/x", env=("=v",)),)), ".hooks[0].env[0]", '"=v"'),
        (ContainerEdits(intel_rdt=IntelRdt(clos_id="foo/bar")), ".intelRdt.closID", '"foo/bar"'),
        (ContainerEdits(intel_rdt=IntelRdt(clos_id="..")), ".intelRdt.closID", '".."'),
        (ContainerEdits(intel_rdt=IntelRdt(clos_id="é" * 2048)), ".intelRdt.closID", "4096 bytes"),
        (ContainerEdits(additional_gids=(5, -1)), ".additionalGids[1]", "-1"),
        (
            ContainerEdits(net_devices=(NetDevice(host_interface_name="", name="n"),)),
            ".netDevices[0].hostInterfaceName",
            "is empty",
        ),
        (
            ContainerEdits(
                net_devices=(NetDevice(host_interface_name="a", name="n"), NetDevice(host_interface_name="b", name="n"))
            ),
            ".netDevices[1].name",
            '"n"',
        ),
    ],
)
def test_a_broken_rule_is_named_with_its_path_and_value(edits: ContainerEdits, path: str, message: str) -> None:
    (problem,) = spec_problems(_spec(edits))
    assert problem.path == f"devices[0].containerEdits{path}"
    assert message in problem.message
    # The same edits for all devices break the same rule, but may be empty.
    device = CDIDevice(name="d", container_edits=ContainerEdits(env=("A=1",)))
    everywhere = with_minimum_version(Spec(cdi_version="", kind="a/b", devices=(device,), container_edits=edits))
    assert [problem.path for problem in spec_problems(everywhere)] == ([f"containerEdits{path}"] if path else [])


def test_every_problem_of_a_spec_is_found_at_once() -> None:
    device = CDIDevice(name="a-", container_edits=ContainerEdits())
    spec = Spec(cdi_version="9", kind="cpu", devices=(device, device))
    assert [problem.path for problem in spec_problems(spec)] == [
        "cdiVersion",
        "kind",
        "devices[0].name",
        "devices[0].containerEdits",
        "devices[1].name",
        "devices[1].containerEdits",
        "devices[1].name",
    ]


def test_a_spec_without_devices_is_refused() -> None:
    (problem,) = spec_problems(Spec(cdi_version="0.3.0", kind="a/b", devices=()))
    assert str(problem) == "devices: has no device"


def test_a_long_text_is_truncated_in_a_message() -> None:
    (problem,) = spec_problems(_spec(ContainerEdits(env=("x" * 10_000,))))
    assert len(str(problem)) < 200
    assert "10000 characters" in str(problem)
