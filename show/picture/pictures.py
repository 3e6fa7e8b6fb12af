"""Pictures of fleets and of single nodes, from what was published and what is held."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from dranode.api.quantity import Quantity
from dranode.api.resource import ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.driver.claims.plugin import Layout
from dranode.show.picture.devices import RuledTaints, published, with_unpublished
from dranode.show.picture.fleet import CPUS, DeviceKey, DeviceShare, FleetClaim, FleetPicture, WaitingPod
from dranode.show.picture.moment import moment
from dranode.show.picture.node import DriverView, held_amounts


def fleet_picture(
    title: str,
    slices: Iterable[ResourceSlice],
    moments: Sequence[tuple[str, Sequence[FleetClaim]]],
    *,
    known: Mapping[str, Sequence[str]] | None = None,
    layouts: Mapping[str, Layout] | None = None,
    waiting: Sequence[WaitingPod] = (),
    notes: Sequence[str] = (),
    facts: Sequence[str] = (),
    unknown: Mapping[str, Collection[str]] | None = None,
    taken: str = "",
    ruled: RuledTaints = lambda _: (),
) -> FleetPicture:
    """Return a picture of what slices publish and what claims hold of it at each moment.

    `unknown` has, by moment, the drivers for which it is unknown what claims hold.
    """
    what = published(slices, known or {}, layouts or {}, ruled)
    what = with_unpublished(what, [claim for _, claims in moments for claim in claims])
    return FleetPicture(
        title,
        what.nodes,
        tuple(moment(name, what, claims, (unknown or {}).get(name, ())) for name, claims in moments),
        tuple(waiting),
        tuple(notes),
        tuple(facts),
        taken,
    )


def views_picture(
    title: str,
    node: str,
    moments: Sequence[tuple[str, Sequence[DriverView]]],
    *,
    shares: Mapping[str, tuple[DeviceShare, ...]] | None = None,
    waiting: Sequence[WaitingPod] = (),
    notes: Sequence[str] = (),
    facts: Sequence[str] = (),
    taken: str = "",
) -> FleetPicture:
    """Return a picture of one node by what its drivers have at each moment; the last moment says what there is.

    `shares` is what claims have by their allocation, by `<namespace>/<name>`: only drivers that share their devices by
    amounts have on record how much of a device a claim has.
    """
    latest = moments[-1][1]
    layout = next((view.layout for view in latest if view.layout is not None), None)
    return fleet_picture(
        title,
        [_slice(view, node) for view in latest if view.layout is None],
        [(name, tuple(_claims(views, node, shares or {}))) for name, views in moments],
        known={node: ()},
        layouts={node: layout} if layout is not None else {},
        waiting=waiting,
        notes=notes,
        facts=facts,
        unknown={name: tuple(_unknown(views)) for name, views in moments},
        taken=taken,
    )


def _unknown(views: Iterable[DriverView]) -> Iterator[str]:
    for view in views:
        if not view.holders_known:
            yield CPUS if view.layout is not None else view.driver


def _slice(view: DriverView, node: str) -> ResourceSlice:
    return ResourceSlice(
        metadata=ObjectMeta(name=view.driver),
        spec=ResourceSliceSpec(
            driver=view.driver,
            pool=ResourcePool(name=node),
            node_name=node,
            devices=view.inventory.devices,
            shared_counters=view.inventory.counters,
        ),
    )


def _claims(
    views: Iterable[DriverView], node: str, allocated: Mapping[str, tuple[DeviceShare, ...]]
) -> Iterable[FleetClaim]:
    shares: dict[str, list[DeviceShare]] = {}
    cpus: dict[str, str] = {}
    pods: dict[str, tuple[str, ...]] = {}
    remarks: dict[str, tuple[str, ...]] = {}
    for view in views:
        for holding in view.holdings:
            name = str(holding.claim)
            mine = shares.setdefault(name, [])
            pods[name] = tuple(dict.fromkeys((*pods.get(name, ()), *view.pods.get(name, ()))))
            others = (f"is reserved for {each}" for each in view.others.get(name, ()))
            remarks[name] = tuple(dict.fromkeys((*remarks.get(name, ()), *others)))
            if holding.cpus:
                cpus[name] = ",".join(filter(None, (cpus.get(name), str(holding.cpus))))
            if view.layout is None:
                known: dict[str, Mapping[str, Quantity]] = {
                    share.device.device: share.consumed
                    for share in allocated.get(name, ())
                    if share.device.driver == view.driver
                }
                if view.by_amounts:
                    # Several results of one device are several shares of an allocation; the record has their sum.
                    known.update(held_amounts(holding, view))
                keys = (DeviceKey(view.driver, node, device) for device in sorted(holding.names | known.keys()))
                mine += (DeviceShare(key, known.get(key.device, {})) for key in keys)
    for name, mine in shares.items():
        held = {node: cpus[name]} if name in cpus else {}
        yield FleetClaim(name, pods.get(name, ()), tuple(mine), held, remarks=remarks.get(name, ()))
