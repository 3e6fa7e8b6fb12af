import pytest

from dranode.cdi.spec import CDIDevice, ContainerEdits, DeviceNode, IntelRdt, Mount, NetDevice, Spec
from dranode.cdi.version import VERSIONS, minimum_version, version_problem, with_minimum_version

ENV = ContainerEdits(env=("A=1",))

# The library's version tests (reference sheet nri-cdi, B3): which content requires which version.
EDITS = [
    ("0.3.0", ENV),
    ("0.3.0", ContainerEdits(mounts=(Mount(host_path="/a", container_path="/b"),))),
    ("0.4.0", ContainerEdits(mounts=(Mount(host_path="/a", container_path="/b", type="bind"),))),
    ("0.5.0", ContainerEdits(device_nodes=(DeviceNode(path="/dev/a", host_path="/dev/a"),))),
    ("0.7.0", ContainerEdits(additional_gids=(5,))),
    ("0.7.0", ContainerEdits(intel_rdt=IntelRdt())),
    ("0.7.0", ContainerEdits(intel_rdt=IntelRdt(clos_id="a"))),
    ("1.1.0", ContainerEdits(intel_rdt=IntelRdt(schemata=()))),
    ("1.1.0", ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=True))),
    ("1.1.0", ContainerEdits(net_devices=(NetDevice(host_interface_name="a", name="b"),))),
]


def _spec(*devices: CDIDevice, kind: str = "example.com/cpu", edits: ContainerEdits | None = None) -> Spec:
    return Spec(cdi_version="", kind=kind, devices=devices, container_edits=edits or ContainerEdits())


@pytest.mark.parametrize(("version", "edits"), EDITS)
def test_edits_of_a_device_or_the_spec_require_a_version(version: str, edits: ContainerEdits) -> None:
    plain = CDIDevice(name="d", container_edits=ENV)
    user = CDIDevice(name="e", container_edits=edits)
    assert minimum_version(_spec(user, plain)) == version
    assert minimum_version(_spec(plain, user)) == version
    assert minimum_version(_spec(plain, edits=edits)) == version


def test_names_and_annotations_require_a_version() -> None:
    device = CDIDevice(name="d", container_edits=ENV)
    assert minimum_version(_spec(CDIDevice(name="0d", container_edits=ENV), device)) == "0.5.0"
    assert minimum_version(_spec(device, kind="example.com/a.b")) == "0.6.0"
    assert minimum_version(_spec(CDIDevice(name="d", container_edits=ENV, annotations={"a": "b"}))) == "0.6.0"
    assert minimum_version(Spec(cdi_version="", kind="a/b", devices=(device,), annotations={"a": "b"})) == "0.6.0"


def test_the_highest_required_version_counts() -> None:
    mount = Mount(host_path="/a", container_path="/b", type="bind")
    node = DeviceNode(path="/a", host_path="/b")
    edits = ContainerEdits(mounts=(mount,), device_nodes=(node,))
    device = CDIDevice(name="d", container_edits=edits, annotations={"a": "b"})
    assert minimum_version(_spec(device)) == "0.6.0"
    assert minimum_version(_spec(device, edits=ContainerEdits(additional_gids=(5,)))) == "0.7.0"


@pytest.mark.parametrize(("version", "edits"), EDITS)
def test_the_minimum_is_accepted_and_the_version_before_it_is_not(version: str, edits: ContainerEdits) -> None:
    spec = with_minimum_version(_spec(CDIDevice(name="d", container_edits=edits)))
    assert spec.cdi_version == version
    assert version_problem(spec) is None
    older = VERSIONS[: VERSIONS.index(version)]
    for before in older:
        low = Spec(cdi_version=before, kind=spec.kind, devices=spec.devices)
        assert f"needs {version}" in str(version_problem(low))


@pytest.mark.parametrize("declared", [*VERSIONS, "v1.1.0"])
def test_every_version_from_0_3_0_is_accepted_with_or_without_a_v(declared: str) -> None:
    spec = Spec(cdi_version=declared, kind="a/b", devices=(CDIDevice(name="d", container_edits=ENV),))
    assert version_problem(spec) is None


@pytest.mark.parametrize(
    "declared", ["0.1.0", "v0.2.0", "1.2.0", "1.1", "0.3", " 0.3.0", "vv0.3.0", "", "not-a-version"]
)
def test_other_versions_are_refused_and_shown(declared: str) -> None:
    spec = Spec(cdi_version=declared, kind="a/b", devices=(CDIDevice(name="d", container_edits=ENV),))
    assert f'"{declared}"' in str(version_problem(spec))


def test_the_library_misses_a_host_path_and_a_mount_type_in_all_devices_but_the_last() -> None:
    plain = CDIDevice(name="d", container_edits=ENV)
    for version, edits in EDITS[2:4]:
        user = CDIDevice(name="e", container_edits=edits)
        first = Spec(cdi_version="0.3.0", kind="a/b", devices=(user, plain))
        last = Spec(cdi_version="0.3.0", kind="a/b", devices=(plain, user))
        assert version_problem(first) is None
        assert f"needs {version}" in str(version_problem(last))
