"""Two instances beside each other, as during a rolling update of the DaemonSet (kubelet 1.33 and later)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach, Unable, expect
from dranode.sanity.check import must, should
from dranode.sanity.kubelet import DriverCallError, DriverInfo, SocketClient
from dranode.sanity.process import DriverProcess

_HELPER: Final = "kubeletplugin helper, RollingUpdate"
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
        new_socket = _new_socket(bench, old_socket)
        with bench.registrar(new_socket) as client:
            new_info = client.get_info()
            client.notify(registered=True)
        new = bench.another_connection(new_info.endpoint or str(new_socket))
        with contextlib.suppress(DriverCallError):
            bench.eventually(lambda: _answers(bench, new), bench.patience)
        yield InstancePair(process, bench.plugin, new, old_socket, new_socket, old_info, new_info)
    finally:
        process.kill(_NEW)
        bench.disconnect()
        process.kill()
        for path in bench.listed_sockets():
            path.unlink()


def _new_socket(bench: Bench, old: Path) -> Path:
    def sockets() -> list[Path]:
        return [path for path in bench.registration_sockets() if path != old]

    found = bench.eventually(sockets)
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

    GetInfo of both.
    """
    with _two(bench) as pair:
        names = {pair.old_info.name, pair.new_info.name}
        expect(len(names) == 1, f"their names are {sorted(names)}", "register under the driver's name")
        seen = f"both have the endpoint {pair.new_info.endpoint}"
        expect(pair.old_info.endpoint != pair.new_info.endpoint, seen, "make the pod's UID a part of the socket's name")


@must("rolling-answers-agree", f"{_HELPER}; kubelet may ask either")
def instances_agree(bench: Bench) -> None:
    """Both instances answer the same for a claim.

    Prepared by the old one, then by the new one, then by the old one.
    """
    with _two(bench) as pair:
        claim = bench.claim()
        answers = [bench.prepared(claim, client=client)[0] for client in (pair.old, pair.new, pair.old)]
        expect(len(set(answers)) == 1, f"the answers are {answers}", "share the record of what is prepared")


@must("rolling-hand-over", _HELPER)
def instances_hand_over(bench: Bench) -> None:
    """Each instance can unprepare what the other has prepared.

    The device is free for both afterwards.
    """
    with _two(bench) as pair:
        for prepares, unprepares in ((pair.old, pair.new), (pair.new, pair.old)):
            claim = bench.claim()
            bench.prepared(claim, client=prepares)
            bench.unprepared(claim, client=unprepares)
            left = bench.files_of(claim)
            expect(not left, f"{left} is left", "share the record of what is prepared")
            if bench.api is not None:
                again = bench.make_claim(claim.results)
                bench.prepared(again, client=prepares)
                bench.unprepared(again, client=prepares)


@should("rolling-held", "kubeletplugin/draplugin.go: last line of defense")
def instances_share_holders(bench: Bench) -> None:
    """A device that one instance has handed out is refused by the other.

    Two claims to one device, one for each instance.
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


@must("rolling-old-leaves", _HELPER)
def the_new_instance_stays(bench: Bench) -> None:
    """When the old instance ends, the new one and its sockets stay, and so do the slices.

    SIGTERM to the old one; claims go on.
    """
    with _two(bench) as pair:
        claim = bench.claim()
        (before,) = bench.prepared(claim, client=pair.old)
        slices = len(bench.slices()) if bench.api else 0
        pair.process.terminate(min(30.0, bench.patience))
        expect(pair.new_socket.exists(), f"{pair.new_socket.name} is gone too", "unlink only your own sockets")
        bench.same_answer(claim, before, "share the record of what is prepared", client=pair.new)
        bench.see_ids_resolve(before)
        left = len(bench.slices()) if bench.api else 0
        expect(left == slices, f"{left} of {slices} slices are left", "leave slices when stopping")
        bench.unprepared(claim, client=pair.new)


@must("rolling-fails", f"{_HELPER}; a failed update is rolled back")
def the_old_instance_goes_on(bench: Bench) -> None:
    """When the new instance is killed, the old one keeps working.

    SIGKILL to the new one.
    """
    with _two(bench) as pair:
        claim = bench.claim()
        (before,) = bench.prepared(claim, client=pair.new)
        pair.process.kill(_NEW)
        bench.same_answer(claim, before, "share the record of what is prepared", client=pair.old)
        bench.unprepared(claim, client=pair.old)


@must("rolling-slices", "resourceslice controller")
def instances_do_not_fight(bench: Bench) -> None:
    """Two instances publish the same slices as one: they neither fight over them nor publish anything twice.

    The writes while both run.
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
