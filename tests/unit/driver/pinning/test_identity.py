"""Whose is a container? Forged variables, other pods, a silent kubelet, a runtime without CDI."""

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import PodSandbox
from dranode.driver.pinning.containers import Container
from dranode.driver.pinning.identity import AskKubelet, AskLedger, Evidence, Identity, KubeletPodClaims, identify
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims, PinSnapshot

UID = "7d3a1f64-5c0b-4a55-9d0f-3a5c8c7b1e10"
OTHER = "7d3a1f64-5c0b-4a55-9d0f-3a5c8c7b1e11"
OWNER, STRANGER = PodSandbox("s1", "p1", "default", "owner"), PodSandbox("s9", "p9", "default", "stranger")
CLAIM = PinnedClaim(ClaimRef("default", "mine", UID), CPUSet((2, 3)), CPUSet((2, 3)), frozenset(("p1",)))
SNAPSHOT = PinSnapshot(PinnedClaims.of([CLAIM]), CPUSet(range(8)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu")
TRUE = f"DRA_CPUSET_{UID}=2-3"


def container(
    *env: str, pod: PodSandbox = OWNER, cdi: tuple[str, ...] = (), cpus: tuple[int, ...] = (), name: str = "main"
) -> Container:
    return Container("c", name, pod, env=env, cdi_devices=cdi, cpus=CPUSet(cpus))


def listed(*devices: str, name: str = "main") -> Evidence:
    """kubelet's answer with these CDI devices for the stranger's container."""
    return Evidence(reread=True, pods={"p9": KubeletPodClaims({name: devices})})


def refused(identity: Identity) -> str:
    assert identity.ask is None
    assert identity.claims == ()
    (sentence,) = identity.refusals
    return sentence


def test_a_pod_on_record_needs_no_question_to_kubelet() -> None:
    assert identify(container(TRUE), SNAPSHOT, Evidence()) == Identity((CLAIM,))


def test_the_last_occurrence_of_the_variable_counts() -> None:
    """CDI libraries up to 1.1.0 append the injected variable after one that the pod's author set."""
    assert identify(container(f"DRA_CPUSET_{UID}=0-7", TRUE), SNAPSHOT, Evidence()).claims == (CLAIM,)
    forged = container(TRUE, f"DRA_CPUSET_{UID}=0-7")
    assert "was given CPUs 2-3" in refused(identify(forged, SNAPSHOT, Evidence(reread=True)))


def test_the_variables_value_is_only_compared_as_a_set() -> None:
    assert identify(container(f"DRA_CPUSET_{UID}=3,2"), SNAPSHOT, Evidence()).claims == (CLAIM,)


def test_a_cdi_device_identifies_the_claim_like_the_variable() -> None:
    for device in (f"dra.k8s.io/cpu=claim-{UID}", f"dra.k8s.io/cpu=claim-{UID}-0"):
        assert identify(container(cdi=(device,)), SNAPSHOT, Evidence()).claims == (CLAIM,)
    both = container(TRUE, cdi=(f"dra.k8s.io/cpu=claim-{UID}", f"dra.k8s.io/cpu=claim-{UID}-0"))
    assert identify(both, SNAPSHOT, Evidence()).claims == (CLAIM,)


def test_cdi_devices_of_other_drivers_are_ignored() -> None:
    other = container(cdi=("vendor.com/gpu=0", f"dra.k8s.io/cpu2=claim-{UID}", "dra.k8s.io/cpu=all"), pod=STRANGER)
    assert identify(other, SNAPSHOT, Evidence()) == Identity()


def test_a_claim_missing_in_the_snapshot_causes_a_new_read_of_the_ledger() -> None:
    for stranger in (container(f"DRA_CPUSET_{OTHER}=2-3"), container(cdi=(f"dra.k8s.io/cpu=claim-{OTHER}",))):
        assert identify(stranger, SNAPSHOT, Evidence()).ask == AskLedger()
        sentence = refused(identify(stranger, SNAPSHOT, Evidence(reread=True)))
        assert sentence == (
            f'container "main" of pod default/owner names claim "{OTHER}", which is not prepared on this node: remove '
            "the variable or the CDI device that names it, or recreate the pod if it has the claim"
        )


def test_a_claim_with_other_cpus_than_in_the_snapshot_causes_a_new_read_of_the_ledger() -> None:
    """The other instance of a rolling update may have prepared the claim again."""
    anew = container(f"DRA_CPUSET_{UID}=4-5")
    assert identify(anew, SNAPSHOT, Evidence()).ask == AskLedger()
    assert "was given CPUs 2-3" in refused(identify(anew, SNAPSHOT, Evidence(reread=True)))


def test_kubelet_is_asked_about_a_pod_that_is_not_on_record() -> None:
    stranger = container(TRUE, pod=STRANGER)
    assert identify(stranger, SNAPSHOT, Evidence()).ask == AskKubelet((STRANGER,))
    assert identify(stranger, SNAPSHOT, listed(f"dra.k8s.io/cpu=claim-{UID}")).claims == (CLAIM,)


@pytest.mark.parametrize("devices", [(), (f"dra.k8s.io/cpu=claim-{OTHER}",), ("vendor.com/gpu=0",)])
def test_a_forged_variable_is_refused_with_the_claim_and_the_pod(devices: tuple[str, ...]) -> None:
    sentence = refused(identify(container(TRUE, pod=STRANGER), SNAPSHOT, listed(*devices)))
    assert sentence == (
        'container "main" of pod default/stranger names claim default/mine, '
        "which kubelet has not given to pod default/stranger: remove the variable or the CDI device that names it"
    )


def test_a_forged_cdi_device_is_refused_like_a_forged_variable() -> None:
    forged = container(cdi=(f"dra.k8s.io/cpu=claim-{UID}",), pod=STRANGER)
    assert "kubelet has not given" in refused(identify(forged, SNAPSHOT, listed()))


def test_a_silent_kubelet_is_an_error() -> None:
    silent = Evidence(pods={"p9": None, "p1": None})
    assert "did not answer" in refused(identify(container(TRUE, pod=STRANGER), SNAPSHOT, silent))
    assert "did not answer" in refused(identify(container(), SNAPSHOT, silent))


def test_a_pod_without_uid_is_never_trusted() -> None:
    nameless = container(TRUE, pod=PodSandbox("s1"))
    assert "kubelet has not given" in refused(identify(nameless, SNAPSHOT, Evidence(reread=True)))


def test_a_container_of_a_pod_without_claims_needs_no_question_to_kubelet() -> None:
    assert identify(container("PATH=/bin", pod=STRANGER), SNAPSHOT, Evidence()) == Identity()


def test_a_container_without_its_claims_variable_is_refused_because_cdi_is_off() -> None:
    plain = container("PATH=/bin")
    assert identify(plain, SNAPSHOT, Evidence()).ask == AskKubelet((OWNER,))
    told = Evidence(pods={"p1": KubeletPodClaims({"main": (f"dra.k8s.io/cpu=claim-{UID}",)})})
    sentence = refused(identify(plain, SNAPSHOT, told))
    assert sentence == (
        'kubelet gave claim default/mine to container "main" of pod default/owner, but the container runtime did not '
        "inject its CDI device: enable CDI in the runtime's configuration"
    )


def test_a_claim_that_holds_nothing_injects_no_variable_so_none_is_missing() -> None:
    """A claim with admin access, beside a runtime that does not report CDI devices over NRI (containerd 1.7)."""
    admin = PinnedClaim(ClaimRef("default", "watch", UID), pods=frozenset(("p1",)))
    snapshot = PinSnapshot(
        PinnedClaims.of([admin]), CPUSet(range(8)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu"
    )
    told = Evidence(pods={"p1": KubeletPodClaims({"main": (f"dra.k8s.io/cpu=claim-{UID}",)})})
    assert identify(container("PATH=/bin"), snapshot, told) == Identity()


def test_a_sidecar_without_the_claim_of_its_pod_is_an_ordinary_container() -> None:
    told = Evidence(pods={"p1": KubeletPodClaims({"main": (f"dra.k8s.io/cpu=claim-{UID}",)})})
    assert identify(container(name="sidecar"), SNAPSHOT, told) == Identity()


def test_an_existing_container_only_on_held_cpus_was_pinned_by_a_driver() -> None:
    pinned = container(TRUE, pod=STRANGER, cpus=(2, 3))
    assert identify(pinned, SNAPSHOT, Evidence(), exists=True).claims == (CLAIM,)
    assert identify(pinned, SNAPSHOT, Evidence()).ask == AskKubelet((STRANGER,))
    for cpus in ((), (2,), (1, 2, 3), (0, 1)):
        elsewhere = container(TRUE, pod=STRANGER, cpus=cpus)
        assert identify(elsewhere, SNAPSHOT, Evidence(), exists=True).ask == AskKubelet((STRANGER,))


def test_an_existing_container_unknown_to_kubelet_is_an_ordinary_one() -> None:
    assert identify(container(), SNAPSHOT, Evidence(pods={"p1": None}), exists=True) == Identity()


def test_a_driver_without_variable_and_kind_recognizes_nothing() -> None:
    bare = PinSnapshot(PinnedClaims.of([CLAIM]), CPUSet(range(8)))
    assert identify(container(TRUE, cdi=(f"=claim-{UID}",), pod=STRANGER), bare, Evidence()) == Identity()


def test_an_existing_container_only_on_held_offline_cpus_was_pinned_by_a_driver() -> None:
    offline = PinSnapshot(
        PinnedClaims.of([CLAIM]), CPUSet((0, 1, 2, 4, 5)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu"
    )
    for cpus in ((2,), (2, 3)):
        pinned = container(TRUE, pod=STRANGER, cpus=cpus)
        assert identify(pinned, offline, Evidence(pods={"p9": None}), exists=True).claims == (CLAIM,)
    none = PinSnapshot(PinnedClaims.of([CLAIM]), CPUSet((0, 1)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu")
    pinned = container(TRUE, pod=STRANGER, cpus=(3,))
    assert identify(pinned, none, Evidence(), exists=True).ask == AskKubelet((STRANGER,))


def test_a_silent_kubelet_does_not_deny_a_claim() -> None:
    elsewhere = container(TRUE, pod=STRANGER, cpus=(0, 1))
    uid = STRANGER.uid
    assert identify(elsewhere, SNAPSHOT, Evidence(pods={uid: None}), exists=True).unanswered
    assert not identify(elsewhere, SNAPSHOT, Evidence(pods={uid: KubeletPodClaims({})}), exists=True).unanswered
    # A new container is refused, and kubelet is asked again at the next attempt.
    assert identify(elsewhere, SNAPSHOT, Evidence(pods={uid: None})).refusals


def test_a_variable_adds_no_request_if_the_runtime_reports_devices() -> None:
    kind = "dra.k8s.io/cpu"
    snapshot = PinSnapshot(PinnedClaims.of([CLAIM]), CPUSet(range(8)), part_variable="DRA_PART_", cdi_kind=kind)
    forged = (f"DRA_PART_{UID}_1=2",)
    assert snapshot.parts_of(UID, (f"{kind}=claim-{UID}-0",), forged) == {0}
    assert snapshot.parts_of(UID, (f"{kind}=claim-{UID}",), forged) == set()
    assert snapshot.parts_of(UID, (), forged) == {1}
