"""Builds the Go allocator of a release from its module, and compares its answers with ours."""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeAlias
from unittest import mock

from dranode.api.documents import decode, encode_json
from dranode.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import orders
from dranode.sim.allocator.releases import GATES, Change, Release
from dranode.sim.allocator.requests import AllocationError, Outcome, Reason
from tests.fakes.in_use import allocated_of
from tests.interop.cache import CACHE
from tests.interop.scenarios import Document, ScenarioMaker, gates_of

SOURCE: Final = Path(__file__).with_name("allocator") / "main.go"
MODULE: Final = "k8s.io/dynamic-resource-allocation"
# The module version of a release, if it differs from the release's own.
_MODULES: Final = {"1.38-alpha": "v0.38.0-alpha.0"}
# How many orders are tried for a release without a fixed order.
_MAX_ORDERS: Final = 20_000
_REPEATS: Final = 12
_BATCH: Final = 100
_NO_MORE: Final = object()

_FIELDS: Final = {
    "DRAAdminAccess": "AdminAccess",
    "DRAConsumableCapacity": "ConsumableCapacity",
    "DRADerivedAttributes": "DerivedAttributes",
    "DRADeviceCompatibilityGroups": "CompatibilityGroups",
    "DRADeviceTaints": "DeviceTaints",
    "DRAFractionalCapacityRange": "FractionalCapacityRange",
    "DRAListTypeAttributes": "ListTypeAttributes",
    "DRAOptionalNodeOperations": "OptionalNodeOperations",
    "DRAPartitionableDevices": "PartitionableDevices",
    "DRAPrioritizedList": "PrioritizedList",
}
_LISTS: Final = "DRAListTypeAttributes"
_REASONS: Final = (
    ("CEL compile error", Reason.CEL_COMPILE),
    ("CEL runtime error", Reason.CEL_RUNTIME),
    ("evaluate derived attribute", Reason.CEL_RUNTIME),
    ("currently being updated", Reason.POOL_INCOMPLETE),
    ("currently invalid", Reason.POOL_INVALID),
    ("invalid resource pools", Reason.POOL_INVALID),
    ("is invalid:", Reason.POOL_INVALID),
    ("a claim constraint would not be satisfied", Reason.CONSTRAINT_ON_ALL),
    ("could not retrieve device class", Reason.CLASS_NOT_FOUND),
    ("exceeds the claim limit", Reason.TOO_MANY_DEVICES),
    ("allocation max size exceeded", Reason.TOO_MANY_DEVICES),
    ("(unsupported ", Reason.INCOMPLETE_CLAIM),
    ("unsupported count mode", Reason.INCOMPLETE_CLAIM),
    ("disabled", Reason.FEATURE_OFF),
    ("panic: ", Reason.SCHEDULER_PANICS),
    ("capacity", Reason.CAPACITY_OVERFLOW),
)

# Allocations without the random share IDs; None if nothing fits; or why the attempt fails.
Answer: TypeAlias = list[Any] | Reason


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario, its seed and its feature gates."""

    seed: int
    gates: dict[str, bool]
    document: Document


def built(release: Release) -> Path:
    """Return a program that runs the release's allocator, built once for each module version and source."""
    version = _MODULES.get(release.name, f"v0.{release.version.removeprefix('1.')}")
    folder = CACHE / "allocator" / version
    program = folder / "allocator"
    if program.exists() and program.stat().st_mtime > SOURCE.stat().st_mtime:
        return program
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, folder)
    (folder / "go.mod").write_text(f"module allocator\n\ngo 1.24\n\nrequire {MODULE} {version}\n")
    # Static and stripped, so that it also runs on a machine without Go or a network.
    command = ["go", "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", str(program), "."]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"})
    return program


def as_its_module(release: Release) -> Release:
    """Return the release as the available module behaves.

    1.38.0-alpha.0 does not have qualified capacity names yet, and sums a claim's devices before it counts them.
    """
    module = Release(release.name, release.version)
    if release.name in _MODULES:
        vars(module)["changes"] = release.changes - {Change.CAPACITY_NAMES, Change.COUNT_BY_REQUEST}
    return module


def scenarios(release: Release, seeds: range) -> Iterator[Scenario]:
    """Yield random scenarios of the release. Alpha gates are only used for releases that have them here."""
    defaults = {name: bool(release.gate(name)) for name in GATES if release.gate(name) is not None}
    old = not Features.of(release).fixed_order
    free = [
        name
        for name, default in defaults.items()
        if GATES[name].field is not None and not release.locks(name) and (default or not old)
    ]
    for seed in seeds:
        gates = gates_of(seed, defaults, free)
        document = ScenarioMaker(seed, gates, size=seed % 4 + 3).make()
        yield Scenario(seed, gates, document)


@contextmanager
def running(program: Path, limit: str = "3s") -> Iterator[subprocess.Popen[str]]:
    """Run the program, which answers each line with a line."""
    pipe = subprocess.PIPE
    with subprocess.Popen([program, limit], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def answers_of(process: subprocess.Popen[str], asked: Sequence[Scenario]) -> Iterator[list[Answer | None]]:
    """Return Go's answers to each scenario: several if its order is random, None if it took too long."""
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def feed() -> None:
        for each in asked:
            repeat = 1 if _fixed(each) else _REPEATS
            stdin.write(json.dumps({**each.document, **go_features(each.gates), "repeat": repeat}) + "\n")
        stdin.flush()

    feeder = Thread(target=feed, name="feed")
    feeder.start()
    for _ in asked:
        yield [_answer(one) for one in json.loads(stdout.readline())]
    feeder.join()


def batches(asked: Iterator[Scenario]) -> Iterator[list[Scenario]]:
    """Yield the scenarios in batches."""
    while batch := list(itertools.islice(asked, _BATCH)):
        yield batch


def differs(release: Release, scenario: Scenario, theirs: Sequence[Answer | None]) -> bool:
    """Whether Go's answer differs from ours; if Go's order is random, from ours in every order."""
    features = Features.of(release, scenario.gates)
    missing = [answer for answer in theirs if answer is not None]
    if missing and features.fixed_order:
        ours = _ours(scenario, features)
        return any(answer != ours for answer in missing)
    answers = _in_all_orders(scenario, features)
    while missing:
        answered = next(answers, _NO_MORE)
        if answered is _NO_MORE:
            return True
        missing = [answer for answer in missing if answer != answered]
    return False


def _fixed(scenario: Scenario) -> bool:
    names = ("DRAConsumableCapacity", "DRAListTypeAttributes", "DRADerivedAttributes", "DRADeviceBindingConditions")
    return any(scenario.gates.get(name) for name in names)


def go_features(gates: dict[str, bool]) -> dict[str, list[str]]:
    """Return what kube-scheduler turns on in its allocator, and for selectors alone."""
    # Up to 1.36, which has no derived attributes, lists are for selectors alone (`Change.LISTS_COMPARED`).
    lists = "DRADerivedAttributes" in gates
    named = [field for gate, field in _FIELDS.items() if gates.get(gate) and (lists or gate != _LISTS)]
    binding, status = gates.get("DRADeviceBindingConditions"), gates.get("DRAResourceClaimDeviceStatus")
    named += ["DeviceBinding"] if binding else []
    named += ["DeviceStatus"] if status else []
    named += ["DeviceBindingAndStatus"] if binding and status else []
    return {"features": named, "celFeatures": [_FIELDS[_LISTS]] if gates.get(_LISTS) else []}


def _answer(answer: Document) -> Answer | None:
    if answer.get("timeout"):
        return None
    error = answer.get("error")
    if error is None:
        return answer["allocations"] or []
    return next((reason for part, reason in _REASONS if part in error), error)


def _allocator(scenario: Scenario, features: Features) -> Allocator:
    document = scenario.document
    return Allocator(
        [decode(ResourceSlice, each) for each in document["slices"]],
        [decode(DeviceClass, each) for each in document["deviceClasses"]],
        features,
        new_share_id=itertools.repeat("share").__next__,
    )


def _ours(scenario: Scenario, features: Features) -> Answer:
    document = scenario.document
    claims = [decode(ResourceClaim, each) for each in document["claims"]]
    allocated = allocated_of(document["inUse"])
    outcomes = _allocator(scenario, features).allocate(claims, decode(Node, document["node"]), allocated)
    return _of_outcomes(outcomes)


def _of_outcomes(outcomes: Sequence[Outcome]) -> Answer:
    reason = next((one.reason for one in outcomes if one.reason not in (None, Reason.DOES_NOT_FIT)), None)
    if reason is not None:
        return reason
    return [{"devices": {}} | json.loads(encode_json(one.allocation)) for one in outcomes if one.allocation]


def _in_all_orders(scenario: Scenario, features: Features) -> Iterator[Answer]:
    """Return our answers in every order of pools and slices, up to a limit that Go's answers have not reached yet."""
    document = scenario.document
    allocator, node = _allocator(scenario, features), decode(Node, document["node"])
    claims = [decode(ResourceClaim, each) for each in document["claims"]]
    allocated, demand = allocated_of(document["inUse"]), allocator.demand(claims)
    pools = allocator.inventory.pools(node)
    with mock.patch("dranode.sim.allocator.pools.MAX_ORDERS", _MAX_ORDERS):
        for order in itertools.chain([pools], orders(pools)):
            solution = allocator.search_in_order(demand, order, allocated)
            if isinstance(solution, AllocationError):
                yield solution.reason
            elif solution.picks is None:
                yield []
            else:
                yield _of_outcomes(allocator.outcomes(demand, solution, node.metadata.name))
