"""Picks against the published and observed answers of the reference driver (A.2 to A.7 of vectors/cpu.json).

The vectors write 0 for unknown counts (no NUMA nodes, no L3 caches). The topology leaves a fact out only where this
changes an answer, which is A.6's topology E only: it says itself that it has no L3 information.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from dranode.api.cpuset import CPUSet
from dranode.cpu.options import L3, Order, PickPolicy
from dranode.cpu.picking.packed import core_order, numa_order, package_order
from dranode.cpu.picking.pick import Pick, PickError
from dranode.cpu.picking.pick import pick as pick_in_any_order
from dranode.cpu.topology import CPUGroups, Topology
from tests.fakes.topology import Place, regular, topology

VECTORS: Final[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "vectors" / "cpu.json").read_text())


def pick(machine: Topology, candidates: CPUSet, count: int, **wishes: Any) -> Pick:
    """The pick in the order of the reference driver, whose answers these are."""
    return pick_in_any_order(machine, candidates, count, order=Order.REFERENCE, **wishes)


def _rule(cpus: int, rule: str) -> Topology:
    """A topology by its rule, for example `core=i%6; socket=i%2; numa=i%2`; the L3 cache is 0 if the rule sets none."""
    places: dict[int, Place] = {}
    for cpu in range(cpus):
        names: dict[str, Any] = {"i": cpu, "l3": 0}
        for statement in rule.split("; "):
            *targets, expression = statement.split("=")
            # The names of an expression are its globals, so a rule may use what an earlier statement set.
            value = eval(expression, {"__builtins__": {}}, names)  # noqa: S307 - rules of our own vectors
            names.update(dict.fromkeys(targets, value))
        places[cpu] = (names["core"], names["socket"], names["numa"], names["l3"])
    return topology(places)


# The prose of A.6 and A.7 as rules. Ir and B repeat core ids on both sockets; a core is package and core id.
RULES: Final = {
    **{name: (given["NumCPUs"], given["rule"]) for name, given in VECTORS["A.1.topologies"].items()},
    "A": (16, "core=i%8; socket=numa=0"),
    "B": (16, "core=i%4; socket=numa=l3=i%8//4"),
    "Bu": (16, "core=i%8; socket=numa=l3=i%8//4"),
    "C": (32, "core=i%16; socket=numa=0; l3=core//4"),
    "D": (8, "core=i; socket=0; numa=i//4; l3=i//2"),
    "E": (8, "core=i%4; socket=numa=0; l3=None"),
    "F": (8, "core=i%2; socket=numa=0"),
    "H": (8, "core=[0,0,4,4,8,9,10,11][i]; socket=numa=0"),
    "I": (16, "core=i%8; numa=l3=core//2; socket=core//4"),
    "Ir": (16, "core=i%4; numa=l3=i%8//2; socket=i%8//4"),
    "J": (8, "core=i%4; socket=0; numa=core//2; l3=0"),
    "M1": (4, "core=i%2; socket=numa=0"),
    "M2": (4, "core=i; socket=numa=0"),
    "M4": (8, "core=i%4; socket=numa=(i%4)//2"),
}
TOPOLOGIES: Final = {name: _rule(*rule) for name, rule in RULES.items()} | {
    "G": topology({cpu: (cpu % 8, 0, 0, 0) for cpu in range(16) if cpu != 8})
}


@pytest.mark.parametrize("row", VECTORS["A.2"], ids=lambda row: row["id"])
def test_packed_and_spread_picks_agree_with_the_published_cases(row: dict[str, Any]) -> None:
    l3 = L3.PREFER if row["preferL3"] else L3.IGNORE
    machine, free = TOPOLOGIES[row["topo"]], CPUSet.parse(row["free"])
    assert str(pick(machine, free, row["n"], policy=PickPolicy(row["sort"]), l3=l3).cpus) == row["want"]


@pytest.mark.parametrize("row", VECTORS["A.3"], ids=lambda row: row["id"])
def test_distributed_picks_agree_with_the_published_cases(row: dict[str, Any]) -> None:
    machine, free = TOPOLOGIES[row["topo"]], CPUSet.parse(row["free"])
    picked = pick(machine, free, row["n"], policy=PickPolicy.NUMA_DISTRIBUTED, group=row["group"])
    assert str(picked.cpus) == row["want"]


@pytest.mark.parametrize("row", [row for row in VECTORS["A.2"] if row["id"][0] == "C"], ids=lambda row: row["id"])
def test_common_cases_apply_to_distributed_picks_in_steps_of_one(row: dict[str, Any]) -> None:
    machine, free = TOPOLOGIES[row["topo"]], CPUSet.parse(row["free"])
    picked = pick(machine, free, row["n"], policy=PickPolicy.NUMA_DISTRIBUTED, group=1)
    assert str(picked.cpus) == row["want"]


def _free_ids(query: str, groups: CPUGroups, free: int) -> list[int]:
    """The ids that an ordering query of A.4 expects; ids of A.1's topologies are indexes."""
    if query == "cpuOrderPacked":
        return [cpu for mask in core_order(groups, free) for cpu in CPUSet.of_mask(mask)]
    if query == "freeCores":
        return [groups.cores.index(mask) for mask in core_order(groups, free) if mask in groups.cores]
    masks, order = (groups.numa, numa_order) if query == "freeNUMANodes" else (groups.packages, package_order)
    ids = [index for index in order(groups, free) if masks[index] & free == masks[index]]
    return sorted(ids) if "sorted" in query else ids


@pytest.mark.parametrize("row", VECTORS["A.4"], ids=lambda row: f"{row['q']} {row['topo']} {row['free']}")
def test_groups_are_tried_in_the_published_order(row: dict[str, Any]) -> None:
    groups = TOPOLOGIES[row["topo"]].groups
    assert _free_ids(row["q"], groups, CPUSet.parse(row["free"]).mask) == row["want"]


def _scope(machine: Topology, scope: str) -> CPUSet:
    kind, _, number = scope.partition(":")
    return {"numa": machine.numa, "socket": machine.packages}[kind][int(number)]


def _sequence(name: str, reserved: str, scope: str, steps: list[list[Any]]) -> None:
    machine = TOPOLOGIES[name]
    free = _scope(machine, scope) - CPUSet.parse(reserved)
    for count, want, *defects in steps:
        picked = pick(machine, free, count).cpus
        assert picked <= free
        assert len(picked) == count
        if defects:
            return  # The reference's answers from here on follow from its wrong answer.
        assert str(picked) == want
        free -= picked


@pytest.mark.parametrize(
    "row",
    [row for row in VECTORS["A.6"] if row["topo"] not in ("B", "Ir")],
    ids=lambda row: f"{row['topo']} {row['scope']} without {row['reserved'] or 'nothing'}",
)
def test_sequences_of_picks_agree_with_the_observed_answers(row: dict[str, Any]) -> None:
    _sequence(row["topo"], row["reserved"], row["scope"], row["steps"])


@pytest.mark.parametrize(("repeating", "unique"), [("B", "Bu"), ("Ir", "I")])
@pytest.mark.parametrize("reserved", ["", "0", "0,8", "1,3,12", "5"])
@pytest.mark.parametrize("scope", ["numa:0", "numa:1", "socket:0", "socket:1"])
@pytest.mark.parametrize("counts", [(2, 4), (4, 2), (1, 3, 2), (5, 1)])
def test_core_ids_that_repeat_on_every_socket_change_no_answer(
    repeating: str, unique: str, reserved: str, scope: str, counts: tuple[int, ...]
) -> None:
    machines = TOPOLOGIES[repeating], TOPOLOGIES[unique]
    free = _scope(machines[0], scope) - CPUSet.parse(reserved)
    for count in counts:
        if count <= len(free):
            ours, theirs = (pick(machine, free, count).cpus for machine in machines)
            assert ours == theirs
            assert ours <= free
            free -= ours


@pytest.mark.parametrize("row", [row for row in VECTORS["A.6"] if row["topo"] == "Bu"], ids=str)
def test_topology_b_has_the_answers_of_its_twin_with_unique_core_ids(row: dict[str, Any]) -> None:
    _sequence("B", row["reserved"], row["scope"], row["steps"])


# Answers of the reference driver's own code, asked where the vectors leave a choice open.
@pytest.mark.parametrize(
    ("machine", "free", "count", "wishes", "want"),
    [
        (
            regular(2, 1, 2, 4, 2),
            "1-7,9-15,17-31",
            11,
            {"policy": PickPolicy.PACKED, "l3": L3.PREFER},
            "1-2,4-7,17,20-23",
        ),
        (regular(1, 8, 1, 2, 1), "0-2,6-7,13-14", 1, {"policy": PickPolicy.PACKED, "l3": L3.PREFER}, "2"),
        (
            regular(2, 2, 2, 2, 2),
            "1-2,4,6,13-17,21-23,27-28,31",
            2,
            {"policy": PickPolicy.PACKED, "l3": L3.IGNORE},
            "15,31",
        ),
        (regular(1, 2, 2, 2, 2), "2,5,10-11,13-14", 1, {"policy": PickPolicy.PACKED, "l3": L3.IGNORE}, "11"),
        (regular(2, 1, 2, 4, 2), "1-7,9-15,17-31", 5, {"policy": PickPolicy.SPREAD, "l3": L3.IGNORE}, "1-5"),
        (regular(1, 2, 2, 2, 2), "2-6,9-11", 7, {"policy": PickPolicy.NUMA_DISTRIBUTED, "l3": L3.PREFER}, "2-6,9-10"),
    ],
)
def test_scattered_free_cpus_are_picked_as_by_the_reference(
    machine: Topology, free: str, count: int, wishes: dict[str, Any], want: str
) -> None:
    assert str(pick(machine, CPUSet.parse(free), count, **wishes).cpus) == want


@pytest.mark.parametrize("row", [row for row in VECTORS["A.7"] if row["groupBy"] != "machine"], ids=str)
def test_the_picks_of_grouped_claims_agree_with_the_driver_level_cases(row: dict[str, Any]) -> None:
    machine = TOPOLOGIES[row["topo"]]
    places = machine.numa if row["groupBy"] == "numanode" else machine.packages
    free = machine.online - CPUSet.parse(row.get("reserved", "")) - CPUSet.parse(row.get("held", ""))
    takes = [(device, count) for _, device, count in row.get("takeList", ())] or list(row["take"].items())
    claim = CPUSet()
    outcome = None
    for device, count in takes:
        try:
            claim |= pick(machine, (free - claim) & places.get(int(device[-3:]), CPUSet()), count).cpus
        except PickError:
            outcome = "error"
    assert (outcome or str(claim)) == row["want"]
