"""Checks that a driver uses nothing of the node that grows with the claims that have come and gone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable, expect
from dranode.sanity.check import should
from dranode.sanity.kubelet import HEALTH_SERVICES, DriverCallError
from dranode.sanity.process import ProcessUsage

_NODE: Final = "Kubernetes, node allocatable: what node agents use is lost to pods, on every node, for months"
# Claims that come and go before the first look, and between the first and the last.
_WARM_UP: Final = 10
_CLAIMS: Final = 60
# What may be more afterwards: a connection, a pool of threads that fills up.
_MORE: Final = 8
_MORE_BYTES: Final = 16 << 20
# How long what was let go of may take to be closed, on a machine with other work.
_CLOSED_SECONDS: Final = 20.0
# Of one CPU, while nothing happens.
_IDLE: Final = 0.2


@should("resources-idle", _NODE)
def an_idle_driver_rests(bench: Bench) -> None:
    """An idle driver uses less than a fifth of a CPU.

    CPU time over the time for which quiet is watched.
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

    Each claim over a connection of its own.
    """
    before, after = _churned(bench, lambda usage: usage.descriptors)
    expect(
        after <= before + _MORE,
        f"{_CLAIMS} claims later {after} descriptors are open; before, it was {before}",
        "close files and connections after use",
    )


@should("resources-threads", _NODE)
def threads_end(bench: Bench) -> None:
    """Claims that were prepared and unprepared leave no thread running.

    Threads as the kernel counts them.
    """
    before, after = _churned(bench, lambda usage: usage.threads)
    expect(after <= before + _MORE, f"{_CLAIMS} claims later there are {after} threads, up from {before}", "end them")


@should("resources-memory", _NODE)
def memory_is_given_back(bench: Bench) -> None:
    """Claims that were prepared and unprepared do not increase resident memory.

    Resident memory; some is the allocator's.
    """
    before, after = _churned(bench, lambda usage: usage.resident)
    expect(
        after <= before + _MORE_BYTES,
        f"{_CLAIMS} claims later it uses {after >> 20} MiB, up from {before >> 20} MiB",
        "forget what was unprepared",
    )


@should("resources-processes", _NODE)
def children_are_waited_for(bench: Bench) -> None:
    """The driver waits for every child process that has ended.

    Processes that have ended and still have a number.
    """
    _, after = _churned(bench, lambda usage: usage.zombies)
    expect(
        after == 0,
        f"{_CLAIMS} claims later {after} child processes have ended and were not waited for",
        "wait for children",
    )


@should("resources-files", _NODE)
def the_folder_does_not_fill(bench: Bench) -> None:
    """Claims that were prepared and unprepared leave no file in the driver's folder.

    Files below the folder for plugins' data.
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
        f"{_WARM_UP} claims later there are new files ({len(more)}), such as {more[:3]}",
        "remove them in Unprepare",
    )


@should(
    "resources-streams",
    "kubelet, pkg/kubelet/cm/dra/plugin: a stream is opened anew whenever one ends and whenever kubelet starts",
)
def streams_end(bench: Bench) -> None:
    """Health streams that have ended leave no thread and no file descriptor behind.

    Streams, one after another, each of which the caller ends after its first message.
    """
    service = next((each for each in HEALTH_SERVICES if each in bench.info.versions), None)
    if service is None:
        raise Unable("the driver advertises no health service")
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
    for _ in range(count):
        client = bench.another_connection()
        with contextlib.suppress(DriverCallError), contextlib.closing(client.health(service, bench.patience)) as stream:
            next(stream, None)
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
    for _ in range(count):
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
