"""The client's thread against a runtime on a real socket, with the real decisions."""

import logging
import threading

import pytest

from dranode.driver.nri import client as client_module
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.nri import CallFailedError, container, pod, updates_of
from tests.fakes.nri_client import EMPTY, ENV, HELD, NEW, OLD, P1, P2, Bench
from tests.fakes.waiting import eventually


def test_a_client_registers_synchronizes_and_pins(bench: Bench) -> None:
    bench.node.now = HELD
    bench.client.start()
    runtime = bench.accept()
    registered = nri.RegisterPluginRequest.FromString(runtime.wait_for("RegisterPlugin"))
    assert (registered.plugin_name, registered.plugin_idx) == ("dra.cpu", "00")
    synced = runtime.handshake([P2], [container("s", "p2", state=nri.CONTAINER_RUNNING)])
    assert updates_of(synced) == {"s": "0-1,4-7"}
    eventually(lambda: bench.client.synchronized)
    created = runtime.create(container("g", "p1", ENV), P1)
    assert created.adjust.linux.resources.cpu.cpus == "2-3"
    with pytest.raises(CallFailedError, match="in use by container") as refused:
        runtime.create(container("h", "p1", ENV), P1)
    assert refused.value.code == 2
    status = bench.enforcer.status()
    assert (status.containers, status.refused, status.updates, status.unpinned) == (2, 1, 1, 1)
    assert bench.enforcer.claims_in_use() == {"a"}


def test_a_claim_that_the_snapshot_lacks_is_found_in_the_ledger(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    assert runtime.create(container("g", "p1", ENV), P1).adjust.linux.resources.cpu.cpus == "2-3"


def test_a_ledger_that_cannot_be_read_refuses_the_container_and_says_so(bench: Bench) -> None:
    bench.node.ledger = None
    bench.client.start()
    runtime = bench.accept()
    synced = runtime.handshake([P1], [container("g", "p1", ENV, state=nri.CONTAINER_RUNNING)])
    assert updates_of(synced) == {"g": "0-7"}
    with pytest.raises(CallFailedError, match="disk I/O error"):
        runtime.create(container("h", "p1", ENV), P1)


def test_kubelet_is_asked_about_a_pod_that_is_not_on_record(bench: Bench) -> None:
    bench.node.now = HELD
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    bench.node.kubelet = {"p2": KubeletPodClaims({"g": ("dra.k8s.io/cpu=claim-a",)})}
    assert runtime.create(container("g", "p2", ENV), P2).adjust.linux.resources.cpu.cpus == "2-3"
    assert [[each.uid for each in pods] for pods in bench.node.asked] == [["p2"]]
    runtime.stop(container("g", "p2"), P2)
    bench.node.kubelet = None
    with pytest.raises(CallFailedError, match="did not answer"):
        runtime.create(container("g", "p2", ENV), P2)
    bench.node.kubelet = {"p2": KubeletPodClaims({})}
    with pytest.raises(CallFailedError, match="kubelet has not given"):
        runtime.create(container("g", "p2", ENV), P2)


def test_a_new_runtime_gets_a_changed_pool_in_an_unsolicited_update(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], NEW)
    bench.node.now = HELD
    bench.client.notify()
    first = nri.UpdateContainersRequest.FromString(runtime.wait_for("UpdateContainers"))
    assert updates_of(first) == {"s": "0-1,4-7"}
    bench.node.now = EMPTY
    bench.client.notify()
    second = nri.UpdateContainersRequest.FromString(runtime.wait_for("UpdateContainers", 2))
    assert updates_of(second) == {"s": "0-7"}
    eventually(lambda: bench.enforcer.status().waiting == 0)


def test_an_old_runtime_gets_updates_with_the_next_answer_and_the_lag_is_counted(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], OLD)
    bench.node.now = HELD
    bench.client.notify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    bench.now[0] += 7.0
    assert bench.enforcer.status().lag == 7.0
    answer = runtime.stop(container("x", "p9"), pod("p9"))
    assert updates_of(answer) == {"s": "0-1,4-7"}
    eventually(lambda: bench.enforcer.status().waiting == 0)
    assert [name for name, _ in runtime.wire.received] == ["RegisterPlugin"]


def test_lag_that_no_answer_ends_is_ended_by_one_reconnection(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    listed = [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)]
    runtime.handshake([P2], listed, OLD)
    bench.node.now = HELD
    bench.client.notify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    bench.now[0] += 60.0
    again = bench.accept()
    assert updates_of(again.handshake([P2], listed, OLD)) == {"s": "0-1,4-7"}
    assert bench.enforcer.status().reconnections == 1
    bench.node.now = EMPTY
    bench.client.notify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    bench.now[0] += 300.0
    assert updates_of(again.stop(container("x", "p9"), pod("p9"))) == {"s": "0-7"}
    assert bench.enforcer.status().reconnections == 1


def test_updates_that_the_runtime_could_not_apply_are_sent_again_later(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], NEW)
    runtime.wire.update_error = "NRI update of some containers failed"
    bench.node.now = HELD
    bench.client.notify()
    runtime.wait_for("UpdateContainers")
    eventually(lambda: "did not apply every CPU set of 1 containers" in caplog.text)
    eventually(lambda: bench.enforcer.status().waiting == 1)
    runtime.wire.update_error = ""
    bench.now[0] += 31.0
    runtime.wait_for("UpdateContainers", 2)
    eventually(lambda: bench.enforcer.status().waiting == 0)


def test_drift_that_the_kernel_shows_is_repaired(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    group = bench.path.parent / "sys" / "fs" / "cgroup" / "k8s" / "s"
    group.mkdir(parents=True)
    (group / "cpuset.cpus.effective").write_text("0-7\n")
    one = container("s", "p2", cpus="0-7", cgroup="/k8s/s", state=nri.CONTAINER_RUNNING)
    runtime.handshake([P2], [one], NEW)
    (group / "cpuset.cpus.effective").write_text("0-1\n")
    (drift,) = bench.enforcer.verify()
    assert str(drift) == 'container "s" of pod default/p2 runs on CPUs 0-1, but should run on 0-7'
    bench.client.notify()
    repaired = nri.UpdateContainersRequest.FromString(runtime.wait_for("UpdateContainers"))
    assert updates_of(repaired) == {"s": "0-7"}
    (group / "cpuset.cpus.effective").write_text("0-7\n")
    assert bench.enforcer.verify() == ()
    assert bench.enforcer.status().drifts == 1


def test_on_an_old_runtime_drift_is_repaired_although_the_runtime_reports_the_right_mask(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    group = bench.path.parent / "sys" / "fs" / "cgroup" / "k8s" / "s"
    group.mkdir(parents=True)
    (group / "cpuset.cpus.effective").write_text("0-7\n")
    listed = [container("s", "p2", cpus="0-7", cgroup="/k8s/s", state=nri.CONTAINER_RUNNING)]
    runtime.handshake([P2], listed, OLD)
    (group / "cpuset.cpus.effective").write_text("0-1\n")
    bench.enforcer.verify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    bench.now[0] += 60.0
    assert updates_of(bench.accept().handshake([P2], listed, OLD)) == {"s": "0-7"}


def test_a_runtime_that_restarts_gets_everything_again(bench: Bench) -> None:
    bench.node.now = HELD
    bench.client.start()
    first = bench.accept()
    first.handshake([P1], [container("g", "p1", ENV, "2-3", state=nri.CONTAINER_RUNNING)])
    first.sock.close()
    second = bench.accept()
    synced = second.handshake([P1, P2], [container("g", "p1", ENV, "2-3"), container("late", "p2")])
    assert updates_of(synced) == {"late": "0-1,4-7"}


def test_a_runtime_that_refuses_the_plugin_is_tried_again(bench: Bench) -> None:
    bench.client.start()
    first = bench.accept()
    first.wire.register_error = "invalid plugin index"
    first.wait_for("RegisterPlugin")
    with pytest.raises(ConnectionError):
        first.pump()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)


def test_a_runtime_that_never_answers_is_disconnected_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_WITHIN", 0.05)
    bench.client.start()
    silent = bench.accept()
    silent.wire.silent = True
    silent.wait_for("RegisterPlugin")
    with pytest.raises(ConnectionError):
        silent.pump()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)


def test_a_runtime_that_hangs_in_an_update_is_disconnected(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_WITHIN", 0.05)
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], NEW)
    runtime.wire.silent = True
    bench.node.now = HELD
    bench.client.notify()
    runtime.wait_for("UpdateContainers")
    with pytest.raises(ConnectionError):
        runtime.pump()


def test_a_truncated_stream_is_logged_and_recovered_from(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench.client.start()
    runtime = bench.accept()
    runtime.wait_for("RegisterPlugin")
    _, data = runtime.wire.call("Configure", nri.ConfigureRequest(runtime_name="containerd"))
    runtime.sock.sendall(data[:-3])
    runtime.sock.close()
    bench.accept().handshake()
    eventually(lambda: bench.client.synchronized)
    assert "in the middle of a message" in caplog.text


def test_an_unknown_nri_version_is_treated_as_an_old_one(bench: Bench) -> None:
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake([P2], [container("s", "p2", cpus="0-7", state=nri.CONTAINER_RUNNING)], "v9.next")
    bench.node.now = HELD
    bench.client.notify()
    eventually(lambda: bench.enforcer.status().waiting == 1)
    assert [name for name, _ in runtime.wire.received] == ["RegisterPlugin"]


def test_stop_without_start_and_stop_twice_return_at_once(bench: Bench) -> None:
    bench.client.stop()
    bench.client.stop()
    assert not bench.client.synchronized


def test_start_without_stop_does_not_keep_a_process_alive(bench: Bench) -> None:
    bench.client.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "nri-dra.cpu"]
    assert thread.daemon
