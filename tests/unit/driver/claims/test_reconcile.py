"""Decisions about claims that are unfinished or that nobody asks for any more."""

from collections.abc import Mapping
from typing import Any

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.documents import decode, encode
from dranode.api.errors import ClaimGoneError, DranodeError
from dranode.api.resource import ResourceClaim
from dranode.cdi.spec import ContainerEdits
from dranode.cpu.config import API_VERSION
from dranode.cpu.config import KIND as KIND_OF_CONFIG
from dranode.cpu.options import CPUOptions, DeviceMode
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.grant import ClaimGrant, Config, Grant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.prepare import Circumstances, decide_claim, refreshed
from dranode.driver.claims.reconcile import (
    ORPHAN_SECONDS,
    Attestation,
    Waiting,
    named,
    orphans,
    overlaps,
    refusals,
    unpublished,
    unused,
)
from dranode.driver.claims.record import Record, claim_spec, holdings, recovered
from dranode.driver.claims.users import ClaimUse, UsedClaim, used_claims
from dranode.sim.machines.forms import open_machine
from dranode.tools.readers.checkpoint import left_claims
from tests.fakes.drivers import Lamps, allocated_claim
from tests.fakes.lifecycle import KIND, cpu_claim

CPU = CPUPlugin(open_machine("sockets=1,cores=8"), CPUOptions())
INVENTORY = CPU.discover()
UID = "0d5b7e2e-31a4-4c5a-9f5e-9d2b7d6c1f00"


def left(uid: str = UID, cpus: str = "2-3") -> Record:
    return recovered(uid, ClaimGrant(grants=(), cpus=CPUSet.parse(cpus), held=CPUSet.parse(cpus)))


def use(uid: str = UID, name: str = "a", device: str = "cpudevnuma000") -> dict[str, UsedClaim]:
    return {uid: UsedClaim(ClaimRef("default", name, uid), (f"pod-{name}",), frozenset({device}))}


def told(uses: Mapping[str, UsedClaim] | None = None, *claims: ResourceClaim, **fields: Any) -> Attestation:
    return Attestation(uses=uses, claims={claim.metadata.uid: claim for claim in claims}, **fields)


def test_kubelets_answer_names_a_claim_and_its_pods() -> None:
    record = named(left(), told(use()), INVENTORY, CPU)
    assert (record.namespace, record.name, [pod.name for pod in record.pods]) == ("default", "a", ["pod-a"])
    assert (str(record.cpus), str(record.held), record.fingerprint) == ("2-3", "2-3", "")


def test_the_claim_completes_the_record_and_its_cpus_stay() -> None:
    claim = cpu_claim("a", UID, "cpudevnuma000", 2)
    record = named(left(), told(use(), claim), INVENTORY, CPU)
    assert record.devices == ("cpudevnuma000",)
    assert [(pod.name, pod.uid) for pod in record.pods] == [("pod-a", "pod-uid-a")]
    assert (str(record.cpus), str(record.held)) == ("2-3", "2-3")
    assert record.fingerprint


def test_a_refused_configuration_completes_only_the_owner_of_a_record() -> None:
    claim = cpu_claim("a", UID, "cpudevnuma000", 2)
    odd = {"source": "FromClaim", "opaque": {"driver": "dra.cpu", "parameters": {"kind": "Odd"}}}
    document = encode(claim)
    document["status"]["allocation"]["devices"]["config"] = [odd]
    record = named(left(), told(None, decode(ResourceClaim, document)), INVENTORY, CPU)
    assert (record.name, record.fingerprint, str(record.held)) == ("a", "", "2-3")


def test_a_failing_driver_completes_only_the_owner_of_a_record() -> None:
    class Fragile(Lamps):
        def parse_config(self, config: Config) -> str:
            return str(config.parameters["hue"])

    config = {"source": "FromClaim", "opaque": {"driver": Lamps.driver, "parameters": {"colour": "red"}}}
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"], uid=UID, config=[config])
    record = Record(uid=UID, grants=(Grant(request="r", pool="node", device="lamp-0"),))
    found = named(record, told(None, claim), Inventory(devices=()), Fragile())
    assert (found.name, found.fingerprint, found.devices) == ("a", "", ("lamp-0",))


def test_a_record_with_grants_is_completed_only_by_the_same_allocation() -> None:
    claim = allocated_claim("a", Lamps.driver, ["lamp-0"], uid=UID)
    grant = Grant(request="r", pool="node", device="lamp-0", edits=ContainerEdits(env=("LAMP=lamp-0",)), state={"n": 1})
    record = Record(uid=UID, grants=(grant,))
    assert not record.lost
    whole = named(record, told(None, claim), Inventory(devices=()), Lamps())
    assert (whole.grants, whole.name, bool(whole.fingerprint)) == ((grant,), "a", True)
    other = named(
        record, told(None, allocated_claim("a", Lamps.driver, ["lamp-1"], uid=UID)), Inventory(devices=()), Lamps()
    )
    assert (other.grants, other.name, other.fingerprint) == ((grant,), "a", "")


def test_a_record_stays_unchanged_without_any_answer() -> None:
    assert named(left(), Attestation(), INVENTORY, CPU) == left()


def test_another_claim_with_the_same_name_does_not_complete_a_record() -> None:
    stranger = cpu_claim("a", "another-uid", "cpudevnuma000", 2)
    answers = Attestation(claims={UID: stranger})
    assert named(left(), answers, INVENTORY, CPU) == left()
    assert answers.gone(UID)


@pytest.mark.parametrize("answers", [told(use(device="cpudev004")), told(None, cpu_claim("a", UID, "cpudev004"))])
def test_individual_claims_of_dra_driver_cpu_are_not_taken_over(answers: Attestation) -> None:
    (sentence,) = refusals([left()], answers, CPU)
    assert "was allocated device cpudev004 by dra-driver-cpu in individual mode" in sentence
    assert "drain the node while that driver runs" in sentence


@pytest.mark.parametrize("device", ["cpudevnuma000", "cpudevsocket001", "cpudevmachine", "cpu004"])
def test_claims_of_groups_and_of_this_driver_are_taken_over(device: str) -> None:
    assert refusals([left()], told(use(device=device)), CPU) == ()


def test_overlapping_claims_are_named_and_stay_held_until_both_are_gone() -> None:
    records = (left("a", "0-3"), left("b", "2-5"))
    held = Held.of(holdings(records, CPU.sources))
    assert any("claims with UID a and with UID b were both given CPUs 2-3" in each for each in overlaps(records, held))
    held.drop("a")
    assert held.cpus == CPUSet.parse("2-5")
    held.drop("b")
    assert not held.cpus


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (Attestation(uses={}, running=frozenset()), [UID]),
        (Attestation(uses=use(), running=frozenset()), []),
        (Attestation(uses={}, running=frozenset({UID})), []),
        (Attestation(uses=None, running=frozenset()), []),
        (Attestation(uses={}, running=None), []),
    ],
)
def test_a_claim_is_unused_only_if_kubelet_and_the_runtime_agree(answers: Attestation, expected: list[str]) -> None:
    assert [record.uid for record in unused([left()], answers)] == expected


def test_an_orphan_is_a_claim_that_was_deleted_or_replaced() -> None:
    records = [Record(uid=uid, namespace="default", name=uid, fingerprint="f") for uid in "abcde"]
    answers = Attestation(
        claims={
            "a": ClaimGoneError("gone"),
            "b": cpu_claim("b", "another", "cpudevnuma000"),
            "c": DranodeError("the API server does not answer"),
            "d": cpu_claim("d", "d", "cpudevnuma000"),
            "e": cpu_claim("e", "", "cpudevnuma000"),
        }
    )
    assert [record.uid for record in orphans(records, answers)] == ["a", "b"]


def test_a_claim_without_a_name_counts_as_deleted_only_if_kubelet_lists_others() -> None:
    assert orphans([left()], Attestation(uses={})) == ()
    assert orphans([left()], Attestation(uses=use("other"))) == (left(),)


def test_an_orphans_waiting_time_starts_again_after_it_was_used() -> None:
    record = left()
    waiting = Waiting().seen([record], 100.0)
    assert waiting.new_since(Waiting()) == {UID}
    assert waiting.seen([record], 100.0 + ORPHAN_SECONDS - 1).due(100.0 + ORPHAN_SECONDS - 1) == frozenset()
    assert waiting.seen([record], 100.0 + ORPHAN_SECONDS).due(100.0 + ORPHAN_SECONDS) == {UID}
    again = waiting.seen([], 200.0).seen([record], 300.0)
    assert again.due(100.0 + ORPHAN_SECONDS) == frozenset()


def test_uses_are_recognized_by_the_uid_in_a_cdi_device_before_the_name() -> None:
    def one(claim: str, *cdi: str) -> ClaimUse:
        return ClaimUse("default", "pod", "main", claim, frozenset(cdi), frozenset({"d"}))

    old, new = ClaimRef("default", "a", "old"), ClaimRef("default", "a", "new-1")
    assert used_claims([one("a", f"{KIND}=claim-new-1")], [old, new]).keys() == {"new-1"}
    assert used_claims([one("a", f"{KIND}=claim-old-0")], [old, new]).keys() == {"old"}
    assert used_claims([one("a", f"{KIND}=claim-other")], [old]).keys() == set()
    assert used_claims([one("a", "dra.cpu/metadata=old_r")], [old]).keys() == {"old"}
    assert used_claims([one("a", "dra.cpu/metadata=other_r")], [old]).keys() == set()
    assert used_claims([one("a")], [old]).keys() == {"old"}
    assert used_claims([one("b")], [old]).keys() == set()


def test_claims_on_unpublished_devices_are_reported_in_one_sentence() -> None:
    machine = open_machine("cores=4")
    grouped, individual = (CPUPlugin(machine, CPUOptions(mode=mode)).discover() for mode in DeviceMode)
    records = [
        Record(uid=name, namespace="default", name=name, grants=(Grant(request="r", pool="node", device=device),))
        for name, device in (("a", "cpudevnuma000"), ("b", "cpudevnuma000"), ("c", "cpu001"))
    ]
    assert unpublished(records[:2], grouped) is None
    assert "(2, such as cpudevnuma000 of claim default/a)" in str(unpublished(records, individual))
    assert "(1, such as cpu001 of claim default/c)" in str(unpublished(records, grouped))


def test_a_claim_recovered_from_its_spec_is_configured_and_described_as_before() -> None:
    claim = cpu_claim("a", UID, "cpudevnuma000", 2)
    wanted = {"apiVersion": API_VERSION, "kind": KIND_OF_CONFIG, "sharing": "pod", "cfsQuota": "unlimited"}
    config = {"source": "FromClaim", "opaque": {"driver": "dra.cpu", "parameters": wanted}}
    document = encode(claim)
    document["status"]["allocation"]["devices"]["config"] = [config]
    claim = decode(ResourceClaim, document)
    before = decide_claim(ClaimRef("default", "a", UID), claim, None, Circumstances(CPU, INVENTORY, Held()))
    assert isinstance(before, Record)
    assert before.grants[0].state
    assert before.grants[0].attributes
    spec = claim_spec(KIND, before, {})
    grant = CPU.recover(UID, spec)
    assert grant is not None
    back = named(recovered(UID, grant), told(None, claim), INVENTORY, CPU)
    assert back == refreshed(before, claim)


def test_a_claim_of_another_nodes_pool_does_not_complete_a_recovered_record() -> None:
    answers = told(None, cpu_claim("a", UID, "cpudevnuma000", 2))
    here, elsewhere = (named(left(), answers, INVENTORY, CPU, pool) for pool in ("node", "node-77"))
    assert (bool(here.fingerprint), bool(elsewhere.fingerprint)) == (True, False)
    assert (here.held, here.name) == (elsewhere.held, elsewhere.name) == (CPUSet((2, 3)), "a")


def test_a_claim_whose_containers_have_only_an_earlier_versions_metadata_is_in_use() -> None:
    seen = ClaimUse("default", "pod", "main", "a", frozenset({f"{Lamps.driver}/metadata={UID}_r"}))
    damaged, other = ClaimRef("", "", UID), ClaimRef("", "", "other")
    assert [claim.idle for claim in left_claims((damaged, other), (seen,))] == [False, True]
