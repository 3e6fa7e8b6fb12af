"""A container has ended if its processes were seen and are gone; one that was never seen counts as running."""

import shutil
from collections.abc import Callable

import pytest

from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.nri import CallFailedError, FakeRuntime, container
from tests.fakes.nri_client import ENV, HELD, P1, Bench

FOLDER = "kubepods/pod1"


class Kernel:
    """The cgroup v2 files of the bench's machine."""

    def __init__(self, bench: Bench) -> None:
        self.top = bench.path.parent / "sys/fs/cgroup"
        (self.top / FOLDER).mkdir(parents=True)

    def run(self, name: str, populated: int = 1) -> None:
        folder = self.top / FOLDER / name
        folder.mkdir()
        (folder / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")

    def end(self, name: str) -> None:
        shutil.rmtree(self.top / FOLDER / name)


@pytest.fixture
def kernel(bench: Bench) -> Kernel:
    return Kernel(bench)


@pytest.fixture
def runtime(bench: Bench) -> FakeRuntime:
    bench.node.now = HELD
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    return runtime


def made(name: str, state: nri.ContainerState = nri.CONTAINER_UNKNOWN) -> nri.Container:
    return container(name, "p1", ENV, cgroup=f"/{FOLDER}/{name}", state=state)


def report(runtime: FakeRuntime, event: nri.Event, name: str, state: nri.ContainerState) -> None:
    runtime.call("StateChange", nri.StateChangeEvent(event=event, pod=P1, container=made(name, state)))


def create(runtime: FakeRuntime, name: str) -> str:
    return runtime.create(made(name), P1).adjust.linux.resources.cpu.cpus


def starting(runtime: FakeRuntime, name: str) -> None:
    report(runtime, nri.START_CONTAINER, name, nri.CONTAINER_CREATED)


def started(runtime: FakeRuntime, name: str) -> None:
    report(runtime, nri.POST_START_CONTAINER, name, nri.CONTAINER_RUNNING)


def test_a_seen_container_without_processes_no_longer_uses_its_claim(
    runtime: FakeRuntime, kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    assert create(runtime, "first") == "2-3"
    kernel.run("first")
    started(runtime, "first")
    with pytest.raises(CallFailedError, match="is in use by container"):
        create(runtime, "second")
    kernel.end("first")
    assert create(runtime, "second") == "2-3"
    assert not [message for message in caplog.messages if "cannot be verified" in message]


def test_a_container_that_ends_before_its_start_event_was_seen_before(
    runtime: FakeRuntime, kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    assert create(runtime, "first") == "2-3"
    kernel.run("first")
    starting(runtime, "first")
    kernel.end("first")
    started(runtime, "first")
    assert create(runtime, "second") == "2-3"
    assert not [message for message in caplog.messages if "cannot be verified" in message]


def nothing(kernel: Kernel) -> None:
    """A virtual machine: the host has no cgroup for the container."""
    del kernel


def an_empty_cgroup(kernel: Kernel) -> None:
    """A sandboxed kernel: the processes are in the sandbox's cgroup."""
    kernel.run("first", populated=0)


@pytest.mark.parametrize("shown", [nothing, an_empty_cgroup], ids=lambda each: each.__name__)
def test_a_container_that_this_host_never_shows_keeps_its_claim_until_it_is_stopped(
    runtime: FakeRuntime, kernel: Kernel, shown: Callable[[Kernel], None], caplog: pytest.LogCaptureFixture
) -> None:
    assert create(runtime, "first") == "2-3"
    shown(kernel)
    for _ in range(2):
        starting(runtime, "first")
        started(runtime, "first")
    for _ in range(2):
        with pytest.raises(CallFailedError, match="is in use by container"):
            create(runtime, "second")
    said = [message for message in caplog.messages if "its CPUs and quota cannot be verified" in message]
    assert [message.partition(":")[0] for message in said] == ["pod=default/p1 container=first"]
    runtime.stop(made("first"), P1)
    assert create(runtime, "second") == "2-3"


@pytest.mark.parametrize("running", ["first", "main"])
def test_a_container_that_runs_at_synchronize_is_seen_then_or_another_of_its_pod(
    bench: Bench, kernel: Kernel, running: str
) -> None:
    # A runtime may list an init container as running that ended before the runtime was restarted (cri-o/cri-o#7004).
    bench.node.now = HELD
    kernel.run(running)
    bench.client.start()
    runtime = bench.accept()
    env = {"first": ENV, "main": ()}
    listed = [
        container(name, "p1", env[name], "2-3", cgroup=f"/{FOLDER}/{name}", state=nri.CONTAINER_RUNNING) for name in env
    ]
    runtime.handshake([P1], listed)
    if running == "first":
        kernel.end("first")
    assert create(runtime, "second") == "2-3"
