"""Shows offers, as a plain document and as tables."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dranode.api.documents import encode
from dranode.show.terminal import columns, hanging
from dranode.sim.bundle.groups import DeviceKind, quantity
from dranode.sim.bundle.shapes import Shape, template_of

if TYPE_CHECKING:
    from rich.console import Console

    from dranode.sim.bundle.groups import Bundle
    from dranode.sim.bundle.offers import Offer, Offers


def manifests(offers: Offers) -> dict[str, Any]:
    """Return the missing classes and the templates that fit, as a List for kubectl."""
    templates = (template_of(offer.shape, offers.classes) for offer in offers.offers if offer.proof.count)
    return {"apiVersion": "v1", "kind": "List", "items": encode([*offers.missing, *templates])}


def offers_document(offers: Offers) -> dict[str, Any]:
    """Return the answer as a plain document."""
    return {
        "bundles": list(map(_bundle_document, offers.bundles)),
        "templates": [_offer_document(offer, offers) for offer in offers.offers],
        "deviceClasses": encode(list(offers.missing)),
        "notes": list(offers.notes),
    }


def _bundle_document(bundle: Bundle) -> dict[str, Any]:
    return {
        "node": bundle.node,
        "attribute": bundle.attribute,
        "value": bundle.value,
        "devices": [
            {
                "driver": member.pool.driver,
                "pool": member.pool.pool,
                "device": member.device.name,
                "deviceClass": member.kind.name,
                "capacity": {member.kind.capacity: str(quantity(member.amount.value))} if member.kind.capacity else {},
            }
            for member in bundle.devices
        ],
    }


def _offer_document(offer: Offer, offers: Offers) -> dict[str, Any]:
    return {
        "name": offer.shape.name,
        "title": offer.shape.title,
        "fits": offer.proof.count,
        "atLeast": offer.proof.capped,
        "nodes": dict(offer.proof.nodes),
        "problem": offer.proof.problem,
        "template": encode(template_of(offer.shape, offers.classes)),
    }


def show_offers(screen: Console, offers: Offers) -> None:
    """Print the bundles and the templates."""
    table = columns("node", "shares", "devices")
    for bundle in offers.bundles:
        table.add_row(bundle.node, f"{_short(bundle.attribute)} {bundle.value}", ", ".join(_amounts(bundle.amounts())))
    screen.print(table if offers.bundles else "No devices share a NUMA node or a PCIe root.", markup=False)
    if offers.offers:
        screen.print()
        table = columns("template", "asks for", "fits at once")
        for offer in offers.offers:
            table.add_row(offer.shape.name, "\n".join(_wants(offer.shape)), _fits(offer))
        screen.print(table)
    for note in offers.notes:
        screen.print()
        screen.print(hanging("note", note))


def _fits(offer: Offer) -> str:
    if offer.proof.problem:
        return f"no: {offer.proof.problem}"
    nodes = len(offer.proof.nodes)
    count = f"{'at least ' if offer.proof.capped else ''}{offer.proof.count}"
    return f"{count} on {next(iter(offer.proof.nodes))}" if nodes == 1 else f"{count} on {nodes} nodes"


def _wants(shape: Shape) -> Iterator[str]:
    yield ", ".join(_amounts({want.kind: want.amount for want in shape.wants}))
    for alignment in shape.alignments:
        if len(alignment.requests) > 1:
            yield f"one {_short(alignment.attribute)}: {', '.join(alignment.requests)}"


def _amounts(amounts: dict[DeviceKind, Fraction]) -> Iterator[str]:
    for kind, amount in sorted(amounts.items()):
        yield f"{quantity(amount)} {kind.name}"


def _short(attribute: str) -> str:
    return attribute.rpartition("/")[2]
