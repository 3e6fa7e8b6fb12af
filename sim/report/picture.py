"""A cluster's documents as a picture, at one moment or compared with another."""

from __future__ import annotations

from collections.abc import Sequence

from dranode.show.picture.devices import taint_text
from dranode.show.picture.fleet import DeviceKey, FleetPicture
from dranode.show.picture.pictures import fleet_picture
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.taint_rules import rules_on
from dranode.sim.report.cluster import ClusterSeen
from dranode.sim.report.waiting import waiting


def cluster_picture(
    now: ClusterSeen, before: ClusterSeen | None, features: Features, *, title: str, taken: str = ""
) -> FleetPicture:
    """Return a cluster as it stands, beside how it stood before if that is given."""
    known: dict[str, Sequence[str]] = dict(now.node_remarks)
    moments = [("now", tuple(now.fleet_claims()))]
    slices = now.slices
    if before is not None:
        moments = [("before", tuple(before.fleet_claims())), ("after", moments[0][1])]
        pools = {(each.spec.driver, each.spec.pool.name) for each in slices}
        gone = [each for each in before.slices if (each.spec.driver, each.spec.pool.name) not in pools]
        slices = (*slices, *gone)
        for node, pool in dict.fromkeys((each.spec.node_name or "", each.spec.pool.name) for each in gone):
            known[node] = (*known.get(node, ()), f"gone: pool {pool} is in the earlier dump alone")
    waiting_pods, unsaid = waiting(now, features)
    return fleet_picture(
        title,
        slices,
        moments,
        known=known,
        waiting=waiting_pods,
        notes=(*now.notes, *unsaid),
        unknown={
            name: {each.spec.driver for each in slices} if seen is not None and not seen.claims_known else ()
            for name, seen in (("now", now), ("before", before), ("after", now))
        },
        taken=taken,
        ruled=lambda device: ruled_taints(now, device, features),
    )


def ruled_taints(seen: ClusterSeen, device: DeviceKey, features: Features) -> tuple[str, ...]:
    """Return the taints that a cluster's rules put on a device, each with its rule."""
    if not features.device_taint_rules:
        return ()
    rules = rules_on(seen.rules, *device, features)
    return tuple(f"{taint_text(rule.spec.taint)} (rule {rule.metadata.name})" for rule in rules)
