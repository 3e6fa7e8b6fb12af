"""How much CPU and memory the containers of claims use, and what disturbs them: `claims --usage` and `--verify`."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from dranode.api.errors import DranodeError, LedgerError, number_of
from dranode.api.quantity import Quantity, page_size_name
from dranode.driver.claims.hooks import Disturbance, Tunes
from dranode.driver.claims.record import Record
from dranode.driver.claims.usage import (
    GAUGES,
    IDLE_PART,
    IDLE_SECONDS,
    ClaimShare,
    ContainerReading,
    Figure,
    PodUsage,
    UsageBook,
)
from dranode.driver.machine.cgroups import NO_LIMIT, Cgroups
from dranode.driver.machine.container_usage import UsageReader, container_processes
from dranode.driver.machine.numa import local_nodes, node_cpus
from dranode.driver.machine.root import Root, names
from dranode.driver.node.ledger import Contents, decoded_notes
from dranode.driver.pinning.container_cgroups import ContainerCgroup
from dranode.driver.pinning.containers import Effective
from dranode.driver.pinning.snapshot import PinnedClaim, Pins
from dranode.driver.plugins import load_installed
from dranode.show.output import console
from dranode.show.terminal import columns
from dranode.tools.diagnosis.placement import (
    ClaimPlacement,
    PlacedContainer,
    RecordedClaim,
    RecordedParts,
    claims_in,
    container_has_memory,
    expected_memory,
    placements,
    pod_names,
    pod_uids,
)
from dranode.tools.readers.processes import online_for_pods, require_visible

_PERCENT: Final = 100
_MIB: Final = 1 << 20
# How many interrupts a table names for each claim.
_MOST_INTERRUPTS: Final = 3

Key = tuple[str, str]

UNSEEN: Final = "none of its containers can be inspected"
"""The text for a claim without a visible container."""


class _Snapshot(msgspec.Struct, frozen=True):
    """The claims' containers at one moment (`at`, in seconds of a monotonic clock)."""

    at: float
    placements: Mapping[str, ClaimPlacement]


def usage_of(root: Root, records: Iterable[Record], seconds: float) -> dict[str, dict[str, Any]]:
    """Return how much each claim that holds CPUs has used, by UID: since its containers started, and within `seconds`.

    A claim is left out if one of its processes cannot be inspected. Figures that cannot be read are left out too, and
    named on stderr.

    Raises:
        MachineError: `/proc` does not show the claims' processes, or the machine does not say which CPUs are online.
    """
    records = tuple(record for record in records if record.held)
    book = UsageBook()
    first = _snapshot(book, root, records)
    before = {(pod.claim, pod.pod): pod for pod in book.usage().pods}
    time.sleep(seconds)
    last = _snapshot(book, root, records)
    usage = book.usage()
    for figure, count in usage.unread.items():
        if count:
            click.echo(
                f"{figure.value.replace('_', ' ')} could not be read for {number_of(count, 'container')}", err=True
            )
    documents: dict[str, dict[str, Any]] = {}
    for record in records:
        placement = last.placements[record.uid]
        if placement.hidden:
            continue
        pods = [
            _pod(pod, before.get((pod.claim, pod.pod)), len(record.held), last.at - first.at)
            for pod in usage.pods
            if pod.claim == record.ref
        ]
        containers = [_container(root, container) for container in placement.containers]
        idle = usage.idle.get(record.ref)
        documents[record.uid] = {
            "held": len(record.held),
            "seconds": round(last.at - first.at, 3),
            "idle": _idle_since_start(pods, containers, len(record.held)) if idle is None else idle,
            "pods": pods,
            "containers": containers,
        }
    return documents


def _snapshot(book: UsageBook, root: Root, records: tuple[Record, ...]) -> _Snapshot:
    seen = require_visible(root, pod_uids(records))
    placed = placements(records, seen.containers, seen.processes, online_for_pods(root))
    shares: dict[PlacedContainer, list[Record]] = {}
    for record in records:
        for container in placed[record.uid].containers:
            shares.setdefault(container, []).append(record)
    reader, nodes, now = UsageReader(root, Cgroups(root)), node_cpus(root), time.monotonic()
    readings = [
        ContainerReading(
            container.seen.cgroup,
            tuple(ClaimShare(record.ref, container.pod, len(record.held)) for record in sharing),
            reader.read(container.seen.cgroup, local_nodes(container.expected, nodes), container.seen.pids),
        )
        for container, sharing in shares.items()
    ]
    known = {record.ref: len(record.held) for record in records}
    book.add(now, known, readings)
    return _Snapshot(now, placed)


def _pod(usage: PodUsage, before: PodUsage | None, held: int, seconds: float) -> dict[str, Any]:
    """Return the totals, the increase within the interval, and the CPUs in use, also as a part of those held."""
    begun = before.values if before is not None else {}
    rise = {
        figure.value: value - begun.get(figure, 0.0) for figure, value in usage.values.items() if figure not in GAUGES
    }
    used = rise.get(Figure.CPU.value)
    return {
        "pod": usage.pod,
        "total": {figure.value: value for figure, value in usage.values.items()},
        "rise": rise,
        "used": None if used is None else used / seconds,
        "of_held": None if used is None else used / seconds / held,
    }


def _container(root: Root, container: PlacedContainer) -> dict[str, Any]:
    """Return what only a container's processes show: their number, threads, affinity and running time."""
    seen = container_processes(root, container.seen.pids)
    return {
        "pod": container.pod,
        "cgroup": container.seen.cgroup,
        "processes": len(container.seen.processes),
        "threads": None if seen is None else seen.threads,
        "affinity": None if seen is None else str(seen.affinity),
        "running_seconds": None if seen is None else round(max(0.0, time.time() - seen.started), 1),
    }


def _idle_since_start(pods: list[dict[str, Any]], containers: list[dict[str, Any]], held: int) -> bool | None:
    """Return whether containers have used almost no CPU time since they started; None if unknown or within a minute."""
    ages = [container["running_seconds"] for container in containers]
    used = [pod["total"].get(Figure.CPU.value) for pod in pods]
    if not ages or None in ages or None in used:
        return None
    oldest = max(ages)
    if sum(used) >= IDLE_PART * held * oldest:
        return False
    return True if oldest >= IDLE_SECONDS else None


def draw_usage(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Print what each claim, by name, used within the interval."""
    from rich.text import Text

    table = columns("claim", "pod", "held", "used", "of held", "throttled", "waited", "pressure", "other nodes", "")
    idle = []
    for name, usage in rows:
        if usage["idle"]:
            idle.append(name)
        for pod in usage["pods"] or [None]:
            table.add_row(name, *_cells(usage, pod), Text("idle", style="red") if usage["idle"] else "")
    out = console()
    out.print()
    out.print(table)
    if idle:
        out.print(f"\nidle (less than 1 % of its CPUs used for a minute): {', '.join(idle)}")


def _cells(usage: Mapping[str, Any], pod: Mapping[str, Any] | None) -> list[str]:
    held = f"{usage['held']} CPUs"
    if pod is None:
        return ["-", held, *["-"] * 6]
    rise, total = pod["rise"], pod["total"]
    memory, remote = total.get(Figure.MEMORY.value), total.get(Figure.REMOTE_MEMORY.value)
    return [
        pod["pod"],
        held,
        "-" if pod["used"] is None else f"{pod['used']:.2f}",
        _part(pod["of_held"]),
        _part(_ratio(rise.get(Figure.THROTTLED_PERIODS.value), rise.get(Figure.PERIODS.value))),
        _seconds(rise.get(Figure.WAIT.value)),
        _part(_ratio(rise.get(Figure.WAITING.value), usage["seconds"])),
        "-" if remote is None or memory is None else f"{remote / _MIB:.0f} of {memory / _MIB:.0f} MiB",
    ]


def _ratio(value: float | None, whole: float | None) -> float | None:
    if value is None or whole is None:
        return None
    return value / whole if whole else 0.0


def _part(value: float | None) -> str:
    return "-" if value is None else f"{value * _PERCENT:.1f} %"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


class _Container(msgspec.Struct, frozen=True):
    """A container whose claims determine the memory that it gets."""

    seen: ContainerCgroup
    pod: str
    claims: RecordedParts
    expected: Effective


def recorded_claims(root: Root, records: Mapping[str, Iterable[Record]]) -> tuple[RecordedClaim, ...]:
    """Return the claims on record of the installed drivers that pin containers, in the order of the drivers.

    Drivers that are not installed, and claims whose memory is unknown, are named on stderr.
    """
    plugins = load_installed(root)
    for driver in sorted(records.keys() - {plugin.driver for plugin in plugins}):
        click.echo(
            f"{driver}: it is unknown which memory its claims' containers get, because it is not installed", err=True
        )
    return tuple(
        RecordedClaim.of(plugin.driver, record, _held(plugin.driver, plugin, record))
        for plugin in plugins
        if isinstance(plugin, Pins)
        for record in records.get(plugin.driver, ())
    )


def _held(driver: str, pins: Pins, record: Record) -> PinnedClaim | None:
    try:
        return pins.pinned(record)
    except DranodeError as error:
        click.echo(f"{driver}: it is unknown which memory {record.ref} has: {error}", err=True)
        return None


def memory_of(root: Root, claims: Sequence[RecordedClaim]) -> dict[Key, dict[str, Any]]:
    """Return whether the containers of claims get their memory from where the claims say, by driver and claim UID.

    Raises:
        MachineError: `/proc` does not show the claims' processes.
    """
    cgroups = Cgroups(root)
    # Claims without a visible container stay empty.
    documents: dict[Key, list[dict[str, Any]]] = {}
    for container in _containers(root, claims):
        actual = cgroups.memory(container.seen.cgroup, container.expected)
        # A pod's limit on huge pages also applies to its containers.
        of_pod = cgroups.memory(container.seen.cgroup.rpartition("/")[0], container.expected)
        document = {
            "pod": container.pod,
            "cgroup": container.seen.cgroup,
            "expected": _memory_document(container.expected),
            "found": _memory_document(actual),
            "podMayHave": _memory_document(of_pod)["hugepages"],
            "ok": container_has_memory(container.claims, container.expected, actual),
        }
        for claim, _ in container.claims:
            documents.setdefault(_key(claim), []).append(document)
    for claim in claims:
        if claim.held is not None and expected_memory((claim.held,)):
            documents.setdefault(_key(claim), [])
    return {key: {"ok": _all_ok(containers), "containers": containers} for key, containers in documents.items()}


def memory_usage_of(root: Root, claims: Sequence[RecordedClaim]) -> dict[Key, list[dict[str, Any]]]:
    """Return how much of their memory the containers of claims use, by driver and claim UID.

    A container with several such claims appears under each, because nothing shows which claim a page came from. A claim
    without a visible container has an empty list.

    Raises:
        MachineError: `/proc` does not show the claims' processes.
    """
    reader = UsageReader(root, Cgroups(root))
    holding = [claim for claim in claims if claim.held is not None and claim.held.nodes]
    used: dict[Key, list[dict[str, Any]]] = {_key(claim): [] for claim in holding}
    for container in _containers(root, holding):
        for claim, held in container.claims:
            if held is None:
                continue
            figures = reader.read_memory(container.seen.cgroup, held.nodes, ())
            total, remote = (_sum(figures.get(figure)) for figure in (Figure.MEMORY, Figure.REMOTE_MEMORY))
            document = {
                "pod": container.pod,
                "cgroup": container.seen.cgroup,
                "nodes": str(held.nodes),
                "bytes": total,
                "bytesElsewhere": remote,
                "hugepages": {
                    page_size_name(size): {"given": given, "used": reader.pages_used(container.seen.cgroup, size)}
                    for size, given in held.hugepages
                },
            }
            used.setdefault(_key(claim), []).append(document)
    return used


def draw_memory(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Print which memory the containers of each claim, by name, should have and do have."""
    from rich.text import Text

    table = columns("claim", "pod", "memory from nodes", "comes from", "huge pages", "may have", "")
    for name, verified in rows:
        if verified["unseen"]:
            table.add_row(name, *[""] * 5, UNSEEN)
        for container in verified["containers"]:
            words: dict[bool | None, str | Text] = {True: "yes", False: Text("NO", style="red"), None: "not seen"}
            word = words[container["ok"]]
            expected, actual = container["expected"], container["found"]
            pages = (_amounts(expected["hugepages"]), _amounts(actual["hugepages"]))
            table.add_row(
                name, container["pod"], expected["nodes"] or "any", actual["nodes"] or "not seen", *pages, word
            )
    if table.row_count:
        out = console()
        out.print()
        out.print(table)


def draw_memory_usage(rows: Iterable[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """Print how much of its memory the containers of each claim, by name, use."""
    table = columns("claim", "pod", "nodes", "memory used", "of that elsewhere", "huge pages used")
    for name, containers in rows:
        for container in containers:
            pages = ", ".join(
                f"{_amount(pool['used'])} of {_amount(pool['given'])} in {size}"
                for size, pool in container["hugepages"].items()
            )
            memory, elsewhere = (_amount(container[figure]) for figure in ("bytes", "bytesElsewhere"))
            table.add_row(name, container["pod"], container["nodes"], memory, elsewhere, pages or "-")
    if table.row_count:
        out = console()
        out.print()
        out.print(table)


def _containers(root: Root, claims: Sequence[RecordedClaim]) -> Iterator[_Container]:
    """Yield the containers whose claims determine the memory that they get."""
    if not any(claim.held is not None and (claim.held.nodes or claim.held.mems) for claim in claims):
        return
    records = [claim.record for claim in claims]
    pods = pod_names(records)
    for seen in require_visible(root, pod_uids(records)).containers:
        parts = claims_in(claims, seen.env)
        expected = expected_memory(held for _, held in parts)
        if expected:
            yield _Container(seen, pods.get(seen.pod, seen.pod), parts, expected)


def _key(claim: RecordedClaim) -> Key:
    return claim.driver, claim.record.uid


def _memory_document(effective: Effective) -> dict[str, Any]:
    # null in the document means that there is no limit.
    pages = {page_size_name(size): None if limit >= NO_LIMIT else limit for size, limit in effective.hugepages}
    return {"nodes": None if effective.nodes is None else str(effective.nodes), "hugepages": pages}


def _all_ok(containers: Iterable[Mapping[str, Any]]) -> bool | None:
    verdicts = [container["ok"] for container in containers]
    return False if False in verdicts else None if None in verdicts or not verdicts else True


def _sum(values: Mapping[str, float] | None) -> int | None:
    return None if values is None else int(sum(values.values()))


def _amounts(pages: Mapping[str, int | None]) -> str:
    return ", ".join(f"{'any' if limit is None else _amount(limit)} in {size}" for size, limit in pages.items()) or "-"


def _amount(size: int | None) -> str:
    return "not seen" if size is None else str(Quantity.binary(-(-size // _MIB) * _MIB))


def disturbances_of(
    root: Root, noted: Mapping[str, Contents], placements: Mapping[str, ClaimPlacement]
) -> dict[str, dict[str, Any]]:
    """Return what has disturbed each claim that wants quiet CPUs since its Prepare, by UID.

    Args:
        root: the machine's files.
        noted: the ledgers with notes of their driver, by driver.
        placements: where the claims' containers run.
    """
    documents: dict[str, dict[str, Any]] = {}
    for disturbance in _disturbances(root, noted):
        placement = placements.get(disturbance.claim.uid)
        if placement is not None:
            own = None if disturbance.busy is None else _own(root, placement, disturbance)
            documents[disturbance.claim.uid] = _disturbance_document(disturbance, own, _ended(root, placement))
    return documents


def _disturbances(root: Root, noted: Mapping[str, Contents]) -> Iterator[Disturbance]:
    for plugin in load_installed(root) if noted else ():
        if isinstance(plugin, Tunes) and plugin.driver in noted:
            contents = noted[plugin.driver]
            try:
                notes = decoded_notes(contents)
                if lost := plugin.unrestorable(notes):
                    click.echo(f"{plugin.driver}: {lost}", err=True)
                yield from plugin.disturbances(contents.records, notes)
            except LedgerError as error:
                click.echo(f"{plugin.driver}: it is unknown what disturbed its claims: {error}", err=True)


def _own(root: Root, placement: ClaimPlacement, disturbance: Disturbance) -> float | None:
    """Return how many seconds the claim's own containers ran; None if unknown, or if they also ran on other CPUs."""
    reader = UsageReader(root, Cgroups(root))
    seconds = 0.0
    for container in placement.containers:
        ran = reader.read(container.seen.cgroup, None).get(Figure.CPU)
        if ran is None or not container.expected <= disturbance.cpus:
            return None
        seconds += sum(ran.values())
    return None if placement.hidden else seconds


def _ended(root: Root, placement: ClaimPlacement) -> float:
    """Return how many seconds the ended containers of the claim's pods ran, with or without the claim.

    The counters of a pod's cgroup include containers whose own cgroups are gone.
    """
    cgroups = Cgroups(root)
    reader, seconds = UsageReader(root, cgroups), 0.0
    for pod in {container.seen.cgroup.rpartition("/")[0] for container in placement.containers}:
        running = {name for hierarchy in cgroups.cpuset for name in names(root, f"{hierarchy}/{pod}")}
        seconds += max(0.0, _ran(reader, pod) - sum(_ran(reader, f"{pod}/{name}") for name in running))
    return seconds


def _ran(reader: UsageReader, folder: str) -> float:
    return sum(reader.read(folder, None, ()).get(Figure.CPU, {}).values())


def _disturbance_document(disturbance: Disturbance, own: float | None, ended: float) -> dict[str, Any]:
    busy = disturbance.busy
    return {
        "cpus": str(disturbance.cpus),
        "deviceInterrupts": disturbance.count,
        "interrupts": disturbance.interrupts,
        "kernelInterrupts": disturbance.kernel,
        "busySeconds": None if busy is None else round(busy, 3),
        "ownSeconds": None if own is None else round(own, 3),
        "endedSeconds": round(ended, 3),
        "othersSeconds": None if busy is None or own is None else round(max(0.0, busy - own), 3),
    }


def draw_disturbances(disturbed: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Print what has disturbed each claim, by name."""
    table = columns("claim", "quiet CPUs", "device interrupts", "most often", "others ran")
    for name, disturbance in disturbed:
        count, interrupts = disturbance["deviceInterrupts"], disturbance["interrupts"] or {}
        most = sorted(interrupts.items(), key=lambda item: -item[1])[:_MOST_INTERRUPTS]
        others = disturbance["othersSeconds"]
        table.add_row(
            name,
            disturbance["cpus"],
            "unknown" if count is None else str(count),
            ", ".join(f"{interrupt}: {count}" for interrupt, count in most) or "-",
            "unknown" if others is None else f"{'at most ' if disturbance['endedSeconds'] else ''}{others:.2f} s",
        )
    out = console()
    out.print("\nOn CPUs that claims want quiet, since the claims were prepared:")
    out.print(table)
