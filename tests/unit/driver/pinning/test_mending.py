from dranode.api.cpuset import CPUSet
from dranode.driver.claims.users import PodSandbox
from dranode.driver.pinning import drift
from dranode.driver.pinning.container_index import Containers, settle
from dranode.driver.pinning.containers import Container, Effective, Pinned
from dranode.driver.pinning.drift import INTERVAL, REPAIRS, WRONG_MASK_SECONDS, Drift, Lag, Repairs, find_drifts
from dranode.driver.pinning.snapshot import PinSnapshot

ONE, TWO = frozenset(("c1",)), frozenset(("c2",))


def container(identity: str) -> Container:
    return Container(identity, identity, PodSandbox("s", "p", "default", "p"))


def drifted(found: int = 5, identity: str = "c1") -> Drift:
    return Drift(container(identity), Effective(CPUSet((0, 1))), Effective(CPUSet((found,))))


def test_lag_counts_from_when_the_first_container_began_to_wait() -> None:
    lag = Lag().seen(ONE, 100.0).seen(ONE | TWO, 130.0)
    assert lag.seconds(140.0) == 40.0
    assert lag.seen(frozenset(), 150.0).seconds(150.0) == 0.0


def test_lag_starts_again_when_no_container_waits() -> None:
    assert Lag().seen(ONE, 100.0).seen(TWO, 130.0).seconds(140.0) == 10.0


def test_a_reconnection_is_due_after_a_minute_and_once_in_ten() -> None:
    lag = Lag().seen(ONE, 0.0)
    assert not lag.reconnection_due(WRONG_MASK_SECONDS - 0.1)
    assert lag.reconnection_due(WRONG_MASK_SECONDS)
    lag = Lag(reconnected=WRONG_MASK_SECONDS).seen(ONE, WRONG_MASK_SECONDS + 1)
    assert not lag.reconnection_due(WRONG_MASK_SECONDS + INTERVAL - 0.1)
    assert lag.reconnection_due(WRONG_MASK_SECONDS + INTERVAL)


def test_no_reconnection_is_due_if_nothing_waits() -> None:
    assert not Lag().reconnection_due(1e9)


def test_drift_is_a_difference_between_kernel_and_record() -> None:
    snapshot = PinSnapshot(online=CPUSet((0, 1)))
    containers = Containers(Pinned(container(each), cpus=CPUSet((0, 1))) for each in ("c1", "c2"))
    kernel = {"c1": "5", "c2": "0-1", "unknown": "9"}
    found = find_drifts(containers, snapshot, {key: Effective(CPUSet.parse(cpus)) for key, cpus in kernel.items()})
    assert found == (drifted(),)
    assert str(found[0]) == 'container "c1" of pod default/p runs on CPUs 5, but should run on 0-1'
    change, updates = settle(containers, snapshot)
    assert updates == ()
    containers.apply(change)
    containers.apply(drift.drifted(containers, found))
    (update,) = settle(containers, snapshot)[1]
    assert (update.container_id, update.resources.cpus) == ("c1", CPUSet((0, 1)))


def test_the_same_drift_is_repaired_a_few_times_and_then_given_up_once() -> None:
    repairs = Repairs()
    worth, fresh, hopeless = [], [], []
    for _ in range(REPAIRS + 3):
        repairs = repairs.seen((drifted(),))
        worth.append(len(repairs.worth))
        fresh.append(len(repairs.fresh))
        hopeless.append(len(repairs.hopeless))
    assert worth == [1, 1, 1, 0, 0, 0]
    assert fresh == [1, 0, 0, 0, 0, 0]
    assert hopeless == [0, 0, 0, 1, 0, 0]


def test_a_new_or_recurring_drift_is_repaired_again() -> None:
    tired = Repairs()
    for _ in range(REPAIRS + 2):
        tired = tired.seen((drifted(),))
    assert tired.seen((drifted(6),)).worth == (drifted(6),)
    assert tired.seen(()).seen((drifted(),)).worth == (drifted(),)
    assert tired.seen((drifted(), drifted(5, "c2"))).worth == (drifted(5, "c2"),)
