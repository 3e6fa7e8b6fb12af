"""A fleet as a self-contained HTML page: no server, no other file, no request to anywhere.

Names are hostile input. They are embedded as JSON in a data script, without characters that could end it, and the
page's script only writes them as text. The page's content security policy only allows this script, by its hash.
"""

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime
from html import escape
from importlib.resources import files
from itertools import takewhile
from typing import Any, Final, Generic, TypeVar

from dranode.api.quantity import Quantity
from dranode.driver.claims.hooks import Box, Layout
from dranode.show.picture.fleet import DeviceKey, FleetClaim, FleetDevice, FleetMoment, FleetNode, FleetPicture


def fleet_page(picture: FleetPicture) -> str:
    """Return the page as the text of an HTML file."""
    style, script, page = (_asset(name) for name in ("page.css", "page.js", "page.html"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _filled(
        page,
        {
            "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
            # A file name may contain bytes that are not UTF-8.
            "TITLE": escape(picture.title).encode(errors="replace").decode(),
            "STYLE": style,
            "DATA": embedded(compact(picture)),
            "SCRIPT": script,
        },
    )


def _filled(page: str, parts: Mapping[str, str]) -> str:
    """Replace each name between two `@@` by its part; names within parts are not replaced."""
    pieces = page.split("@@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def embedded(document: object) -> str:
    """Return a document as JSON that is safe inside a script element: ASCII, without `<`, `>` and `&`."""
    text = json.dumps(document, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


T = TypeVar("T", bound=Hashable)

# An attribute with more values than this identifies single devices, so it does not belong to their type.
_SAME_ON_MANY: Final = 64
_CHARACTERS_APART: Final = 200_000


class _Numbered(Generic[T]):
    """Numbers values, so that each is written only once."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def plain(self) -> list[T]:
        return list(self._numbers)


def compact(picture: FleetPicture) -> dict[str, Any]:
    """Return the picture as a compact JSON document, in which equal devices and nodes share an entry."""
    apart = _attributes_apart(picture.nodes)
    room = _CHARACTERS_APART
    types: _Numbered[tuple[Any, ...]] = _Numbered()
    kinds: _Numbered[tuple[Any, ...]] = _Numbered()
    layouts: list[Any] = []
    nodes: list[list[Any]] = []
    numbers: dict[DeviceKey, int] = {}
    left_out = False
    for node in picture.nodes:
        devices = []
        single: dict[int, list[tuple[str, str]]] = {}
        for index, device in enumerate(node.devices):
            numbers.setdefault(device.key, len(numbers))
            pool = device.key.pool if device.key.pool != node.name else 0
            devices.append((types.number(_type(device, apart)), device.key.device, pool))
            attributes = [(name, value) for name, value in device.attributes.items() if name in apart]
            cost = sum(len(name) + len(value) + 8 for name, value in attributes)
            if attributes and cost <= room:
                single[index] = attributes
                room -= cost
            left_out |= bool(attributes) and index not in single
        layout = -1
        if node.layout is not None:
            layouts.append(_layout(node.layout))
            layout = len(layouts) - 1
        nodes.append([node.name, kinds.number(tuple(devices)), layout, list(node.remarks), single])
    notes = list(picture.notes)
    if left_out:
        notes.append(f"to keep this page small, some devices are shown without {', '.join(sorted(apart))}")
    positions = {node.name: position for position, node in enumerate(picture.nodes)}
    return {
        "title": picture.title,
        "taken": picture.taken,
        "notes": notes,
        "facts": list(picture.facts),
        "types": types.plain(),
        "kinds": kinds.plain(),
        "layouts": layouts,
        "nodes": nodes,
        "moments": [_moment(moment, numbers, positions) for moment in picture.moments],
        "waiting": [[pod.name, list(pod.claims), list(pod.reasons)] for pod in picture.waiting],
    }


def _attributes_apart(nodes: Iterable[FleetNode]) -> frozenset[str]:
    values: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        for device in node.devices:
            for name, value in device.attributes.items():
                values[name].add(value)
    return frozenset(name for name, different in values.items() if len(different) > _SAME_ON_MANY)


def _type(device: FleetDevice, apart: frozenset[str]) -> tuple[Any, ...]:
    capacity = tuple(
        (name, str(amount), _number(amount), device.units.get(name, ""), str(device.steps.get(name, "")))
        for name, amount in device.capacity.items()
    )
    attributes = tuple((name, value) for name, value in device.attributes.items() if name not in apart)
    numa = -1 if device.numa is None else device.numa
    flags = int(device.shared) + 2 * (not device.published) + 4 * device.closed
    return (device.key.driver, numa, device.product, flags, capacity, attributes, device.taints)


def _layout(layout: Layout) -> list[Any]:
    facts = [*layout.facts, *layout.warnings]
    return [layout.title, facts, str(layout.isolated), [_box(box) for box in layout.boxes]]


def _box(box: Box) -> list[Any]:
    numa = -1 if box.numa is None else box.numa
    inner = [_box(inner_box) for inner_box in box.boxes]
    return [box.title, int(box.framed), numa, str(box.cpus), inner, [str(core) for core in box.cores]]


def _moment(moment: FleetMoment, numbers: Mapping[DeviceKey, int], positions: Mapping[str, int]) -> dict[str, Any]:
    amounts: _Numbered[tuple[Any, ...]] = _Numbered()
    return {
        "title": moment.title,
        "claims": [_claim(claim, numbers, positions, amounts) for claim in moment.claims],
        "amounts": amounts.plain(),
        "blocked": sorted(numbers[key] for key in moment.blocked if key in numbers),
        "unknown": sorted(moment.unknown),
        "fragmented": {positions[node]: list(units) for node, units in moment.fragmented.items() if node in positions},
    }


def _claim(
    claim: FleetClaim,
    numbers: Mapping[DeviceKey, int],
    positions: Mapping[str, int],
    amounts: _Numbered[tuple[Any, ...]],
) -> list[Any]:
    namespace = claim.name.partition("/")[0]
    shares = [
        _trimmed(
            [
                numbers[share.device],
                [amounts.number((name, str(amount), _number(amount))) for name, amount in share.consumed.items()],
                int(share.admin),
            ]
        )
        for share in claim.shares
        if share.device in numbers
    ]
    # A claim's pods are in its namespace, so they are written without it.
    name = claim.name.removeprefix(f"{namespace}/")
    pods = [_beside(name, pod.removeprefix(f"{namespace}/")) for pod in claim.pods]
    cpus = [[positions[node], cpu_list] for node, cpu_list in claim.cpus.items() if node in positions]
    return _trimmed([claim.name, pods, shares, cpus, _seconds(claim.created), list(claim.remarks)])


def _beside(claim: str, pod: str) -> list[Any]:
    """Return a pod's name as the length of the prefix that it shares with the claim's name, and the rest."""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(claim, pod, strict=False)))
    return _trimmed([common, pod[common:]])


def _seconds(time: str) -> int | str:
    """Return a time as seconds since 1970; a time in another format than the API's is returned unchanged."""
    try:
        return int(datetime.fromisoformat(time).timestamp())
    except ValueError:
        return time


def _trimmed(values: list[Any]) -> list[Any]:
    """Remove empty values at the end."""
    while len(values) > 1 and not values[-1]:
        values.pop()
    return values


def _number(amount: Quantity) -> int | float:
    return amount.value if isinstance(amount.value, int) else float(amount.value)
