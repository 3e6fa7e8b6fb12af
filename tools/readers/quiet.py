"""Reads what has disturbed claims that want quiet CPUs, with the processes that ran there."""

from __future__ import annotations

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import LedgerError, MachineError
from dranode.driver.claims.consumers import names_every_pod, pods_among
from dranode.driver.claims.hooks import Disturbance, Tunes
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Record
from dranode.driver.machine.processes import NO_KERNEL, ThreadSeen, pods_seen, shows_kernel, threads_seen_on
from dranode.driver.machine.root import Root
from dranode.driver.node.ledger import Contents, decoded_notes
from dranode.driver.pinning.container_cgroups import is_pod_folder
from dranode.tools.diagnosis.placement import InjectedVariables


def read_unrestorable(plugin: Plugin, contents: Contents) -> str:
    """Return why settings that the driver's claims have changed cannot be put back; empty if they can."""
    if not isinstance(plugin, Tunes):
        return ""
    try:
        return plugin.unrestorable(decoded_notes(contents))
    except LedgerError as error:
        return f"settings that claims have changed cannot be put back: {error}"


def read_disturbances(files: Root, plugin: Plugin, contents: Contents, unseen: list[str]) -> tuple[Disturbance, ...]:
    """Return what has disturbed the driver's claims; none where the driver tunes nothing for any.

    Args:
        files: the node's files.
        plugin: the driver.
        contents: its ledger.
        unseen: gets a sentence on what of that cannot be seen.
    """
    if not isinstance(plugin, Tunes) or not contents.notes:
        return ()
    try:
        found = tuple(plugin.disturbances(contents.records, decoded_notes(contents)))
    except LedgerError as error:
        unseen.append(f"what disturbed the quiet CPUs of {plugin.driver}'s claims: {error}")
        return ()
    unseen += [
        f"how often devices interrupted CPUs {each.cpus}, which claim {each.claim} wants quiet: the kernel does not "
        "count it for all of them (/proc/interrupts), or did not when the claim began"
        for each in found
        if each.count is None
    ]
    owners = {record.uid: record for record in contents.records}
    try:
        if not found or shows_kernel(files):
            return tuple(
                replace(each, processes=_intruders(files, each.cpus, owners[each.claim.uid])) for each in found
            )
        unseen.append(f"which threads ran on CPUs that claims want quiet: {NO_KERNEL}; look from the node itself")
    except MachineError as error:
        unseen.append(f"which threads ran on CPUs that claims want quiet: {error}")
    return found


def _intruders(files: Root, cpus: CPUSet, owner: Record) -> tuple[str, ...]:
    """Return whose threads ran last on a claim's CPUs and are none of its pods', each name once, the busiest first."""
    seconds: dict[str, float] = {}
    own = _own_processes(files, owner)
    for each in threads_seen_on(files, cpus):
        if each.pid not in own and not _is_own(each, owner):
            name = f"{each.name} ({'kernel thread' if each.kernel else 'process'} {each.pid})"
            seconds[name] = seconds.get(name, 0.0) + each.seconds
    return tuple(name for name, _ in sorted(seconds.items(), key=lambda pair: -pair[1]))


def _own_processes(files: Root, owner: Record) -> frozenset[int]:
    """Return the processes of containers with the claim, where the record does not name all of its pods."""
    if names_every_pod(owner.pods):
        return frozenset()
    variables = InjectedVariables.of((owner,))
    containers = pods_seen(files, None).containers
    return frozenset(pid for each in containers if owner.uid in variables.claims_in(each.env) for pid in each.pids)


def _is_own(thread: ThreadSeen, owner: Record) -> bool:
    return any(is_pod_folder(part, pod.uid) for pod in pods_among(owner.pods) for part in thread.cgroup.split("/"))
