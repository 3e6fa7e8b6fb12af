"""What claims are granted in the grouped modes; vectors A.7 of ../vectors/cpu.json and the rows of A.9."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import ClaimConflictError, ClaimError
from dranode.api.resource import DeviceAttribute, DeviceRequestAllocationResult
from dranode.cdi.spec import ContainerEdits
from dranode.cpu.devices import cpu_devices
from dranode.cpu.grant import adopted
from dranode.cpu.options import CPUOptions, GroupBy, Isolation, Order, Threads
from dranode.cpu.topology import Topology
from dranode.driver.claims.grant import ClaimGrant
from tests.fakes.cpu import MACHINES, claim, config, cpus, granted, holding, own, result
from tests.fakes.topology import regular

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/cpu.json").read_text())["A.7"]
NUMA = CPUOptions()
SOCKET = CPUOptions(group_by=GroupBy.SOCKET)
MACHINE = CPUOptions(group_by=GroupBy.MACHINE)
SMT = regular(sockets=1, numa=2, l3=1, cores=4, threads=2)


def replace_capacity(one: DeviceRequestAllocationResult, name: str) -> DeviceRequestAllocationResult:
    """The result with its consumed capacity under another name."""
    return msgspec.structs.replace(one, consumed_capacity={name: one.consumed_capacity["dra.cpu/cpu"]})


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: f"{row['topo']}-{row['groupBy']}-{row['want']}")
def test_grouped_claims_get_the_published_answers(row: dict[str, Any]) -> None:
    reserved = cpus(row.get("reserved", ""))
    options = CPUOptions(group_by=GroupBy(row["groupBy"]), reserved=reserved, order=Order.REFERENCE)
    takes = row.get("takeList") or [["req", device, amount] for device, amount in row["take"].items()]
    asked = claim(
        [result(device, amount, request) for request, device, amount in takes],
        [config({"cpuset": row["opaque"]})] if "opaque" in row else [],
    )
    held = holding(other=row["held"]) if "held" in row else holding()
    if row["want"] == "error":
        with pytest.raises(ClaimError):
            granted(MACHINES[row["topo"]], asked, options, held)
    else:
        got = granted(MACHINES[row["topo"]], asked, options, held)
        assert (str(got.cpus), str(got.held)) == (row["want"], row["want"])


@pytest.mark.parametrize(
    ("amount", "phrase"),
    [
        ("500m", "must be a whole number, got 500m"),
        ("1500m", "must be a whole number, got 1500m"),
        ("0", "must be positive, got 0"),
        ("-1", "must be positive, got -1"),
        (None, 'CPU capacity "dra.cpu/cpu" for device "cpudevnuma000" is missing'),
    ],
)
def test_a_capacity_that_is_not_a_number_of_cpus_is_refused(amount: str | None, phrase: str) -> None:
    with pytest.raises(ClaimError, match=phrase):
        granted(MACHINES["M1"], claim([result("cpudevnuma000", amount)]))


def test_the_amount_is_read_under_either_name_of_the_capacity() -> None:
    short = replace_capacity(result("cpudevnuma000", 2), "cpu")
    assert (
        granted(MACHINES["M1"], claim([short])).cpus
        == granted(MACHINES["M1"], claim([result("cpudevnuma000", 2)])).cpus
    )


def test_a_capacity_of_another_domain_is_not_a_number_of_cpus() -> None:
    with pytest.raises(ClaimError, match=r'CPU capacity "dra.cpu/cpu" for device "cpudevnuma000" is missing'):
        granted(MACHINES["M1"], claim([replace_capacity(result("cpudevnuma000", 2), "other.example.com/cpu")]))


class TestOpaqueCpusets:
    """A.9: machine M4, machine grouping, two CPUs; the request is named like the claim."""

    def grant(self, *configs: Any, name: str = "claim-1", held: str = "", reserved: str = "", request: str = "") -> Any:
        asked = claim([result("cpudevmachine", 2, request or name)], configs, name)
        options = CPUOptions(group_by=GroupBy.MACHINE, reserved=cpus(reserved))
        return granted(MACHINES["M4"], asked, options, holding(other=held) if held else None)

    @staticmethod
    def form2(cpuset: str, version: str = "v1alpha1") -> dict[str, Any]:
        return {"apiVersion": version, "cpuConfig": {"cpuset": cpuset}}

    @pytest.mark.parametrize(("name", "cpuset"), [("claim-1", "0,4"), ("claim-2", "1,5")])
    def test_a_cpuset_is_granted_exactly(self, name: str, cpuset: str) -> None:
        got = self.grant(config(self.form2(cpuset)), name=name)
        assert got.edits == ContainerEdits(env=(f"DRA_CPUSET_{name}={cpuset}",))

    def test_cpus_of_another_claim_are_a_conflict_with_the_holder_named(self) -> None:
        with pytest.raises(
            ClaimConflictError,
            match=r"of claim default/claim-2: .* conflict with already allocated claims; 4 held by default/other",
        ):
            self.grant(config(self.form2("4,5")), name="claim-2", held="0,4")

    def test_an_unknown_version_is_refused(self) -> None:
        with pytest.raises(ClaimError, match='unsupported opaque config apiVersion: "v1beta1"'):
            self.grant(config(self.form2("2,6", "v1beta1")))

    def test_a_cpuset_from_a_class_is_refused(self) -> None:
        with pytest.raises(
            ClaimError, match="opaque config: configuration from DeviceClass is not supported by this driver"
        ):
            self.grant(config(self.form2("2,6"), source="FromClass"))

    def test_a_configuration_for_another_request_is_ignored(self) -> None:
        with pytest.raises(ClaimError, match="is targeted by 0 configurations, must be targeted by exactly 1"):
            self.grant(config(self.form2("2,6"), ("different-request-name",)))

    def test_two_cpusets_for_one_request_are_refused(self) -> None:
        with pytest.raises(ClaimError, match="is targeted by 2 configurations, must be targeted by exactly 1"):
            self.grant(config(self.form2("2,6")), config({"cpuset": "2,6"}))

    @pytest.mark.parametrize("requests", [(), ("claim-1", "req-2")])
    def test_a_configuration_for_all_or_several_requests_applies(self, requests: tuple[str, ...]) -> None:
        assert str(self.grant(config(self.form2("2,6"), requests)).cpus) == "2,6"

    @pytest.mark.parametrize("requests", [("claim-1",), ("claim-1/selected",)])
    def test_a_configuration_may_name_a_subrequest_or_its_request(self, requests: tuple[str, ...]) -> None:
        got = self.grant(config(self.form2("2,6"), requests), request="claim-1/selected")
        assert (str(got.cpus), got.grants[0].request) == ("2,6", "claim-1/selected")

    def test_cpus_that_are_not_online_are_named(self) -> None:
        machine = replace(MACHINES["M4"], offline=cpus("8"))
        for named, said in (
            ("99,100", "contain offline cores: 99-100; this machine has no CPU 99-100, only 0-8"),
            ("0,8", "contain offline cores: 8"),
        ):
            asked = claim([result("cpudevmachine", 2)], [config(self.form2(named))])
            with pytest.raises(ClaimError) as raised:
                granted(machine, asked, CPUOptions(group_by=GroupBy.MACHINE))
            assert str(raised.value).endswith(said)

    def test_reserved_cpus_are_named(self) -> None:
        with pytest.raises(ClaimError, match="contain reserved cores: 0"):
            self.grant(config(self.form2("0,4")), reserved="0-1")

    def test_one_cpuset_for_two_results_is_granted_once(self) -> None:
        asked = claim([result("cpudevmachine", 2, "a"), result("cpudevmachine", 2, "b")], [config(self.form2("0,4"))])
        with pytest.raises(ClaimError, match="are already assigned to another device in this claim: 0,4"):
            granted(MACHINES["M4"], asked, MACHINE)

    def test_a_cpuset_must_have_the_size_of_the_allocated_capacity(self) -> None:
        with pytest.raises(ClaimError, match="opaque config cpuset size 3 does not match requested capacity 2"):
            self.grant(config({"cpuset": "0-2"}))

    def test_policies_may_be_combined_with_one_cpuset(self) -> None:
        got = self.grant(config(own(sharing="pod"), source="FromClass"), config(own(cpuset="2,6")))
        assert (str(got.cpus), got.grants[0].state) == ("2,6", {"sharing": "pod"})


def test_machine_grouping_never_picks() -> None:
    with pytest.raises(ClaimError, match='request "req" is targeted by 0 configurations'):
        granted(MACHINES["M4"], claim([result("cpudevmachine", 2)]), MACHINE)


def test_a_cpuset_stays_inside_the_group_that_was_allocated() -> None:
    asked = claim([result("cpudevnuma000", 2)], [config({"cpuset": "0,2"})])
    with pytest.raises(ClaimError, match="contain cores outside cpudevnuma000, which has 0-1,4-5: 2"):
        granted(MACHINES["M4"], asked)
    asked = claim([result("cpudevnuma000", 2)], [config({"cpuset": "1,4"})])
    assert str(granted(MACHINES["M4"], asked).cpus) == "1,4"


def test_a_cpuset_that_splits_cores_is_refused_if_cores_are_whole() -> None:
    asked = claim([result("cpudevmachine", 2)], [config({"cpuset": "0-1"})])
    with pytest.raises(ClaimError, match="split cores, but this node hands out whole cores: 4-5 are missing"):
        granted(MACHINES["M4"], asked, CPUOptions(group_by=GroupBy.MACHINE, threads=Threads.FULL_CORE))


def test_a_shortage_because_of_others_is_a_conflict_that_names_them() -> None:
    asked = claim([result("cpudevnuma000", 4, "big")], name="late")
    with pytest.raises(ClaimConflictError) as raised:
        granted(MACHINES["M4"], asked, held=holding(first="0-1", second="4,6"))
    assert str(raised.value) == (
        'request "big" of claim default/late was granted 4 CPUs of cpudevnuma000, which has 1 left: 5; '
        "0-1 held by default/first and 4 by default/second"
    )


def test_more_cpus_than_a_group_has_are_refused_without_a_conflict() -> None:
    with pytest.raises(ClaimError, match="which has 3 left: 1,4-5; claims may get 4 in total: 0-1,4-5") as raised:
        granted(MACHINES["M4"], claim([result("cpudevnuma000", 5)]), held=holding(other="0"))
    assert not isinstance(raised.value, ClaimConflictError)


def test_whole_cores_that_others_have_broken_are_a_conflict() -> None:
    asked = claim([result("cpudevnuma000", 6)], [config(own(threads="full-core"))])
    with pytest.raises(ClaimConflictError, match=r"6 CPUs in whole physical cores.*; 0-1 held by default/other"):
        granted(SMT, asked, held=holding(other="0-1"))


def test_one_per_core_holds_whole_cores_and_runs_on_one_thread_of_each() -> None:
    asked = claim([result("cpudevnuma000", 8)], [config(own(threads="one-per-core"))])
    got = granted(SMT, asked)
    assert (str(got.cpus), str(got.held)) == ("0-3", "0-3,8-11")
    assert got.edits == ContainerEdits(env=("DRA_CPUSET_claim-1=0-3", "DRANODE_HELD_claim-1=0-3,8-11"))


def test_full_core_as_the_nodes_option_applies_to_claims_without_a_configuration() -> None:
    options = CPUOptions(threads=Threads.FULL_CORE)
    asked = claim([result("cpudevnuma000", 2)], [config(own(threads="any"))])
    assert str(granted(SMT, asked, options, holding(other="8-10")).cpus) == "3,11"
    with pytest.raises(ClaimConflictError, match="cannot give 2 CPUs in whole physical cores"):
        granted(SMT, asked, options, holding(other="8-11"))


def test_policies_are_passed_to_the_picker() -> None:
    asked = claim([result("cpudevnuma000", 2)], [config(own(spread={"policy": "spread"}, l3="ignore"))])
    assert str(granted(SMT, asked).cpus) == "0-1"


def test_a_later_claim_configuration_overrides_an_earlier_one_field_by_field() -> None:
    configs = [
        config(own(threads="one-per-core", sharing="pod"), source="FromClass"),
        config(own(threads="full-core")),
        config(own(cfsQuota="unlimited")),
    ]
    got = granted(SMT, claim([result("cpudevnuma000", 2)], configs))
    assert got.cpus == got.held
    assert got.grants[0].state == {"sharing": "pod", "cfsQuota": "unlimited"}


def test_admin_access_holds_nothing_and_may_name_held_cpus() -> None:
    asked = claim([result("cpudevnuma000", 4, admin_access=True)])
    got = granted(MACHINES["M4"], asked, held=holding(other="0-1,4-5"))
    assert (str(got.cpus), str(got.held), got.edits) == ("", "", None)
    assert got.grants[0].admin


def test_a_grant_has_its_share_id_and_its_cpus_as_attributes() -> None:
    got = granted(MACHINES["M4"], claim([result("cpudevnuma000", 2, share_id="share-1")]))
    (one,) = got.grants
    assert one.share_id == "share-1"
    assert one.attributes == {
        "dra.cpu/allocatedNumCPUs": DeviceAttribute(int_=2),
        "dra.cpu/cpuset": DeviceAttribute(string="0,4"),
    }


def test_a_cpu_list_over_64_bytes_is_not_an_attribute() -> None:
    even = ",".join(str(cpu) for cpu in range(0, 64, 2))
    asked = claim([result("cpudevmachine", 32)], [config({"cpuset": even})])
    got = granted(MACHINES["M5"], asked, MACHINE)
    assert set(got.grants[0].attributes) == {"dra.cpu/allocatedNumCPUs"}


def test_local_memory_names_the_numa_nodes() -> None:
    with_memory = _with_memory(0, 1)
    asked = claim([result("cpudevmachine", 2)], [config(own(cpuset="0,2", memory="local"))])
    assert granted(with_memory, asked, MACHINE).grants[0].state == {"memory": "local", "mems": "0-1"}


def test_local_memory_is_refused_if_the_nodes_have_none() -> None:
    asked = claim([result("cpudevmachine", 2)], [config(own(cpuset="0,2", memory="local"))])
    with pytest.raises(ClaimError, match="CPUs 2 are on NUMA node 1, which has no memory"):
        granted(_with_memory(0), asked, MACHINE)


@pytest.mark.parametrize(("has", "mems"), [("0,2", "0-1"), ("0,8-9", "0"), ("8-9", "")])
def test_a_recovered_claim_with_offline_cpus_has_the_memory_of_its_other_cpus(has: str, mems: str) -> None:
    asked = claim([result("cpudevmachine", 2)], [config(own(memory="local"))])
    found = ClaimGrant(grants=(), cpus=cpus(has), held=cpus(has))
    (grant,) = adopted(asked, found, _with_memory(0, 1), MACHINE)
    assert grant.state.get("mems", "") == mems


def test_local_memory_is_refused_if_the_kernel_does_not_report_its_numa_nodes() -> None:
    asked = claim([result("cpudevmachine", 2)], [config(own(cpuset="0,2", memory="local"))])
    with pytest.raises(ClaimError, match="but the kernel does not report which NUMA nodes have memory; leave out"):
        granted(_with_memory(), asked, MACHINE)
    nowhere = replace(
        MACHINES["M4"], cpus={number: replace(cpu, numa=None) for number, cpu in MACHINES["M4"].cpus.items()}
    )
    with pytest.raises(ClaimError, match="but no NUMA node lists CPUs 0,2; leave out"):
        granted(nowhere, asked, MACHINE)


def test_a_claim_for_the_last_shared_cpu_is_refused_if_none_is_reserved() -> None:
    asked = claim([result("cpudevnuma000", 4)])
    others = holding(other="2-3,6-7")
    with pytest.raises(ClaimError, match=r"would take 0-1,4-5, the last CPUs .*set --reserved-cpus"):
        granted(MACHINES["M4"], asked, CPUOptions(keep_shared=True), others)
    assert str(granted(MACHINES["M4"], asked, CPUOptions(), others).cpus) == "0-1,4-5"
    reserved = CPUOptions(keep_shared=True, reserved=cpus("0"))
    assert str(granted(MACHINES["M4"], claim([result("cpudevnuma000", 3)]), reserved, others).cpus) == "1,4-5"
    # Reserved CPUs that are offline cannot run containers.
    offline = CPUOptions(keep_shared=True, reserved=cpus("8"))
    with pytest.raises(ClaimError, match="the last CPUs"):
        granted(MACHINES["M4"], asked, offline, others)


def test_the_last_shared_cpu_is_a_conflict_only_if_others_hold_the_rest() -> None:
    options = CPUOptions(keep_shared=True)
    half = result("cpudevnuma000", 4)
    with pytest.raises(ClaimConflictError, match=r"2-3,6-7 held by default/other$"):
        granted(MACHINES["M4"], claim([half]), options, holding(other="2-3,6-7"))
    with pytest.raises(ClaimError, match="the last CPUs") as refusal:
        granted(MACHINES["M4"], claim([half, result("cpudevnuma001", 4, "rest")]), options)
    assert not isinstance(refusal.value, ClaimConflictError)


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(
        ClaimError, match="cpudevsocket000, which is not a group of CPUs of this node with --group-by numanode"
    ):
        granted(MACHINES["M4"], claim([result("cpudevsocket000", 2)]))


def _with_memory(*nodes: int) -> Topology:
    return replace(MACHINES["M4"], memory_nodes=frozenset(nodes))


def test_a_claim_gets_both_threads_of_its_own_core_rather_than_one_of_anothers() -> None:
    reference, held = NUMA._replace(order=Order.REFERENCE), holding(other="0")
    requests = [result("cpudevnuma000", 1, name) for name in ("a", "b")]
    assert str(granted(SMT, claim(requests), reference, held).cpus) == "1,8"
    assert str(granted(SMT, claim(requests), NUMA, held).cpus) == "1,9"


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("a",), [("None", "")]),
        (("a", "a"), [("None", ""), ("None", "")]),
        (("a/one", "a/two"), [("None", ""), ("None", "")]),
        (("a", "b"), [("0,4", "0,4"), ("2,6", "2,6")]),
        (("a", "b", "b"), [("0,4", "0,4"), ("2,6", "2,6"), ("1,5", "1,5")]),
    ],
)
def test_each_results_cpus_are_recorded_if_containers_can_use_single_requests(
    names: tuple[str, ...], parts: list[tuple[str, str]]
) -> None:
    devices = ("cpudevnuma000", "cpudevnuma001", "cpudevnuma000")
    asked = claim([result(device, 2, name) for device, name in zip(devices, names, strict=False)])
    got = granted(MACHINES["M4"], asked)
    assert [(str(grant.cpus), str(grant.held)) for grant in got.grants] == parts
    assert [grant.edits is not None for grant in got.grants] == [cpus != "None" for cpus, _ in parts]


@pytest.mark.parametrize(
    ("sharing", "told"), [((), []), (("a",), ["_0"]), (("b",), ["_1"]), (("a", "b"), ["", "_0", "_1"])]
)
def test_each_request_for_the_shared_pool_is_recorded(sharing: tuple[str, ...], told: list[str]) -> None:
    configs = [config(own(shared=True), (name,)) for name in sharing]
    results = [result(device, 2, name) for device, name in (("cpudevnuma000", "a"), ("cpudevnuma001", "b"))]
    asked = claim(results, configs)
    got = granted(MACHINES["M4"], asked)
    env = [entry for edits in (got.edits, *(grant.edits for grant in got.grants)) if edits for entry in edits.env]
    assert [entry for entry in env if "SHARED" in entry] == [
        f"DRANODE_SHARED_{asked.ref.uid}{number}=true" for number in told
    ]


def test_a_claim_with_only_admin_access_does_not_separate_its_requests() -> None:
    got = granted(MACHINES["M4"], claim([result("cpudevnuma000", 2, name, admin_access=True) for name in ("a", "b")]))
    assert [(grant.cpus, grant.held, grant.edits, grant.attributes) for grant in got.grants] == [
        (None, CPUSet(), None, {})
    ] * 2


def test_a_request_that_runs_on_one_thread_of_each_core_holds_both() -> None:
    configs = [config(own(threads="one-per-core"), ("a",))]
    got = granted(SMT, claim([result("cpudevnuma000", 4, "a"), result("cpudevnuma001", 2, "b")], configs))
    assert [grant.cpus == grant.held for grant in got.grants] == [False, True]
    assert got.grants[0].cpus is not None
    assert got.grants[0].cpus < got.grants[0].held
    assert len(got.grants[0].held) == 4


@pytest.mark.parametrize(
    ("isolation", "count", "expected"),
    [
        # Isolated and tickless ones first, then either of both, then any.
        ("partition", 2, "4-5"),
        ("quiet", 3, "2-4"),
        ("quiet", 5, "0-4"),
        ("cpuset", 2, "0-1"),
    ],
)
def test_claims_with_isolation_get_isolcpus_and_nohz_full_cpus_first(isolation: str, count: int, expected: str) -> None:
    machine = replace(regular(sockets=1, numa=1, l3=1, cores=8, threads=1), isolated=cpus("2-5"), nohz_full=cpus("4-5"))
    asked = claim([result("cpudevnuma000", count)], [config(own(isolation=isolation))])
    assert str(granted(machine, asked, CPUOptions(max_isolation=Isolation.PARTITION)).cpus) == expected


@pytest.mark.parametrize("limit", list(Isolation))
@pytest.mark.parametrize("isolation", list(Isolation))
def test_no_claim_gets_more_isolation_than_allowed(isolation: Isolation, limit: Isolation) -> None:
    asked = claim([result("cpudevnuma000", 1)], [config(own(isolation=isolation.value), source="FromClass")])
    options = CPUOptions(max_isolation=limit)
    if isolation.level > limit.level:
        with pytest.raises(
            ClaimError, match=rf"asks for isolation: {isolation}, but this node allows no more than {limit}"
        ):
            granted(MACHINES["M1"], asked, options)
    else:
        (grant,) = granted(MACHINES["M1"], asked, options).grants
        said = grant.attributes.get("dra.cpu/isolation")
        assert said == (None if isolation is Isolation.CPUSET else DeviceAttribute(string=isolation.value))


@pytest.mark.parametrize("threads", [Threads.ANY, Threads.FULL_CORE])
@pytest.mark.parametrize("group_by", [GroupBy.NUMANODE, GroupBy.SOCKET])
def test_everything_published_can_be_granted(threads: Threads, group_by: GroupBy) -> None:
    options = CPUOptions(threads=threads, group_by=group_by, keep_shared=True)
    step = 2 if threads is Threads.FULL_CORE else 1
    held: dict[str, str] = {}
    for device in cpu_devices(SMT, options, {}):
        for number in range(int(device.capacity["dra.cpu/cpu"].value.value) // step):
            asked = claim([result(device.name, step)], name=f"{device.name}-{number}")
            held[asked.ref.name] = str(granted(SMT, asked, options, holding(**held)).held)
    assert len(SMT.online - CPUSet.union(map(cpus, held.values()))) == step
