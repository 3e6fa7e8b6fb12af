import pytest

from dranode.api.errors import ClaimConflictError, ClaimError
from dranode.api.resource import DeviceAttribute, ResourceClaimConsumerReference
from dranode.cdi.spec import ContainerEdits, Mount
from dranode.driver.claims.record import ClaimState, record_of
from dranode.memory.config import MemoryPolicy, MemorySharing
from dranode.memory.devices import GivenMemory, memory_description, memory_impairments
from dranode.memory.options import MemoryGroupBy, MemoryOptions
from tests.fakes.memory import GIB, MIB, claim, config, devices, granted, holding, inventory, result

MEMORY, HUGE = "memory-numa0", "hugepages-2m-numa1"


def refusal(*results: tuple[str, str | None], **others: dict[str, int]) -> str:
    with pytest.raises(ClaimError) as caught:
        granted(claim([result(*each) for each in results]), holding(**others))
    return str(caught.value)


def test_a_claim_gets_its_allocation_on_the_devices_nodes() -> None:
    grant = granted(claim([result(MEMORY, "2Gi"), result(HUGE, "128Mi", "pages")]))
    assert [GivenMemory.of(each) for each in grant.grants] == [
        GivenMemory(nodes=devices()[0].mems, size=2 * GIB),
        GivenMemory(nodes=devices()[3].mems, size=128 * MIB, page_size=2 * MIB),
    ]
    assert [each.amount for each in grant.grants] == [2 * GIB, 128 * MIB]
    assert (grant.cpus, grant.held) == (devices()[0].mems - devices()[0].mems,) * 2


def test_containers_get_variables_of_the_claim_and_of_the_requests_that_they_name() -> None:
    grant = granted(claim([result(MEMORY, "2Gi"), result(HUGE, "128Mi", "pages")]))
    assert grant.edits == ContainerEdits(env=("DRANODE_MEMS_uid-1=0-1",))
    assert [each.edits for each in grant.grants] == [
        ContainerEdits(env=("DRANODE_MEMORY_uid-1_0=0", "DRANODE_MEMPOLICY_uid-1_0=bind:0")),
        ContainerEdits(env=("DRANODE_MEMORY_uid-1_1=1", "DRANODE_MEMPOLICY_uid-1_1=bind:1")),
    ]
    assert grant.grants[1].attributes == {
        "dra.memory/allocatedSize": DeviceAttribute(int_=128 * MIB),
        "dra.memory/numaNodes": DeviceAttribute(string="1"),
        "dra.memory/policy": DeviceAttribute(string="bind"),
    }


def test_a_claim_of_a_group_gets_all_nodes_of_the_group() -> None:
    whole = devices(options=MemoryOptions(group_by=MemoryGroupBy.MACHINE))
    asked = claim([result("memory-machine", "20Gi")], [config(policy="interleave", sharing="pod")])
    (grant,) = granted(asked, on=whole).grants
    given = GivenMemory.of(grant)
    assert given is not None
    assert (str(given.nodes), given.policy, given.sharing) == ("0-1", MemoryPolicy.INTERLEAVE, MemorySharing.POD)
    assert grant.edits is not None
    assert grant.edits.env[1] == "DRANODE_MEMPOLICY_uid-1_0=interleave:0-1"
    assert memory_description(grant) == {"bytes": 20 * GIB, "numaNodes": [0, 1], "policy": "interleave"}


def test_a_mount_on_request_is_a_hugetlbfs_of_the_pages() -> None:
    (grant,) = granted(claim([result(HUGE, "128Mi")], [config(mount="/dev/hugepages")])).grants
    assert grant.edits is not None
    assert grant.edits.mounts == (
        Mount(
            host_path="hugetlbfs",
            container_path="/dev/hugepages",
            type="hugetlbfs",
            options=("nosuid", "nodev", "pagesize=2M", f"size={128 * MIB}", "mode=1777"),
        ),
    )
    assert memory_description(grant)["pageSize"] == "2m"


def test_a_mount_needs_huge_pages_and_a_path_belongs_to_one_request() -> None:
    with pytest.raises(ClaimError, match="memory-numa0 has no huge pages; leave out mount"):
        granted(claim([result(MEMORY, "1Gi")], [config(mount="/dev/hugepages")]))
    both = [result(HUGE, "2Mi", "small"), result("hugepages-1g-numa1", "1Gi", "large")]
    with pytest.raises(ClaimError, match=r'request "large" .* and request "small" .* both have a mount at /h'):
        granted(claim(both, [config(mount="/h")]))
    named = [config(("small",), mount="/h"), config(("large",), mount="/g")]
    paths = [each.edits.mounts[0].container_path for each in granted(claim(both, named)).grants if each.edits]
    assert paths == ["/h", "/g"]


def test_admin_access_holds_nothing_and_gets_no_variable() -> None:
    grant = granted(claim([result(HUGE, "1Gi", admin_access=True)]), holding(other={HUGE: GIB}))
    (only,) = grant.grants
    assert (grant.edits, only.edits, only.amount, only.admin) == (None, None, 0, True)
    assert memory_description(only) == {}


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        (None, 'capacity "size" of device "hugepages-2m-numa1" is missing'),
        ("0", "not a positive multiple of 2Mi"),
        ("-2Mi", "not a positive multiple of 2Mi"),
        ("3Mi", "not a positive multiple of 2Mi"),
        ("100m", "not a positive multiple of 2Mi"),
    ],
)
def test_an_invalid_amount_is_refused(size: str | None, sentence: str) -> None:
    assert sentence in refusal((HUGE, size))


def test_claims_never_hold_more_than_a_device_has() -> None:
    room = claim([result(HUGE, "512Mi")])
    assert granted(room, holding(other={HUGE: 512 * MIB})).grants[0].amount == 512 * MIB
    with pytest.raises(ClaimConflictError) as caught:
        granted(room, holding(other={HUGE: 514 * MIB}, one={MEMORY: GIB}))
    assert str(caught.value) == (
        'request "mem" of claim default/claim was allocated 512Mi of hugepages-2m-numa1, which has 510Mi of 1Gi left; '
        "the rest is held by default/other"
    )


def test_a_claim_that_could_never_fit_is_refused_for_good() -> None:
    assert "which has 1Gi of 1Gi left; delete the claim" in refusal((HUGE, "2Gi"))
    with pytest.raises(ClaimError) as caught:
        granted(claim([result(HUGE, "1Gi"), result(HUGE, "2Mi", "more")]))
    assert not isinstance(caught.value, ClaimConflictError)
    assert 'request "more"' in str(caught.value)


def test_claims_are_impaired_when_the_machine_has_less_than_they_hold() -> None:
    asked = claim([result(HUGE, "1Gi")])
    pods = (ResourceClaimConsumerReference(resource="pods", name="p", uid="u"),)
    record = record_of(asked, granted(asked), pods, ClaimState.COMPLETED)
    assert record.amounts == {HUGE: GIB}

    def found(machine: str) -> list[str]:
        return [each.message for each in memory_impairments(inventory(machine), [record])]

    assert found("sockets=2,cores=4") == []
    (sentence,) = found("sockets=2,cores=4,hugepages2m=256")
    assert sentence.startswith("claims hold 1Gi of hugepages-2m-numa1, but the machine has only 512Mi for claims now")
    (none,) = found("sockets=2,cores=4,hugepages2m=0")
    assert "has only 0 for claims" in none
    assert none.endswith("its 1Gi: reserve the pages again, or recreate its pods")
    # Ordinary memory drifts with each boot, and cannot be reserved again.
    asked = claim([result(MEMORY, "14Gi")])
    record = record_of(asked, granted(asked), pods, ClaimState.COMPLETED)
    assert found("sockets=2,cores=4,memory=15Gi")[0].endswith("its 14Gi: recreate its pods")
