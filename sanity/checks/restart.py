"""Restarts, shutdown and rolling updates: a claim reported as prepared stays prepared, whenever a driver is killed."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach, Unable, expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.claims import BenchClaim
from dranode.sanity.driver_link import DriverProcess
from dranode.sanity.kubelet import DriverCallError, DriverInfo, SocketClient

_HELPER: Final = "kubeletplugin/draplugin.go: the process that prepared need not be the one that unprepares"
_MANAGER: Final = "kubelet, pkg/kubelet/cm/dra/manager.go: every claim is prepared again after a restart"
# How long after the beginning of a call the driver is killed, in seconds.
_MOMENTS: Final = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)


@must("restart-same-answer", _MANAGER)
def answers_survive(bench: Bench) -> None:
    """After a kill, Prepare gives the same answer as before.

    Sends SIGKILL between two Prepares.
    """
    bench.started()
    claim = bench.claim()
    (before,) = bench.prepared(claim)
    seen = bench.edits(claim, before) if before.cdi else ""
    bench.restart()
    after = bench.same_answer(claim, before, "keep what was prepared on disk")
    if before.cdi:
        edits = bench.edits(claim, after)
        expect(edits == seen, f"the edits are {edits}, but were {seen}", "keep what was prepared on disk")


@must("restart-keeps-specs", "containers restart without a Prepare: kubelet passes the ids that it was answered")
def specs_survive(bench: Bench) -> None:
    """After a kill and a restart, the CDI ids of prepared claims resolve even before kubelet asks again.

    Sends SIGKILL, starts the driver, and reads the folder after a while.
    """
    bench.started()
    claim = bench.claim()
    (answer,) = bench.prepared(claim)
    answer.need_cdi()
    before = bench.edits(claim, answer)
    bench.restart()
    bench.wait(bench.quiet)
    after = bench.edits(claim, answer)
    expect(after == before, f"the edits are {after}, but were {before}", "do not remove the specs of claims on record")


@must("restart-unprepare", _HELPER)
def unprepare_survives(bench: Bench) -> None:
    """A claim that was prepared before a kill can be unprepared after it.

    Sends SIGKILL between Prepare and Unprepare; the device has to be free then.
    """
    bench.started()
    claim = bench.claim()
    bench.prepared(claim)
    bench.restart()
    bench.unprepared(claim)
    left = bench.files_of(claim)
    expect(not left, f"{', '.join(left)} is left", "undo what the record on disk says, not what is in memory")
    if bench.api is not None:
        bench.prepared(bench.make_claim(claim.results))


@must("restart-unprepare-deleted", _HELPER)
def unprepare_survives_deletion(bench: Bench) -> None:
    """A prepared claim can be unprepared after a kill even if it is gone from the API server.

    Sends SIGKILL, and deletes the claim before the driver starts.
    """
    bench.started()
    claim = bench.claim(bench.devices())
    bench.prepared(claim)
    bench.restart(lambda: bench.forget(claim))
    bench.unprepared(claim)
    bench.prepared(bench.make_claim(claim.results))


@must("restart-during-prepare", _MANAGER)
def interrupted_prepares_are_repeated(bench: Bench) -> None:
    """A Prepare that a kill has interrupted succeeds when it is repeated.

    Sends SIGKILL at several moments of a call.
    """
    for moment in _MOMENTS:
        claim = _interrupted(bench, moment, prepared=False)
        (answer,) = bench.prepared(claim)
        bench.see_ids_resolve(answer)
        bench.unprepared(claim)


@must("restart-during-unprepare", _MANAGER)
def interrupted_unprepares_are_repeated(bench: Bench) -> None:
    """An Unprepare that a kill has interrupted succeeds when it is repeated.

    Sends SIGKILL at several moments of a call; then the device has to be free, and nothing may remain.
    """
    for moment in _MOMENTS:
        claim = _interrupted(bench, moment, prepared=True)
        bench.unprepared(claim)
        left = bench.files_of(claim)
        expect(not left, f"{', '.join(left)} is left", "remove files of claims that are not on record")


def _interrupted(bench: Bench, moment: float, *, prepared: bool) -> BenchClaim:
    process = bench.started()
    claim = bench.claim()
    if prepared:
        bench.prepared(claim)

    def call() -> None:
        # It is killed, so nothing has to come of it.
        with contextlib.suppress(DriverCallError, ValueError):
            bench.unprepare(claim) if prepared else bench.prepare(claim)

    caller = threading.Thread(target=call, name="interrupted-call")
    caller.start()
    time.sleep(moment)
    process.kill()
    caller.join()
    bench.disconnect()
    process.start()
    bench.connect()
    return claim


@should("restart-held", "kubeletplugin/draplugin.go: last line of defense")
def holders_survive(bench: Bench) -> None:
    """A device that was held before a kill is still held after it.

    After the restart, another claim asks for a device in use.
    """
    bench.started()
    (device,) = bench.devices(shareable=False)
    bench.prepared(bench.claim([device]))
    bench.restart()
    other = bench.claim([device])
    expect(bench.refused(other), f"{device.name} is prepared for two claims", "read at start-up who holds what")


@should("restart-reboot", "/var/run is a tmpfs; kubelet prepares every claim again")
def reboots_are_survived(bench: Bench) -> None:
    """If the CDI folder is emptied while the driver is down, a repeated Prepare makes the ids resolve again.

    Sends SIGKILL, empties the folder, and starts the driver.
    """
    bench.started()
    claim = bench.claim()
    (before,) = bench.prepared(claim)
    folder = bench.specs.folder

    def reboot() -> None:
        for path in folder.iterdir():
            path.unlink()

    bench.restart(reboot)
    after = bench.same_answer(claim, before, "write the specs again from the record")
    bench.specs.edits(after.cdi)


@must("restart-unprepared", _HELPER)
def the_unprepared_stays_so(bench: Bench) -> None:
    """A claim that was unprepared before a kill does not come back.

    After a start there may be no file of the claim, and its device has to be free.
    """
    bench.started()
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(claim)
    bench.restart()
    left = bench.files_of(claim)
    expect(not left, f"{', '.join(left)} is there again", "flush the record to disk before you answer Unprepare")
    if bench.api is not None:
        bench.prepared(bench.make_claim(claim.results))


@must("restart-registers", "kubelet e2e_node: must register after plugin restart")
def registration_survives(bench: Bench) -> None:
    """After a kill, the driver registers with the same information.

    Compares GetInfo before and after.
    """
    before = bench.info
    bench.restart()
    expect(
        bench.info == before,
        f"GetInfo returns {shown(bench.info)}, but returned {shown(before)}",
        "answer from constants",
    )


@must("restart-graceful", _MANAGER)
def graceful_restarts_are_survived(bench: Bench) -> None:
    """After SIGTERM and a restart, Prepare gives the same answer as before.

    This happens when the pod of a DaemonSet is replaced.
    """
    process = bench.started()
    claim = bench.claim()
    (before,) = bench.prepared(claim)
    bench.disconnect()
    bench.terminate()
    process.kill()
    process.start()
    bench.connect()
    bench.same_answer(claim, before, "do not undo claims when stopping")


@should("restart-server-away", "a node has to be drained, and pods have to end, without a control plane")
def starts_without_server(bench: Bench) -> None:
    """A driver that starts while the API server is unreachable registers, and can unprepare its claims.

    Sends SIGKILL, and has no server when the driver starts.
    """
    bench.started()
    claim = bench.claim(bench.devices())
    bench.prepared(claim)
    bench.restart(bench.server().stop)
    bench.unprepared(claim)


@must("restart-several", _MANAGER)
def several_restarts_are_survived(bench: Bench) -> None:
    """Three kills in a row lose nothing.

    Uses two claims, with kills between the calls.
    """
    bench.started()
    claims = [bench.claim([device]) for device in bench.devices(2)] if bench.api else [bench.claim()]
    before = []
    for claim in claims:
        before += bench.prepared(claim)
        bench.restart()
    bench.restart()
    after = bench.prepared(*claims)
    expect(after == before, f"the answers are {shown(after)}, but were {shown(before)}", "keep every claim on disk")


_STOP: Final = "kubeletplugin helper, Stop"


def _terminated(bench: Bench) -> int | None:
    """End the driver as the end of its pod does; its exit status, or None if it did not end in time."""
    bench.started()
    # One that is still starting may end in another way; its slices may be those of the process before.
    with contextlib.suppress(Unable):
        bench.offers()
    bench.wait(min(bench.quiet, 1.0))
    bench.disconnect()
    return bench.terminate()


@should("shutdown-ends", "Kubernetes, pod lifecycle: termination grace period")
def sigterm_ends_it(bench: Bench) -> None:
    """SIGTERM ends the driver within 30 s, the grace period of a pod.

    The time does not matter as long as no SIGKILL is needed.
    """
    status = _terminated(bench)
    expect(status is not None, "it still runs when the grace period is over", "handle SIGTERM")


@should("shutdown-status", "Kubernetes, pod lifecycle: other statuses are failures")
def sigterm_is_no_failure(bench: Bench) -> None:
    """After SIGTERM the driver exits with status 0.

    The exit status is neither a failure nor a death by the signal.
    """
    status = _terminated(bench)
    expect(status in (0, None), f"the exit status is {status}", "exit cleanly on SIGTERM")


@should(
    "shutdown-registration-socket",
    f"{_STOP}; kubelet deregisters when the socket is removed, and nobody else removes a stale one",
)
def registration_sockets_go(bench: Bench) -> None:
    """The registration socket is gone after SIGTERM, so that kubelet deregisters the driver.

    Looks for the socket's file.
    """
    sockets = bench.registration_sockets()
    _terminated(bench)
    left = [str(path) for path in sockets if path.exists()]
    expect(not left, f"{', '.join(left)} is left", "unlink the socket when stopping")


@should("shutdown-service-socket", f"{_STOP}: both sockets are unlinked")
def service_sockets_go(bench: Bench) -> None:
    """The service's socket is gone after SIGTERM.

    Looks for the socket's file.
    """
    endpoint = Path(bench.endpoint())
    _terminated(bench)
    expect(not endpoint.exists(), f"{endpoint} is left", "unlink the socket when stopping")


@must("shutdown-keeps-claims", f"{_STOP}: in-flight state is kept; Unprepare comes from kubelet alone")
def claims_stay(bench: Bench) -> None:
    """Claims stay prepared after SIGTERM: pods run on, and their containers may be restarted.

    The CDI ids still have to resolve.
    """
    bench.started()
    claim = bench.claim()
    (answer,) = bench.prepared(claim)
    answer.need_cdi()
    before = bench.specs.edits(answer.cdi)
    _terminated(bench)
    after = bench.specs.edits(answer.cdi)
    expect(after == before, f"the edits are {after}, but were {before}", "leave specs where they are when stopping")


@should("shutdown-keeps-slices", f"{_STOP}: slices are not deleted on stop")
def slices_stay(bench: Bench) -> None:
    """Slices stay after SIGTERM: kubelet removes them 30 s after the driver has gone for good.

    Compares the slices before and after.
    """
    bench.started()
    bench.offers()
    before = len(bench.slices())
    _terminated(bench)
    after = len(bench.slices())
    expect(after == before, f"{after} of {before} slices are left", "leave slices to kubelet")


# Two instances beside each other, as during a rolling update of the DaemonSet (kubelet 1.33 and later).


_ROLLING_UPDATE: Final = "kubeletplugin helper, RollingUpdate"
_KUBELET: Final = "kubelet, pkg/kubelet/cm/dra/plugin: instances of one driver are told apart by their endpoints"
_NEW: Final = "b0000000-0000-4000-8000-000000000002"


@dataclass(frozen=True)
class InstancePair:
    """Two instances: the one that was there, and the new one."""

    process: DriverProcess
    old: SocketClient
    new: SocketClient
    old_socket: Path
    new_socket: Path
    old_info: DriverInfo
    new_info: DriverInfo


@contextlib.contextmanager
def _two(bench: Bench) -> Iterator[InstancePair]:
    """Start a second instance beside the first.

    Raises:
        Unable: the command does not name the pod's UID.
    """
    process = bench.started()
    if not process.rolling:
        raise Unable("the command has no {pod_uid}, so that two instances cannot run beside each other")
    old_socket, old_info = bench.registration_socket(), bench.info
    process.start(_NEW)
    try:
        new_socket = _new_socket(bench, process, old_socket)
        with bench.registrar(new_socket) as client:
            new_info = client.get_info()
            with contextlib.suppress(DriverCallError):
                client.notify(registered=True)
        new = bench.another_connection(new_info.endpoint or str(new_socket))
        bench.awaited("the new instance", lambda: _answers(bench, new))
        yield InstancePair(process, bench.plugin, new, old_socket, new_socket, old_info, new_info)
    finally:
        process.kill(_NEW)
        bench.disconnect()
        process.kill()
        for path in bench.listed_sockets():
            path.unlink()


def _new_socket(bench: Bench, process: DriverProcess, old: Path) -> Path:
    def sockets() -> list[Path]:
        return [path for path in bench.registration_sockets() if path != old]

    bench.awaited("a second socket", lambda: sockets() or process.exited(_NEW) is not None)
    if (status := process.exited(_NEW)) is not None:
        raise Breach(
            f"a second instance ended with status {status}; its log ends: {process.log()[-600:]}", "let both run"
        )
    found = sockets()
    if not found:
        raise Breach(
            f"a second instance has no registration socket beside {old.name}", "make the pod's UID a part of its name"
        )
    return found[0]


def _answers(bench: Bench, client: SocketClient) -> bool:
    try:
        client.prepare(bench.version, (), 1.0)
    except DriverCallError:
        return False
    return True


@must("rolling-endpoints", _KUBELET)
def instances_have_endpoints(bench: Bench) -> None:
    """Two instances register under the same name, each with its own endpoint.

    Calls GetInfo of both.
    """
    with _two(bench) as pair:
        names = {pair.old_info.name, pair.new_info.name}
        expect(len(names) == 1, f"their names are {listed(names)}", "register under the driver's name")
        seen = f"both have the endpoint {pair.new_info.endpoint}"
        expect(pair.old_info.endpoint != pair.new_info.endpoint, seen, "make the pod's UID a part of the socket's name")


@must("rolling-answers-agree", f"{_ROLLING_UPDATE}; kubelet may ask either")
def instances_agree(bench: Bench) -> None:
    """Both instances answer the same for a claim.

    Prepares a claim with the old one, then with the new one, then with the old one.
    """
    with _two(bench) as pair:
        claim = bench.claim()
        answers = [bench.prepared(claim, client=client)[0] for client in (pair.old, pair.new, pair.old)]
        expect(len(set(answers)) == 1, f"the answers are {shown(answers)}", "share the record of what is prepared")


@must("rolling-hand-over", _ROLLING_UPDATE)
def instances_hand_over(bench: Bench) -> None:
    """Each instance can unprepare what the other has prepared.

    The device has to be free for both afterwards.
    """
    with _two(bench) as pair:
        for prepares, unprepares in ((pair.old, pair.new), (pair.new, pair.old)):
            claim = bench.claim()
            bench.prepared(claim, client=prepares)
            bench.unprepared(claim, client=unprepares)
            left = bench.files_of(claim)
            expect(not left, f"{', '.join(left)} is left", "share the record of what is prepared")
            if bench.api is not None:
                again = bench.make_claim(claim.results)
                bench.prepared(again, client=prepares)
                bench.unprepared(again, client=prepares)


@should("rolling-held", "kubeletplugin/draplugin.go: last line of defense")
def instances_share_holders(bench: Bench) -> None:
    """A device that one instance has handed out is refused by the other.

    Allocates one device to two claims, and gives one claim to each instance.
    """
    with _two(bench) as pair:
        (device,) = bench.devices(shareable=False)
        bench.prepared(bench.claim([device]), client=pair.old)
        other = bench.claim([device])
        try:
            answer = bench.prepare(other, client=pair.new)[other.uid]
        except DriverCallError:
            return
        expect(answer.error, f"{device.name} is prepared for two claims", "decide under a lock that both take")


@must("rolling-old-leaves", _ROLLING_UPDATE)
def the_new_instance_stays(bench: Bench) -> None:
    """When the old instance ends, the new one and its sockets stay, and so do the slices.

    Sends SIGTERM to the old one, and prepares claims with the new one.
    """
    with _two(bench) as pair:
        claim = bench.claim()
        (before,) = bench.prepared(claim, client=pair.old)
        slices = len(bench.slices()) if bench.api else 0
        bench.terminate()
        expect(pair.new_socket.exists(), f"{pair.new_socket.name} is gone too", "unlink only your own sockets")
        bench.same_answer(claim, before, "share the record of what is prepared", client=pair.new)
        bench.see_ids_resolve(before)
        left = len(bench.slices()) if bench.api else 0
        expect(left == slices, f"{left} of {slices} slices are left", "leave slices when stopping")
        bench.unprepared(claim, client=pair.new)


@must("rolling-fails", f"{_ROLLING_UPDATE}; a failed update is rolled back")
def the_old_instance_goes_on(bench: Bench) -> None:
    """When the new instance is killed, the old one keeps working.

    Sends SIGKILL to the new one.
    """
    with _two(bench) as pair:
        claim = bench.claim()
        (before,) = bench.prepared(claim, client=pair.new)
        pair.process.kill(_NEW)
        expect(pair.old_socket.exists(), f"{pair.old_socket.name} is gone", "unlink only your own sockets")
        bench.same_answer(claim, before, "share the record of what is prepared", client=pair.old)
        bench.unprepared(claim, client=pair.old)


@must("rolling-slices", "resourceslice controller")
def instances_do_not_fight(bench: Bench) -> None:
    """Two instances publish the same slices as one: they neither fight over them nor publish anything twice.

    Looks at the writes while both run.
    """
    bench.started()
    bench.offers()
    with _two(bench):
        bench.wait(bench.quiet)
        before = len(bench.server().writes())
        bench.wait(bench.quiet)
        written = len(bench.server().writes()) - before
        expect(
            written <= 1,
            f"{written} writes of slices within {bench.quiet:g} s",
            "publish from only one instance, or publish the same from both",
        )
