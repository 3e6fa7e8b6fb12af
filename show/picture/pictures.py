"""Makes pictures of fleets and single nodes, from published devices and the claims that hold them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from dranode.api.quantity import Quantity
from dranode.api.resource import AllocationResult, ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.hooks import Layout
from dranode.show.picture.devices import Published, RuledTaints, Tally, blocked_devices, published, with_unpublished
from dranode.show.picture.fleet import (
    CPUS,
    DeviceKey,
    DeviceShare,
    FleetClaim,
    FleetDevice,
    FleetMoment,
    FleetNode,
    FleetPicture,
    WaitingPod,
)
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
    """Return a picture of the published devices and the claims that hold them at each moment.

    `unknown` has the drivers whose holdings are unknown, by moment.
    """
    fleet = published(slices, known or {}, layouts or {}, ruled)
    fleet = with_unpublished(fleet, [claim for _, claims in moments for claim in claims])
    return FleetPicture(
        title,
        fleet.nodes,
        tuple(moment(name, fleet, claims, (unknown or {}).get(name, ())) for name, claims in moments),
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
    taken: str = "",
) -> FleetPicture:
    """Return a picture of one node from the views of its drivers at each moment; the last moment has the devices.

    `shares` are the shares in the allocations of claims, by `<namespace>/<name>`. They are needed because only drivers
    that share devices by amounts record the amounts.
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
            claim_shares = shares.setdefault(name, [])
            pods[name] = tuple(dict.fromkeys((*pods.get(name, ()), *view.pods.get(name, ()))))
            others = (f"is reserved for {consumer}" for consumer in view.others.get(name, ()))
            remarks[name] = tuple(dict.fromkeys((*remarks.get(name, ()), *others)))
            if holding.cpus:
                cpus[name] = ",".join(filter(None, (cpus.get(name), str(holding.cpus))))
            if view.layout is None:
                amounts: dict[str, Mapping[str, Quantity]] = {
                    share.device.device: share.consumed
                    for share in allocated.get(name, ())
                    if share.device.driver == view.driver
                }
                if view.by_amounts:
                    # An allocation may have several shares of one device; the record has their sum.
                    amounts.update(held_amounts(holding, view))
                keys = (DeviceKey(view.driver, node, device) for device in sorted(holding.names | amounts.keys()))
                claim_shares += (DeviceShare(key, amounts.get(key.device, {})) for key in keys)
    for name, claim_shares in shares.items():
        by_node = {node: cpus[name]} if name in cpus else {}
        yield FleetClaim(name, pods.get(name, ()), tuple(claim_shares), by_node, remarks=remarks.get(name, ()))


def shares_of(allocation: AllocationResult | None) -> tuple[DeviceShare, ...]:
    """Return the shares in the `status.allocation` of a claim."""
    return tuple(
        DeviceShare(
            DeviceKey(result.driver, result.pool, result.device),
            {name.removeprefix(f"{result.driver}/"): amount for name, amount in result.consumed_capacity.items()},
            admin=bool(result.admin_access),
        )
        for result in readable_results(allocation)
    )


def moment(title: str, fleet: Published, claims: Iterable[FleetClaim], unknown: Collection[str] = ()) -> FleetMoment:
    """Return a fleet at the moment when these claims hold their devices; for `unknown`, see `FleetMoment`."""
    claims = tuple(claims)
    consumed: dict[DeviceKey, dict[str, Tally]] = {}
    for claim in claims:
        for share in claim.shares:
            if not share.admin:
                # An entry without amounts means that the free amount of a shared device is unknown.
                amounts = consumed.setdefault(share.device, {})
                for name, amount in share.consumed.items():
                    amounts[name] = amounts.get(name, 0) + amount.value
    blocked = frozenset(blocked_devices(fleet.counters, fleet.draws, consumed.keys()))
    fragmented = {
        node.name: units for node in fleet.nodes if (units := tuple(_fragmented(node, fleet, consumed, unknown)))
    }
    return FleetMoment(title, claims, blocked, frozenset(unknown), fragmented)


def _fragmented(
    node: FleetNode,
    fleet: Published,
    consumed: Mapping[DeviceKey, Mapping[str, Tally]],
    unknown: Collection[str],
) -> Iterator[str]:
    """Yield the units of which a whole box's amount is free on the node, although no box is free."""
    total: dict[str, dict[int, Tally]] = defaultdict(dict)
    free: dict[str, dict[int, Tally]] = defaultdict(dict)
    in_steps = _in_steps(node)
    for device in node.devices:
        # Devices that draw on counters overlap, so they cannot be counted.
        is_counted = device.published and device.key.driver not in unknown
        if device.numa is None or device.key in fleet.draws or not is_counted:
            continue
        for unit, amount, remaining in _amounts(device, consumed.get(device.key), in_steps):
            total[unit][device.numa] = total[unit].get(device.numa, 0) + amount
            free[unit][device.numa] = free[unit].get(device.numa, 0) + remaining
    for unit, boxes in total.items():
        smallest = min(boxes.values())
        is_free = any(free[unit][numa] == amount for numa, amount in boxes.items())
        if len(boxes) > 1 and not is_free and sum(free[unit].values()) >= smallest:
            yield unit


def _in_steps(node: FleetNode) -> frozenset[str]:
    """Return the units with different steps on the node.

    Capacity with one step cannot serve requests for the other, so the amounts must not be added up.
    """
    steps: dict[str, set[Quantity | None]] = defaultdict(set)
    for device in node.devices:
        for name in device.capacity.keys() - device.units.keys() if device.shared else ():
            steps[device.unit(name)].add(device.steps.get(name))
    return frozenset(unit for unit, different in steps.items() if len(different) > 1)


def _amounts(
    device: FleetDevice, consumed: Mapping[str, Tally] | None, in_steps: Collection[str]
) -> Iterator[tuple[str, Tally, Tally]]:
    """Yield unit, total and free amount."""
    usable = not device.closed
    if not device.shared:
        yield device.key.driver, 1, int(usable and consumed is None)
        return
    for name, amount in device.capacity.items():
        plain = name.removeprefix(f"{device.key.driver}/")
        used = 0 if consumed is None else consumed.get(plain, amount.value)
        remaining = max(0, amount.value - used) if usable else 0
        unit, step = device.unit(name), device.steps.get(name)
        yield f"{unit} in steps of {step}" if step and unit in in_steps else unit, amount.value, remaining
