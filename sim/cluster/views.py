"""Finds the pools that each node sees, and the nodes that see the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dranode.api.documents import encode_json
from dranode.api.resource import Node
from dranode.sim.allocator.pools import Candidate, Pool, PoolIndex
from dranode.sim.allocator.state import PoolID


@dataclass(frozen=True, slots=True)
class View:
    """A node with the pools that it sees.

    Attributes:
        node: the node.
        pools: all that it sees.
        candidates: the devices of those that can be used, numbered alike on nodes of one kind.
        local: the pools that no other node sees.
        shared: the other ones.
        kind: equal for nodes that differ by name alone.
    """

    node: Node
    pools: tuple[Pool, ...]
    candidates: tuple[Candidate, ...]
    local: tuple[PoolID, ...]
    shared: tuple[PoolID, ...]
    kind: int


class NodeViews:
    """Makes the views of nodes and numbers their kinds."""

    def __init__(self, inventory: PoolIndex) -> None:
        """Start without kinds."""
        self._inventory = inventory
        self._kinds: dict[object, int] = {}

    def view(self, node: Node) -> View:
        """Return what the node sees."""
        pools = self._inventory.pools(node)
        name = node.metadata.name
        local = tuple(pool.id for pool in pools if _is_local(pool, name))
        shared = tuple(pool.id for pool in pools if not _is_local(pool, name))
        names = {pool_name: index for index, pool_name in enumerate(dict.fromkeys(pool.id.pool for pool in pools))}
        key = tuple(_local_key(pool, names) if pool.id in local else _shared_key(pool) for pool in pools)
        kind = self._kinds.setdefault(key, len(self._kinds))
        candidates = tuple(candidate for pool in pools if pool.usable for candidate in pool.candidates)
        return View(node, pools, candidates, local, shared, kind)


def _is_local(pool: Pool, node: str) -> bool:
    return not pool.elsewhere and all(candidate.slice.node_name == node for candidate in pool.candidates)


def _local_key(pool: Pool, names: Mapping[str, int]) -> object:
    counters = tuple(encode_json(each) for each in pool.counters.values())
    devices = tuple(
        (candidate.device.name, candidate.content.number, candidate.servable, candidate.slice.skip_node_operations)
        for candidate in pool.candidates
    )
    return pool.id.driver, names[pool.id.pool], pool.incomplete, pool.invalid, devices, counters


def _shared_key(pool: Pool) -> object:
    return (
        pool.id,
        pool.incomplete,
        pool.invalid,
        tuple((id(each.device), each.servable) for each in pool.candidates if each.reachable),
    )
