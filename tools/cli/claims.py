"""`dranode claims`: lists the claims on record on this node, their pods, and whether these run on the granted CPUs."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.errors import DranodeError, UsageError
from dranode.api.quantity import Quantity
from dranode.driver.claims.record import Record, ledger_problems
from dranode.driver.claims.users import UsedClaim, used_claims, with_users
from dranode.driver.cli.options import machine_option, names_of_drivers, serve_option
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.machine.presence import is_there
from dranode.driver.machine.root import Root
from dranode.driver.node.ledger import Contents, Damaged
from dranode.driver.pinning.given_cpus import cpus_of_requests
from dranode.driver.plugins import load_installed, published_names
from dranode.show.ledger_reading import had_ledger, read_ledger
from dranode.show.output import console, emit, fail, output_option, picture_options, write_pictures
from dranode.show.picture.fleet import FleetPicture
from dranode.show.terminal import columns
from dranode.show.views import driver_views, machine_picture
from dranode.tools.cli.claim_usage import (
    UNSEEN,
    disturbances_of,
    draw_disturbances,
    draw_memory,
    draw_memory_usage,
    draw_usage,
    memory_of,
    memory_usage_of,
    recorded_claims,
    usage_of,
)
from dranode.tools.diagnosis.placement import ClaimPlacement, placements, pod_uids
from dranode.tools.readers.processes import NO_KERNEL, online_for_pods, require_visible, shows_kernel, threads_last_on

# How many intruders a table lists; the others are only counted.
_MOST_INTRUDERS: Final = 20


@click.command(short_help="List the claims on record on this node.")
@serve_option("--kubelet-root")
@names_of_drivers("Only the claims of these drivers, by short name or as they publish.")
@serve_option("--pod-resources-socket")
@click.option(
    "--verify",
    is_flag=True,
    help="Check in cgroups and /proc that the claims' containers run on their CPUs, and list who else may run there. "
    "Status 1 if a container does not. Needs root, and the host's /proc and /sys (in a pod: --machine DIR).",
)
@click.option(
    "--usage",
    is_flag=True,
    help="Measure how much of their CPUs and memory the claims' containers use, and name idle claims. Needs what "
    "--verify needs.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=5.0,
    show_default=True,
    metavar="S",
    help="With --usage: the time between the two readings.",
)
@machine_option
@picture_options
@output_option
def command(
    *,
    kubelet_root: str,
    drivers: tuple[str, ...],
    pod_resources_socket: str,
    root: Root,
    output: str,
    html: str | None,
    svg: str | None,
    verify: bool,
    usage: bool,
    seconds: float,
) -> None:
    """List every claim that a driver has on record, with its devices and the pods that may use it.

    \b
    Example:
      dranode claims
      dranode claims --kubelet-root state/kubelet -o json
      dranode claims --verify
      dranode claims --usage --seconds 60
      dranode claims --html claims.html
    """
    if math.isnan(seconds):  # click's range has it too
        raise UsageError("--seconds must be a number from 0.1 to 3600, not NaN")
    plugins = Path(kubelet_root) / "plugins"
    ledgers = {driver: read_ledger(plugins / driver / "ledger.db") for driver in _recorded(plugins, drivers, root)}
    for driver, contents in ledgers.items():
        for sentence in ledger_problems(contents.loss, contents.records, driver):
            click.echo(f"{driver}: {sentence}", err=True)
    used = _used(Path(pod_resources_socket or Path(kubelet_root) / "pod-resources" / "kubelet.sock"), ledgers)
    ledgers = {driver: _with_users(driver, contents, used) for driver, contents in ledgers.items()}
    rows = [_row(driver, record, used) for driver, contents in ledgers.items() for record in contents.records]
    rows += [_damaged(driver, damaged) for driver, contents in ledgers.items() for damaged in contents.damaged]
    rows.sort(key=lambda row: (row["namespace"], row["name"], row["uid"], row["driver"]))
    placements = _placements(root, ledgers) if verify else {}
    all_seen = _all_seen(root) if placements else True
    for row in rows:
        if row["uid"] in placements and row["held"]:
            held = CPUSet.parse(row["held"] or "")
            row["verify"] = _verified(placements[row["uid"]], held, root, all_seen=all_seen)
    if verify:
        _add_disturbances(rows, root, ledgers, placements)
    if verify or usage:
        _add_memory(rows, root, ledgers, verify=verify, usage=usage)
    if usage:
        _add_usage(rows, root, ledgers, seconds)
    write_pictures(html, svg, lambda: _picture(root, Path(kubelet_root)))
    if not emit(rows, output):
        _draw_claims(rows)
        _draw_checked(rows, verify=verify, usage=usage)
    _judge(rows, placements)


def _judge(rows: Iterable[Mapping[str, Any]], placements: Mapping[str, ClaimPlacement]) -> None:
    if any(placement.ok is False for placement in placements.values()):
        fail("a container with a claim does not run on the CPUs that it was given; see the driver's log")
    if any(row.get("verify", {}).get("containerMemory", {}).get("ok") is False for row in rows):
        fail("a container with a claim does not have the memory that it was given; see the driver's log")


def _picture(root: Root, kubelet_root: Path) -> FleetPicture:
    return machine_picture("Claims on node", root, driver_views(load_installed(root), kubelet_root))


def _recorded(plugins: Path, drivers: tuple[str, ...], root: Root) -> list[str]:
    """Return the drivers that have or had a ledger, of those named, or of all."""
    asked = published_names(drivers, root)
    try:
        # Not Path.glob, which silently skips folders that may not be read: an unreadable ledger has to be an error.
        names = sorted(os.listdir(plugins))  # noqa: PTH208 - only the names are needed
        known = {*names, *(plugin.driver for plugin in load_installed(root))} if asked else set()
        for name in asked:
            if name not in known:
                raise UsageError(f"no driver {name} is installed or has a record; known: {', '.join(sorted(known))}")
        return [name for name in names if name in (asked or names) and had_ledger(plugins / name / "ledger.db")]
    except (FileNotFoundError, NotADirectoryError):
        fail(f"{plugins} does not exist; pass kubelet's root with --kubelet-root")
    except OSError as error:
        fail(f"{error.filename} cannot be read: {error.strerror}; try as root")


def _used(socket: Path, ledgers: Mapping[str, Contents]) -> dict[tuple[str, str], UsedClaim]:
    """Return the users of claims that kubelet reports, by driver and UID; none if kubelet does not answer."""
    try:
        if not is_there(socket):
            return {}
    except OSError as error:
        click.echo(f"it is unknown who uses the claims: {socket} cannot be read: {error.strerror}", err=True)
        return {}
    kubelet = PodResources(socket)
    users: dict[tuple[str, str], UsedClaim] = {}
    try:
        for driver, contents in ledgers.items():
            uses = used_claims(kubelet.claims(driver), (record.ref for record in contents.records))
            users.update(((driver, uid), use) for uid, use in uses.items())
    except DranodeError as error:
        click.echo(f"it is unknown who uses the claims: {error}", err=True)
    return users


def _with_users(driver: str, contents: Contents, used: Mapping[tuple[str, str], UsedClaim]) -> Contents:
    """Add the pods that are not on record, but use a claim according to kubelet."""
    pods = {uid: use.pods for (user_driver, uid), use in used.items() if user_driver == driver}
    records = tuple(with_users(record, pods.get(record.uid, ())) for record in contents.records)
    return msgspec.structs.replace(contents, records=records)


def _placements(root: Root, ledgers: Mapping[str, Contents]) -> dict[str, ClaimPlacement]:
    records = [record for contents in ledgers.values() for record in contents.records]
    seen = require_visible(root, pod_uids(records))
    return placements(records, seen.containers, seen.processes, online_for_pods(root))


def _all_seen(root: Root) -> bool:
    """Return whether all processes are visible; say on stderr what is unknown if not."""
    if shows_kernel(root):
        return True
    click.echo(f"it is unknown which processes without a claim may run on CPUs of claims: {NO_KERNEL}", err=True)
    return False


def _add_disturbances(
    rows: list[dict[str, Any]],
    root: Root,
    ledgers: Mapping[str, Contents],
    placements: Mapping[str, ClaimPlacement],
) -> None:
    noted = {driver: contents for driver, contents in ledgers.items() if contents.notes or contents.notes_damage}
    disturbances = disturbances_of(root, noted, placements)
    for row in rows:
        if row["uid"] in disturbances:
            row["verify"]["disturbance"] = disturbances[row["uid"]]


def _add_memory(
    rows: list[dict[str, Any]], root: Root, ledgers: Mapping[str, Contents], *, verify: bool, usage: bool
) -> None:
    claims = recorded_claims(root, {driver: contents.records for driver, contents in ledgers.items()})
    verified = memory_of(root, claims) if verify else {}
    used = memory_usage_of(root, claims) if usage else {}
    for row in rows:
        key = row["driver"], row["uid"]
        if key in verified:
            row.setdefault("verify", {})["containerMemory"] = verified[key]
        if key in used:
            row["memory_usage"] = used[key]


def _add_usage(rows: list[dict[str, Any]], root: Root, ledgers: Mapping[str, Contents], seconds: float) -> None:
    used = usage_of(root, [record for contents in ledgers.values() for record in contents.records], seconds)
    for row in rows:
        # A claim may be on record with several drivers, but only one of them holds CPUs for it.
        if row["held"] and row["uid"] in used:
            row["usage"] = used[row["uid"]]
        elif not row.get("memory_usage"):
            row["usage_unseen"] = _why_unseen(row)


def _why_unseen(row: Mapping[str, Any]) -> str:
    """Return why the use of a claim is unknown."""
    if row["state"] == "quarantined":
        return "its record is damaged, so it is unknown what it holds"
    if row["held"]:
        return "a process of its pods cannot be inspected; try as root"
    if "memory_usage" in row:
        return UNSEEN
    return f"it holds no CPUs, and cgroups do not show the use of devices of {row['driver']}; use their own tools"


def _row(driver: str, record: Record, used: Mapping[tuple[str, str], UsedClaim]) -> dict[str, Any]:
    use = used.get((driver, record.uid))
    requests = cpus_of_requests(record)
    ref = record.ref if record.name or use is None else use.ref
    return {
        "namespace": ref.namespace,
        "name": ref.name,
        "uid": record.uid,
        "driver": driver,
        "devices": [grant.device for grant in record.grants],
        "cpus": str(record.cpus) or None,
        # With one request this would only repeat `cpus`.
        **({"requestCpus": {name: str(cpus) for name, cpus in requests.items()}} if len(requests) > 1 else {}),
        "held": str(record.held) or None,
        "amounts": record.amounts,
        "state": record.state.value,
        "pods": list(dict.fromkeys(map(str, record.pods))),
    }


def _damaged(driver: str, row: Damaged) -> dict[str, Any]:
    return {
        "namespace": "",
        "name": "",
        "uid": row.uid,
        "driver": driver,
        "devices": list(row.devices or ()),
        "cpus": None,
        "held": None,
        "amounts": {},
        "state": "quarantined",
        "pods": [],
    }


def _verified(placement: ClaimPlacement, held: CPUSet, root: Root, *, all_seen: bool) -> dict[str, Any]:
    return {
        "ok": placement.ok,
        "containers": [
            {
                "pod": placed.pod,
                "cgroup": placed.seen.cgroup,
                "expected": str(placed.expected),
                "found": str(placed.seen.actual),
                # CPUs that the cgroup allows, but the affinity of the container's own processes excludes.
                **({"unused": str(placed.unused)} if placed.unused else {}),
                "ok": placed.ok,
            }
            for placed in placement.containers
        ],
        "intruders": [
            {
                "pid": placed.pid,
                "name": placed.name,
                "cpus": str(placed.cpus),
                "threadsLastThere": threads_last_on(root, placed.pid, held),
            }
            for placed in placement.intruders
        ]
        if all_seen
        else None,
    }


def _draw_claims(rows: list[dict[str, Any]]) -> None:
    """Print the claims as a table."""
    if not rows:
        console().print("No claim is on record.")
        return
    table = columns("claim", "driver", "devices", "cpus", "held", "state", "pods")
    for row in rows:
        table.add_row(
            _name(row),
            row["driver"],
            ", ".join(_device(name, row["amounts"]) for name in dict.fromkeys(row["devices"])),
            _cpus(row),
            row["held"] or "-",
            row["state"],
            ", ".join(row["pods"]),
        )
    console().print(table)


def _cpus(row: Mapping[str, Any]) -> str:
    """Return the CPUs of a claim, by request if it has several requests."""
    requests: Mapping[str, str] = row.get("requestCpus", {})
    return "\n".join(f"{name}: {cpus}" for name, cpus in requests.items()) or row["cpus"] or "-"


def _device(name: str, amounts: Mapping[str, int]) -> str:
    """Return a device's name, with the amount that the claim holds if the device can be shared."""
    return f"{name} {Quantity.binary(amounts[name])}" if name in amounts else name


def _draw_checked(rows: list[dict[str, Any]], *, verify: bool, usage: bool) -> None:
    """Print the results of `--verify` and `--usage`."""
    if verify:
        _draw_verified(rows)
        verified = [
            (_name(row), row["verify"]["containerMemory"]) for row in rows if "containerMemory" in row.get("verify", {})
        ]
        draw_memory(_once(verified))
    if not usage:
        return
    draw_memory_usage((_name(row), row["memory_usage"]) for row in rows if "memory_usage" in row)
    draw_usage((_name(row), row["usage"]) for row in rows if "usage" in row)
    for row in rows:
        if "usage_unseen" in row:
            click.echo(f"not seen: {_name(row)} ({row['driver']}): {row['usage_unseen']}")


def _once(verified: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each container once, although several drivers may have a record of the same claim.

    The same applies to the line that says that no container of a claim was seen (`unseen`).
    """
    seen: set[str] = set()
    unseen: set[str] = set()
    for name, document in verified:
        new = [container for container in document["containers"] if container["cgroup"] not in seen]
        seen.update(container["cgroup"] for container in new)
        yield name, {**document, "containers": new, "unseen": not document["containers"] and name not in unseen}
        if not document["containers"]:
            unseen.add(name)


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['namespace']}/{row['name']}" if row["name"] else str(row["uid"])


def _draw_verified(rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    out = console()
    out.print()
    containers = columns("claim", "pod", "should run on", "runs on", "")
    intruders: dict[int, tuple[str, str, int | None]] = {}
    for row in (row for row in rows if "ok" in row.get("verify", {})):
        verified = row["verify"]
        for placed in verified["containers"]:
            word = "yes" if placed["ok"] else Text("NO", style="red")
            runs_on = f"{placed['found']}, no process on {placed['unused']}" if "unused" in placed else placed["found"]
            containers.add_row(_name(row), placed["pod"], placed["expected"], runs_on, word)
        if verified["ok"] is None:
            containers.add_row(_name(row), "", row["cpus"] or "-", "", UNSEEN)
        for placed in verified["intruders"] or ():
            _, _, before = intruders.get(placed["pid"], ("", "", None))
            seen = [count for count in (before, placed["threadsLastThere"]) if count is not None]
            intruders[placed["pid"]] = (placed["name"], placed["cpus"], sum(seen) if seen else None)
    out.print(containers)
    disturbed = [(_name(row), row["verify"]["disturbance"]) for row in rows if "disturbance" in row.get("verify", {})]
    if disturbed:
        draw_disturbances(disturbed)
    if not intruders:
        return

    processes = "process" if len(intruders) == 1 else "processes"
    out.print(f"\n{len(intruders)} {processes} without a claim may run on CPUs that a claim holds:")
    table = columns("pid", "name", "may run on", "threads that did last")
    # Processes that were last seen running there come first.
    by_threads = sorted(intruders.items(), key=lambda item: (-(item[1][2] or 0), item[0]))
    for pid, (name, cpus, count) in by_threads[:_MOST_INTRUDERS]:
        table.add_row(str(pid), name, cpus, "not seen" if count is None else str(count))
    out.print(table)
    if len(intruders) > _MOST_INTRUDERS:
        out.print(f"and {len(intruders) - _MOST_INTRUDERS} more (-o json lists all)")
