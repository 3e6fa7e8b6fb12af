"""Random CDI specs: a spec reads back as it was written, its version is minimal, and every input gets a verdict."""

import json
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranode.cdi.directory import encode_spec
from dranode.cdi.document import load_spec
from dranode.cdi.names import parse_qualified_name, qualified_name
from dranode.cdi.rules import HOOK_NAMES, NODE_TYPES, spec_problems, validate
from dranode.cdi.spec import (
    INT64,
    UINT32,
    CDIDevice,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)
from dranode.cdi.version import VERSIONS, minimum_version, with_minimum_version


def _examples(count: int) -> settings:
    # A busy machine is slow, not wrong.
    return settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])


# Every character that a file can contain; no surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
filled = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
variables = st.builds(lambda name, value: f"{name}={value}", st.from_regex(r"[A-Z ][^=]{0,5}", fullmatch=True), texts)
envs = st.lists(variables, max_size=3).map(tuple)
whole = st.none() | st.integers(INT64.start, INT64.stop - 1)
unsigned = st.none() | st.integers(0, UINT32.stop - 1)
nodes = st.builds(
    DeviceNode,
    path=filled,
    host_path=texts,
    type=st.sampled_from(NODE_TYPES),
    major=whole,
    minor=whole,
    file_mode=unsigned,
    permissions=st.sampled_from(["", "r", "rw", "rwm", "none"]),
    uid=unsigned,
    gid=unsigned,
)
hooks = st.builds(
    Hook,
    hook_name=st.sampled_from(HOOK_NAMES),
    path=filled,
    args=st.lists(texts, max_size=2).map(tuple),
    env=envs,
    timeout=whole,
)
mounts = st.builds(
    Mount, host_path=filled, container_path=filled, options=st.lists(texts, max_size=2).map(tuple), type=texts
)
rdts = st.builds(
    IntelRdt,
    clos_id=st.sampled_from(["", "/", "guaranteed"]),
    l3_cache_schema=texts,
    schemata=st.none() | st.lists(texts, max_size=2).map(tuple),
    enable_monitoring=st.booleans(),
)
net_devices = st.lists(filled, unique=True, max_size=2).map(
    lambda names: tuple(NetDevice(host_interface_name=name, name=f"{name}x") for name in names)
)
all_edits = st.builds(
    ContainerEdits,
    env=envs,
    device_nodes=st.lists(nodes, max_size=2).map(tuple),
    net_devices=net_devices,
    hooks=st.lists(hooks, max_size=2).map(tuple),
    mounts=st.lists(mounts, max_size=2).map(tuple),
    intel_rdt=st.none() | rdts,
    additional_gids=st.lists(st.integers(0, UINT32.stop - 1), max_size=2).map(tuple),
)
device_names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,6}[A-Za-z0-9])?", fullmatch=True)
labels = st.dictionaries(texts, texts, max_size=2)
kinds = st.from_regex(r"[a-z][a-z0-9]{1,5}(\.[a-z]{1,3})?/[A-Za-z][A-Za-z0-9_.-]{0,4}[A-Za-z0-9]", fullmatch=True)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    names = draw(st.lists(device_names, unique=True, min_size=1, max_size=3))
    devices = tuple(
        CDIDevice(name=name, container_edits=draw(all_edits.filter(bool)), annotations=draw(labels)) for name in names
    )
    return Spec(
        cdi_version=draw(st.sampled_from(VERSIONS)),
        kind=draw(kinds),
        annotations=draw(labels),
        devices=devices,
        container_edits=draw(all_edits),
    )


@given(specs())
@_examples(40)
def test_a_spec_loads_and_reads_back_as_it_was_written(spec: Spec) -> None:
    written = with_minimum_version(spec)
    data = encode_spec(written)
    assert b"\n" not in data
    # Drivers read it as JSON, runtimes as YAML.
    assert msgspec.json.decode(data, type=Spec) == written
    assert load_spec(data) == written
    assert validate(data).ok


@given(specs(), specs())
@_examples(25)
def test_more_content_never_needs_a_lower_version(one: Spec, other: Spec) -> None:
    renamed = tuple(msgspec.structs.replace(device, name=f"{device.name}.other") for device in other.devices)
    both = msgspec.structs.replace(one, devices=one.devices + renamed)
    alone = msgspec.structs.replace(other, kind=one.kind, annotations={}, container_edits=ContainerEdits())
    needs = [VERSIONS.index(minimum_version(spec)) for spec in (one, alone)]
    assert VERSIONS.index(minimum_version(both)) == max(needs)


@given(specs())
@_examples(40)
def test_the_library_accepts_a_spec_at_its_minimum_version_and_at_every_later_one(spec: Spec) -> None:
    first = VERSIONS.index(minimum_version(spec))
    for version in VERSIONS[first:]:
        assert spec_problems(msgspec.structs.replace(spec, cdi_version=version)) == ()
    # With one device the library sees every use of a feature, so it refuses every lower version.
    single = msgspec.structs.replace(spec, devices=spec.devices[:1])
    for version in VERSIONS[: VERSIONS.index(minimum_version(single))]:
        (problem,) = spec_problems(msgspec.structs.replace(single, cdi_version=version))
        assert problem.path == "cdiVersion"


@given(kinds, device_names)
@_examples(100)
def test_a_qualified_name_names_the_kind_and_the_device(kind: str, device: str) -> None:
    name = parse_qualified_name(qualified_name(kind, device))
    assert (f"{name.vendor}/{name.device_class}", name.device) == (kind, device)


@given(st.binary(max_size=200))
@_examples(100)
def test_any_bytes_have_a_verdict(data: bytes) -> None:
    verdict = validate(data)
    assert verdict.ok == (not verdict.problems)


_YAML_PIECES = st.sampled_from(
    [
        *" \t\n:-?[]{},&*!|>'\"%#\\~",
        "- ",
        ": ",
        "---\n",
        "<<: ",
        "*a",
        "&a ",
        "!!int ",
        "\ufeff",
        "\x85",
        "é",
        "0x",
        "1_",
    ]
)


@given(st.lists(_YAML_PIECES | texts, max_size=30).map("".join))
@_examples(150)
def test_any_text_that_looks_like_yaml_has_a_verdict(text: str) -> None:
    assert validate(text.encode()).problems


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["env", "name", "kind", "path", "x"]), inner)
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries({"cdiVersion": st.just("1.1.0"), "kind": st.just("a.b/cc")}, optional={"annotations": plain}),
    st.dictionaries(
        st.sampled_from(["env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"]), plain
    ),
)
@_examples(100)
def test_any_json_in_the_place_of_edits_has_a_verdict_with_a_place(top: dict[str, Any], edits: dict[str, Any]) -> None:
    text = json.dumps(top | {"devices": [{"name": "d", "containerEdits": edits}]}, ensure_ascii=False)
    verdict = validate(text.encode(errors="replace"))
    for problem in verdict.problems:
        assert problem.path.startswith(("devices[0]", "annotations")) or problem.message.startswith(("line", "byte"))
