"""What a driver does to its node: memory, threads and files that must not grow, and files of others beside its own."""

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable, expect, listed
from dranode.sanity.check import must, should
from dranode.sanity.checks.health import first_report
from dranode.sanity.driver_link import ProcessUsage
from dranode.sanity.kubelet import HEALTH_SERVICES

_NODE: Final = "Kubernetes, node allocatable: what node agents use is lost to pods, on every node, for months"
# Claims that come and go before the first measurement, and between the first and the last: fewer for a slow driver.
_WARM_UP: Final = 10
_CLAIMS: Final = 60
_CLAIMS_SECONDS: Final = 30.0
# How much more is allowed afterwards: a connection, a pool of threads that fills up.
_MORE: Final = 8
_MORE_BYTES: Final = 16 << 20
# How long closing may take on a busy machine.
_CLOSED_SECONDS: Final = 20.0
# Of one CPU, while nothing happens.
_IDLE: Final = 0.2


@should("resources-idle", _NODE)
def an_idle_driver_rests(bench: Bench) -> None:
    """An idle driver uses less than a fifth of a CPU.

    Compares CPU time with the time for which the driver is left alone.
    """
    seconds = max(bench.quiet, 1.0)
    bench.wait(1.0)
    before = _usage(bench)
    bench.wait(seconds)
    share = (_usage(bench).cpu - before.cpu) / seconds
    expect(share < _IDLE, f"it used {share:.0%} of a CPU over {seconds:g} s", "wait for events, do not poll")


@should("resources-descriptors", _NODE)
def descriptors_are_closed(bench: Bench) -> None:
    """Claims that were prepared and unprepared leave no file descriptor open.

    Uses a new connection for each claim.
    """
    before, after = _churned(bench, lambda usage: usage.descriptors)
    expect(
        after <= before + _MORE,
        f"up to {_CLAIMS} claims later {after} descriptors are open; before, it was {before}",
        "close files and connections after use",
    )


@should("resources-threads", _NODE)
def threads_end(bench: Bench) -> None:
    """Claims that were prepared and unprepared leave no thread running.

    Counts threads as the kernel does.
    """
    before, after = _churned(bench, lambda usage: usage.threads)
    expect(
        after <= before + _MORE, f"up to {_CLAIMS} claims later there are {after} threads, up from {before}", "end them"
    )


@should("resources-memory", _NODE)
def memory_is_given_back(bench: Bench) -> None:
    """Claims that were prepared and unprepared do not increase resident memory.

    Allows for some memory that the allocator keeps.
    """
    before, after = _churned(bench, lambda usage: usage.resident)
    expect(
        after <= before + _MORE_BYTES,
        f"up to {_CLAIMS} claims later it uses {after >> 20} MiB, up from {before >> 20} MiB",
        "forget what was unprepared",
    )


@should("resources-processes", _NODE)
def children_are_waited_for(bench: Bench) -> None:
    """The driver waits for every child process that has ended.

    Looks for processes that have ended and still have a number (zombies).
    """
    _, after = _churned(bench, lambda usage: usage.zombies)
    expect(
        after == 0,
        f"up to {_CLAIMS} claims later {after} child processes have ended and were not waited for",
        "wait for children",
    )


@should("resources-files", _NODE)
def the_folder_does_not_fill(bench: Bench) -> None:
    """Claims that were prepared and unprepared leave no file in the driver's folder.

    Looks at all files in the driver's folder.
    """
    data = bench.places.data
    if data is None:
        raise Unable("the driver's folder is unknown; give its command after --")
    _come_and_go(bench, _WARM_UP)
    before = _files(data)
    _come_and_go(bench, _WARM_UP)
    seen = bench.eventually(lambda: len(_files(data)) <= len(before), bench.quiet) or len(_files(data)) <= len(before)
    more = sorted(_files(data) - before)
    expect(
        seen,
        f"{_WARM_UP} claims later there are new files ({len(more)}), such as {listed(more[:3])}",
        "remove them in Unprepare",
    )


@should(
    "resources-streams",
    "kubelet, pkg/kubelet/cm/dra/plugin: a stream is opened anew whenever one ends and whenever kubelet starts",
)
def streams_end(bench: Bench) -> None:
    """Health streams that have ended leave no thread and no file descriptor behind.

    Opens streams one after another, and closes each after its first message.
    """
    service = next((each for each in HEALTH_SERVICES if each in bench.info.versions), None)
    if service is None:
        raise Unable("the driver advertises no health service")
    first_report(bench)
    _watch(bench, service, _WARM_UP)
    before = _usage(bench)
    _watch(bench, service, _CLAIMS)
    bench.eventually(lambda: _more(before, _usage(bench)) <= 0, max(bench.quiet, _CLOSED_SECONDS))
    after = _usage(bench)
    expect(
        _more(before, after) <= _MORE,
        f"{_CLAIMS} streams later there are {after.threads} threads and {after.descriptors} descriptors, "
        f"{before.threads} and {before.descriptors} before",
        "stop serving a stream when its caller is gone, even if there is nothing to send",
    )


def _watch(bench: Bench, service: str, count: int) -> None:
    for number in range(count):
        client = bench.another_connection()
        with contextlib.closing(client.health(service, _CLOSED_SECONDS)) as stream:
            seen = f"after {number} streams have come and gone, the next one sent nothing within {_CLOSED_SECONDS:g} s"
            expect(next(stream, None) is not None, seen, "stop serving a stream when its caller is gone")
        client.close()


def _more(before: ProcessUsage, after: ProcessUsage) -> int:
    return max(after.threads - before.threads, after.descriptors - before.descriptors)


def _churned(bench: Bench, figure: Callable[[ProcessUsage], int]) -> tuple[int, int]:
    """A figure before and after claims have come and gone; it is given time to come down again."""
    _come_and_go(bench, _WARM_UP)
    before = figure(_usage(bench))
    _come_and_go(bench, _CLAIMS)
    bench.eventually(lambda: figure(_usage(bench)) <= before, max(bench.quiet, _CLOSED_SECONDS))
    return before, figure(_usage(bench))


def _come_and_go(bench: Bench, count: int) -> None:
    ends = time.monotonic() + _CLAIMS_SECONDS
    for _ in range(count):
        if time.monotonic() > ends:
            return
        claim = bench.claim()
        client = bench.another_connection()
        bench.prepared(claim, client=client)
        bench.unprepared(claim, client=client)
        client.close()


def _usage(bench: Bench) -> ProcessUsage:
    usage = bench.started().usage()
    if usage is None:
        raise Unable("the kernel does not report what the driver uses")
    return usage


def _files(folder: Path) -> set[str]:
    # Unlike Path.rglob it passes over folders that the driver removes meanwhile.
    return {os.path.relpath(Path(at, name), folder) for at, _, names in os.walk(folder) for name in names}


# A driver leaves other files beside its own unchanged, and other users cannot change the driver's.


# Belongs to nobody, like example.org.
_OTHER: Final = "neighbor.example.org"
_SPEC: Final = {
    "cdiVersion": "0.5.0",
    "kind": f"{_OTHER}/thing",
    "devices": [{"name": "one", "containerEdits": {"env": ["NEIGHBOUR=1"]}}],
}


@must(
    "cdi-foreign",
    "CDI, SPEC.md: all vendors share the folders of specs; containers with their devices restart at any time",
)
def specs_of_others_stay(bench: Bench) -> None:
    """Specs of other vendors are left alone: while claims come and go, and when the driver starts.

    Looks at another vendor's spec after Prepare, Unprepare, a kill and a start.
    """
    path = bench.specs.folder / f"{_OTHER}-thing.json"
    content = json.dumps(_SPEC)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    try:
        claim = bench.claim()
        bench.prepared(claim)
        bench.unprepared(claim)
        _expect_kept(path, content, "while a claim came and went")
        if bench.process is not None:
            bench.restart()
            bench.eventually(lambda: not path.exists(), bench.quiet)
            _expect_kept(path, content, "when the driver started")
    finally:
        path.unlink(missing_ok=True)


def _expect_kept(path: Path, content: str, when: str) -> None:
    remedy = "touch only specs of the driver's own vendor and class"
    expect(path.exists(), f"the spec {path.name} of another vendor was removed {when}", remedy)
    expect(path.read_text() == content, f"the spec {path.name} of another vendor was changed {when}", remedy)


@must(
    "registration-foreign",
    "kubelet, pkg/kubelet/pluginmanager: all plugins share the folder, and one whose socket goes is deregistered",
)
def sockets_of_others_stay(bench: Bench) -> None:
    """Sockets of other plugins in the registration folder are left alone when the driver starts.

    Looks at another plugin's socket after a kill and a start.
    """
    bench.started()
    folder = bench.places.registration
    if folder is None or not folder.is_dir():
        raise Unable("the folder of registration sockets is unknown; give the driver's command after --")
    with _socket_of_another(folder) as path:
        bench.restart()
        bench.eventually(lambda: not path.exists(), bench.quiet)
        expect(
            path.exists(),
            f"the socket {path.name} of another plugin was removed when the driver started",
            "remove only the driver's own sockets",
        )


@contextlib.contextmanager
def _socket_of_another(folder: Path) -> Iterator[Path]:
    path = folder / f"{_OTHER}-reg.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


@should(
    "restart-state-not-writable",
    "KEP-4381: drivers need a checkpoint of what was prepared; the driver, which runs as root, acts on what it says",
)
def state_is_protected(bench: Bench) -> None:
    """Only the owner can write to the driver's records of claims: the driver trusts them after a restart.

    Looks at the modes of the files in the driver's folder while a claim is prepared.
    """
    data = bench.places.data
    if data is None:
        raise Unable("the driver's folder is unknown; give its command after --")
    bench.prepared(bench.claim())
    for at, _, names in os.walk(data):
        for name in names:
            path = Path(at, name)
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                mode = stat.S_IMODE(status.st_mode)
                protected = not stat.S_ISREG(status.st_mode) or not mode & 0o022 or _is_closed(path.parent, data)
                expect(
                    protected,
                    f"{path.relative_to(data)} has the mode {mode:04o}",
                    "write it with the mode 0600, or in a folder that only the owner can enter",
                )


def _is_closed(folder: Path, top: Path) -> bool:
    """Return whether only the owner can enter a folder, or one above it that lies below the top."""
    while folder != top:
        if not folder.stat().st_mode & 0o011:
            return True
        folder = folder.parent
    return False
