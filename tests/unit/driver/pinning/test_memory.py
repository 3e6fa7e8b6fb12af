"""Containers whose claims hold memory, with and without CPUs: their NUMA nodes and huge pages."""

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Unread
from dranode.driver.pinning.container_index import ContainerChange, Containers, corrections, settle
from dranode.driver.pinning.containers import Container, Effective, Resources
from dranode.driver.pinning.drift import Drift, drifted, find_drifts
from dranode.driver.pinning.enforcement import Allowed, synchronize, update
from dranode.driver.pinning.identity import Evidence
from dranode.driver.pinning.snapshot import JoinedSnapshots, Part, PinnedClaim, PinnedClaims, PinSnapshot
from tests.fakes import enforcement as fake
from tests.fakes.enforcement import NONE, after, container, made, refusal

SMALL, LARGE = 2 << 20, 1 << 30
NODE_0, NODE_1, BOTH = CPUSet((0,)), CPUSet((1,)), CPUSet((0, 1))
CPU, MEMORY = "dra.cpu", "dra.memory"
UNREAD = Unread("the ledger is damaged")


def part(index: int, nodes: str, pages: int = 0, *, binds: bool = True) -> Part:
    limits = ((SMALL, pages * SMALL),) if pages else ()
    return Part(index, nodes=CPUSet.parse(nodes), binds=binds, hugepages=limits)


def memory(uid: str, *parts: Part, pods: tuple[str, ...] = ("p1",), shared: bool = False) -> PinnedClaim:
    ref = ClaimRef("default", f"claim-{uid}", uid)
    return PinnedClaim(ref, pods=frozenset(pods), shared_in_pod=shared).with_parts(parts)


def machine(*claims: PinnedClaim, exclusive: bool = False, sizes: tuple[int, ...] = (SMALL, LARGE)) -> PinSnapshot:
    """Only the memory driver, on a machine of two NUMA nodes."""
    return PinSnapshot(
        PinnedClaims.of(claims),
        mems=BOTH,
        variable="DRANODE_MEMS_",
        part_variable="DRANODE_MEMORY_",
        cdi_kind="dra.memory/claim",
        pins_cpus=False,
        page_sizes=sizes,
        exclusive_pages=exclusive,
    )


def both(cpus: PinSnapshot, mems: PinSnapshot) -> PinSnapshot:
    joined = JoinedSnapshots()
    joined.put(CPU, cpus)
    return joined.put(MEMORY, mems)


def of(uid: str, *indexes: int, name: str = "main", pod: str = "p1", kind: str = "dra.memory/claim") -> Container:
    devices = (f"{kind}=claim-{uid}", *(f"{kind}=claim-{uid}-{index}" for index in indexes))
    return replace(container(name, pod), cdi_devices=devices)


def zeros(one: Container) -> Container:
    """As kubelet creates it without a request for huge pages."""
    return replace(one, hugepages=((SMALL, 0), (LARGE, 0)))


class TestAlone:
    def test_a_container_gets_its_claims_nodes_and_pages_and_keeps_its_cpus(self) -> None:
        given = made(NONE, machine(memory("a", part(0, "1"), part(1, "1", 8))), zeros(of("a", 0, 1))).resources
        assert given == Resources(CPUSet(), NODE_1, hugepages=((SMALL, 8 * SMALL),))

    def test_a_container_without_a_claim_gets_nothing(self) -> None:
        assert not made(NONE, machine(memory("a", part(0, "1"))), container("other", "p2")).resources

    def test_if_the_node_is_ours_a_container_without_a_claim_gets_no_huge_pages(self) -> None:
        on_record = machine(memory("a", part(0, "1", 8)), exclusive=True)
        assert made(NONE, on_record, container("other", "p2")).resources.hugepages == ((SMALL, 0), (LARGE, 0))
        asked = replace(of("a", 0), hugepages=((SMALL, 99 * SMALL),))
        assert made(NONE, on_record, asked).resources.hugepages == ((SMALL, 8 * SMALL), (LARGE, 0))

    def test_kubelets_limits_are_raised_and_never_lowered(self) -> None:
        on_record = machine(memory("a", part(0, "1", 8)))
        for own, limit in ((0, 8), (4, 8), (20, 20)):
            asked = replace(of("a", 0), hugepages=((SMALL, own * SMALL),))
            assert made(NONE, on_record, asked).resources.hugepages == ((SMALL, limit * SMALL),)

    def test_page_sizes_that_no_runtime_can_limit_are_left_unchanged(self) -> None:
        on_record = machine(memory("a", part(0, "1", 8)), exclusive=True, sizes=())
        assert made(NONE, on_record, of("a", 0)).resources == Resources(mems=NODE_1)

    def test_a_container_gets_the_results_of_the_requests_that_it_names(self) -> None:
        on_record = machine(memory("a", part(0, "0", 2), part(1, "1", 8)))
        assert made(NONE, on_record, of("a", 1)).resources == Resources(mems=NODE_1, hugepages=((SMALL, 8 * SMALL),))
        by_variable = container("x", env=("DRANODE_MEMS_a=0-1", "DRANODE_MEMORY_a_0=0"))
        assert made(NONE, on_record, by_variable).resources == Resources(mems=NODE_0, hugepages=((SMALL, 2 * SMALL),))

    def test_preferred_memory_binds_to_a_node_only_together_with_required_memory(self) -> None:
        liked, bound = part(0, "1", binds=False), part(1, "0")
        assert made(NONE, machine(memory("a", liked)), of("a", 0)).resources.mems == NO_CPUS
        assert made(NONE, machine(memory("a", liked, bound)), of("a", 0, 1)).resources.mems == BOTH

    def test_one_container_uses_a_claim_at_a_time_unless_its_pod_shares_it(self) -> None:
        on_record = machine(memory("a", part(0, "1"), pods=("p1", "p2")))
        containers = after(NONE, made(NONE, on_record, of("a", 0)))
        assert "in use by" in refusal(containers, on_record, of("a", 0, name="second"))
        shared = machine(memory("a", part(0, "1"), pods=("p1", "p2"), shared=True))
        assert made(containers, shared, of("a", 0, name="second")).resources.mems == NODE_1
        assert "only containers of one pod may share it" in refusal(containers, shared, of("a", 0, name="x", pod="p2"))

    def test_a_forged_variable_is_refused(self) -> None:
        on_record = machine(memory("a", part(0, "1")))
        forged = container("x", env=("DRANODE_MEMS_a=0",))
        assert 'has DRANODE_MEMS_a="0", but claim default/claim-a was given NUMA nodes 1' in refusal(
            NONE, on_record, forged
        )

    def test_existing_containers_get_what_they_lack(self) -> None:
        on_record = machine(memory("a", part(0, "1", 8)))
        listed = replace(zeros(of("a", 0)), started=True, cpus=CPUSet((0, 1)))
        other = replace(container("other", "p2"), started=True)
        decision = synchronize(on_record, (listed, other), Evidence(reread=True))
        assert isinstance(decision, Allowed)
        assert decision.unpinned == ()
        (sent,) = decision.updates
        assert (sent.container_id, sent.resources) == (
            "p1-main",
            Resources(mems=NODE_1, hugepages=((SMALL, 8 * SMALL),)),
        )
        assert settle(after(NONE, decision), on_record)[1] == ()

    def test_an_update_by_kubelet_keeps_nodes_and_pages(self) -> None:
        on_record = machine(memory("a", part(0, "1", 8)))
        mine = zeros(of("a", 0))
        containers = after(NONE, made(NONE, on_record, mine))
        asked = Resources(mems=BOTH, hugepages=((SMALL, 0), (LARGE, 0)))
        (sent,) = update(containers, on_record, mine, asked, 0).updates
        assert sent.resources == Resources(mems=NODE_1, hugepages=((SMALL, 8 * SMALL),))
        assert update(containers, on_record, mine, Resources(hugepages=((SMALL, 9 * SMALL),)), 0).updates == ()

    def test_an_update_that_did_not_arrive_is_sent_again(self) -> None:
        on_record = machine(memory("a", part(0, "1", 8)))
        containers = after(NONE, made(NONE, on_record, of("a", 0)))
        assert list(corrections(containers, on_record)) == []
        containers.apply(ContainerChange(tuple(each.with_unknown_mask() for each in containers)))
        ((_, resources),) = corrections(containers, on_record)
        assert (resources.mems, resources.hugepages) == (NODE_1, ((SMALL, 8 * SMALL),))


class TestDrift:
    ON_RECORD = machine(memory("a", part(0, "1", 8)))

    def containers(self, on_record: PinSnapshot = ON_RECORD) -> Containers:
        return after(NONE, made(NONE, on_record, of("a", 0)))

    @pytest.mark.parametrize(
        ("actual", "sentence"),
        [
            (Effective(nodes=CPUSet((0, 1))), "takes memory from NUMA nodes 0-1, but should from 1"),
            (Effective(hugepages=((SMALL, 0),)), "may have 0 in pages of 2MB, but should have 16Mi"),
        ],
    )
    def test_the_kernels_memory_settings_are_compared_and_repaired(self, actual: Effective, sentence: str) -> None:
        containers = self.containers()
        (found,) = find_drifts(containers, self.ON_RECORD, {"p1-main": actual})
        assert str(found) == f'container "main" of pod default/p1 {sentence}'
        containers.apply(drifted(containers, (found,)))
        (sent,) = settle(containers, self.ON_RECORD)[1]
        assert (sent.resources.mems, sent.resources.hugepages) == (NODE_1, ((SMALL, 8 * SMALL),))

    def test_unread_settings_are_not_drift(self) -> None:
        assert find_drifts(self.containers(), self.ON_RECORD, {"p1-main": Effective()}) == ()
        right = Effective(CPUSet((5,)), CPUSet((1,)), ((SMALL, 8 * SMALL), (LARGE, 0)))
        assert find_drifts(self.containers(), self.ON_RECORD, {"p1-main": right}) == ()

    def test_a_limit_that_somebody_raised_stays_unless_the_node_is_ours(self) -> None:
        raised = {"p1-main": Effective(hugepages=((SMALL, (1 << 63) - 1),))}
        assert find_drifts(self.containers(), self.ON_RECORD, raised) == ()
        ours = replace(self.ON_RECORD, exclusive_pages=True)
        (found,) = find_drifts(self.containers(ours), ours, raised)
        assert isinstance(found, Drift)
        assert "may have any amount in pages of 2MB" in str(found)


class TestBesideCPUs:
    CPUS = fake.snapshot(fake.claim("a", "0-1"), mems="0-1")

    def on_record(self, *parts: Part, cpus: PinSnapshot = CPUS) -> PinSnapshot:
        return both(cpus, machine(memory("a", *parts)))

    def mine(self, *indexes: int) -> Container:
        one = of("a", *indexes)
        return replace(one, cdi_devices=(*one.cdi_devices, "dra.k8s.io/cpu=claim-a"))

    def test_a_container_gets_the_grants_of_both_drivers(self) -> None:
        given = made(NONE, self.on_record(part(0, "1", 4)), self.mine(0)).resources
        assert (str(given.cpus), given.mems, given.hugepages) == ("0-1", NODE_1, ((SMALL, 4 * SMALL),))

    def test_with_memory_alone_a_container_runs_on_the_shared_pool(self) -> None:
        given = made(NONE, self.on_record(part(0, "1")), of("a", 0)).resources
        assert (str(given.cpus), given.mems) == ("2-7", NODE_1)

    def test_local_memory_must_agree_with_the_memory_claim(self) -> None:
        local = fake.snapshot(fake.claim("a", "0-1", mems="0"), mems="0-1")
        assert made(NONE, self.on_record(part(0, "0"), cpus=local), self.mine(0)).resources.mems == NODE_0
        assert refusal(NONE, self.on_record(part(0, "0-1"), cpus=local), self.mine(0)) == (
            'claim default/claim-a gives container "main" of pod default/p1 memory on NUMA nodes 1, but claim '
            "default/claim-a asks for memory that is local to its CPUs, on NUMA nodes 0: align the claims with "
            "matchAttribute resource.kubernetes.io/numaNode, or remove memory: local"
        )

    def test_a_claim_that_one_driver_drops_stays_in_the_other(self) -> None:
        joined = JoinedSnapshots()
        joined.put(CPU, self.CPUS)
        joined.put(MEMORY, machine(memory("a", part(0, "1"))))
        one = joined.put(CPU, fake.snapshot())
        assert sorted(one.claims) == ["dra.memory/a"]
        assert sorted(joined.put(MEMORY, machine()).claims) == []

    def test_without_the_memory_ledger_cpus_are_enforced_and_memory_stays(self) -> None:
        known = machine(memory("a", part(0, "1", 4)))
        joined = JoinedSnapshots()
        joined.put(CPU, self.CPUS)
        whole = joined.put(MEMORY, known)
        containers = after(NONE, made(NONE, whole, self.mine(0)))
        containers = after(containers, made(containers, whole, container("other", "p2")))
        blind = joined.put(MEMORY, replace(machine(), unread=UNREAD))
        assert (blind.unread, blind.memory_unread) == (None, UNREAD)
        assert settle(containers, blind)[1] == ()
        # A CPU claim that comes meanwhile is still exclusive.
        more = joined.put(CPU, fake.snapshot(fake.claim("a", "0-1"), fake.claim("b", "2-3"), mems="0-1"))
        assert fake.masks(settle(containers, more)[1]) == {"p2-other": "4-7"}

    def test_an_unknown_claim_is_refused_with_the_reason(self) -> None:
        unread = both(self.CPUS, replace(machine(), unread=UNREAD))
        assert refusal(NONE, unread, of("b")) == (
            'container "main" of pod default/p1 names claim "b", which is not known: the ledger is damaged'
        )
        assert "which is not prepared on this node" in refusal(NONE, unread, of("b", kind="dra.k8s.io/cpu"))

    def test_a_container_that_came_meanwhile_is_not_certain(self) -> None:
        unread = both(self.CPUS, replace(machine(), unread=UNREAD))
        containers = after(NONE, made(NONE, unread, container("other", "p2")))
        assert containers.unsure
        assert not containers.certain


class TestNodesOfWhichPodsGetNone:
    def test_a_container_gets_the_nodes_of_its_claim_that_pods_may_use(self) -> None:
        limited = replace(machine(memory("a", part(0, "0-1"))), mems=NODE_0)
        assert made(NONE, limited, of("a")).resources.mems == NODE_0

    def test_if_pods_may_use_none_of_the_claims_nodes_it_gets_those_of_pods(self) -> None:
        limited = replace(machine(memory("a", part(0, "1"))), mems=NODE_0)
        assert made(NONE, limited, of("a")).resources.mems == NODE_0
