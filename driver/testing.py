"""The contract test for drivers: run `check_plugin(your_plugin)` in your own tests.

It only needs an empty folder. It creates claims for the devices that the driver publishes, and prepares them with the
code that serves kubelet. A driver that writes to hardware is tested on a `ScratchMachine`.
"""

import contextlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol, assert_never

import msgspec

from dranode.api.documents import decode, encode
from dranode.api.errors import ClaimError, DocumentError, in_words
from dranode.api.quantity import Quantity
from dranode.api.resource import Counter, CounterSet, Device, DeviceCounterConsumption, DeviceTaint, ResourceClaim
from dranode.cdi.names import written_kind_problem
from dranode.driver.claims.answers import Conflict, Prepared, Refused
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Grant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.hooks import Configures, Tunes
from dranode.driver.claims.plugin import DeviceHealth, Inventory, Plugin
from dranode.driver.claims.prepare import allocated_claim
from dranode.driver.claims.record import ClaimState, PreparedDevice, Record, record_of
from dranode.driver.node.node import NodeClaims
from dranode.driver.slices.publishable import publishable

_DRIVER: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_MAX_DRIVER: Final = 63
_UNDONE: Final = "must restore the hardware to its state before configure()"
_SEEDS: Final = ("1", "2")
_CANNOT_LOAD: Final = 75
# Loads a driver in another process, lets it decide, and writes the decisions. A driver that cannot be loaded there is
# not an error.
_ELSEWHERE: Final = f"""
import importlib, pickle, sys
sys.path[:], module, driver = pickle.load(sys.stdin.buffer)
try:
    importlib.import_module(module)
    plugin, inventory, claims = pickle.loads(driver)
except Exception:
    sys.exit({_CANNOT_LOAD})
from dranode.driver import Held
sys.stdout.buffer.write(pickle.dumps([plugin.grant(claim, Held(), inventory) for claim in claims]))
"""


class WritableMachine(Protocol):
    """A machine that drivers may write to, such as `dranode.sim.machines.ScratchMachine`."""

    def contents(self) -> Mapping[str, bytes]:
        """Return every file with its contents, by path."""

    def gone(self) -> AbstractContextManager[None]:
        """Remove the hardware during the `with` block, as if it had been unplugged."""


def check_plugin(
    plugin: Plugin,
    folder: Path,
    configs: Iterable[Mapping[str, Any]] = (),
    *,
    machine: WritableMachine | None = None,
) -> None:
    """Test a driver: what it publishes and decides, and Prepare and Unprepare of every device.

    `grant` is also called in other processes, where sets of strings have another order, to find decisions that depend
    on it. This needs a driver, an inventory and grants that can be pickled.

    Args:
        plugin: the driver, on real or simulated hardware with at least one device.
        folder: an empty folder for ledger and CDI specs.
        configs: opaque parameters that the driver accepts, each tried on the first device.
        machine: the machine of the driver, to check how `configure` and `restore` change it; without it, only their
            errors are checked.

    Raises:
        AssertionError: the driver breaks the contract; the message says how.
    """
    _check_name(plugin)
    devices = _check_discovery(plugin)
    (folder / "data").mkdir(parents=True)
    node = NodeClaims(plugin, folder / "data", folder / "cdi")
    node.open()
    tried = [(device, _claim(plugin, f"claim-{number}", (device,))) for number, device in enumerate(devices)]
    tried += [
        (devices[0], _claim(plugin, f"config-{number}", devices[:1], parameters))
        for number, parameters in enumerate(configs)
    ]
    before = None if machine is None else machine.contents()
    for device, document in tried:
        _check_prepare(node, device, document)
        _must(machine is None or machine.contents() == before, f"Unprepare of {device.name} {_UNDONE}")
    claims = [allocated_claim(ClaimRef.of(document), document, plugin) for _, document in tried]
    check_decisions(plugin, node.inventory, claims)
    if isinstance(plugin, Configures):
        for claim in claims:
            grants = plugin.grant(claim, Held(), node.inventory).grants
            if plugin.configures(grants):
                _check_hardware(plugin, claim.ref, grants, machine)
    if isinstance(plugin, Tunes):
        granted = ((claim, plugin.grant(claim, Held(), node.inventory)) for claim in claims)
        records = [record_of(claim, grant, (), ClaimState.COMPLETED) for claim, grant in granted]
        _check_settings(plugin, [record for record in records if plugin.tunes(record.grants)], machine)
    _check_restart(node, _claim(plugin, "restarted", devices[:1]), folder)
    _check_stranger(node, plugin)
    node.close()


def _check_name(plugin: Plugin) -> None:
    _must(
        len(plugin.driver) <= _MAX_DRIVER and _DRIVER.fullmatch(plugin.driver) is not None,
        f'the driver\'s name "{plugin.driver}" must be a DNS subdomain of at most {_MAX_DRIVER} characters',
    )
    if plugin.cdi_kind:
        problem = written_kind_problem(plugin.cdi_kind)
        _must(problem is None, f'cdi_kind "{plugin.cdi_kind}": {problem}')


def _check_discovery(plugin: Plugin) -> tuple[Device, ...]:
    try:
        first, second = plugin.discover(), plugin.discover()
    except DocumentError as error:
        raise AssertionError(f"discover() failed: {error}") from error
    _check_types(first)
    _must(bool(first.devices), "discover() found no device; give the driver hardware with at least one")
    _must(first.devices == second.devices, "discover() on unchanged hardware must find the same devices in order")
    problems = publishable(first).warnings[len(first.warnings) :]
    _must(not problems, f"the API server would reject what discover() returned: {'; '.join(problems)}")
    _check_attribute_names(plugin, first.devices)
    for health in plugin.health(first):
        _must(isinstance(health, DeviceHealth), f"health() returned {health!r}, which must be a DeviceHealth")
    return first.devices


def _check_attribute_names(plugin: Plugin, devices: Sequence[Device]) -> None:
    """Reject a list of attributes that lacks a published one, because `dranode check` would warn about valid claims."""
    declared = plugin.attribute_names()
    published = {name if "/" in name else f"{plugin.driver}/{name}" for device in devices for name in device.attributes}
    missing = sorted(published - declared) if declared else []
    _must(not missing, f"attribute_names() must have every attribute with its domain, and lacks {', '.join(missing)}")


def _check_types(inventory: Inventory) -> None:
    """Report the first value of a wrong type, because a driver may be written without a type checker."""
    _check_type(inventory, Inventory, "discover() returned")
    for device in inventory.devices:
        _check_type(device, Device, "discover() found a device that is")
        _check_type(device.name, str, "discover() found a device whose name is")
        subject = f"discover() found device {device.name}, whose"
        for name, capacity in device.capacity.items():
            _check_type(capacity.value, Quantity, f"{subject} capacity {name} has a value that is")
        for taint in device.taints:
            _check_type(taint, DeviceTaint, f"{subject} taint is")
        for consumption in device.consumes_counters:
            _check_type(consumption, DeviceCounterConsumption, f"{subject} consumption of counters is")
            _check_counters(consumption.counters, f"{subject} consumption of")
        _check_document(device, Device, f"discover() found device {device.name}, which")
    for counters in inventory.counters:
        _check_type(counters, CounterSet, "discover() found a counter set that is")
        _check_counters(counters.counters, f"discover() found counter set {counters.name}, whose")
        _check_document(counters, CounterSet, f"discover() found counter set {counters.name}, which")


def _check_counters(counters: Mapping[str, Counter], subject: str) -> None:
    for name, counter in counters.items():
        _check_type(counter.value, Quantity, f"{subject} counter {name} has a value that is")


def _check_type(value: object, kind: type, subject: str) -> None:
    _must(isinstance(value, kind), f"{subject} {value!r} of type {type(value).__name__}; it must be a {kind.__name__}")


def _check_document(value: msgspec.Struct, kind: type[msgspec.Struct], subject: str) -> None:
    """Check that a value stays the same after an API server has decoded it."""
    try:
        read = decode(kind, encode(value))
    except (DocumentError, TypeError, ValueError, AttributeError) as error:
        raise AssertionError(f"{subject} is not a valid document of the API: {error}") from error
    fields = [name for name in kind.__struct_fields__ if getattr(read, name) != getattr(value, name)]
    _must(not fields, f"{subject} has another type than the API's in {', '.join(fields)}: {value!r}")


def _check_prepare(node: NodeClaims, device: Device, claim: ResourceClaim) -> None:
    ref = ClaimRef.of(claim)
    prepared = _prepared(node, claim)
    devices = [answer.device for answer in prepared]
    _must(devices == [device.name], f"grant() must return one grant for {device.name}")
    sources = node.inventory.sources_of(device.name)
    held = [held_device for record in node.records() for held_device in record.holding(node.plugin.sources).devices]
    _must(
        all(held_device.sources == sources for held_device in held),
        f"sources() must return for a grant of {device.name} what Inventory.sources has for it: {_names(sources)}",
    )
    _must(_prepared(node, claim) == prepared, f"a repeated Prepare of {device.name} must answer the same")
    failure = _unprepared(node, ref)
    _must(failure is None, f"Unprepare of {device.name} failed: {failure}")
    _must(_unprepared(node, ref) is None, f"a repeated Unprepare of {device.name} must succeed")
    _must(node.records() == (), f"Unprepare of {device.name} left a record")


def check_decisions(plugin: Plugin, inventory: Inventory, claims: Sequence[AllocatedClaim]) -> None:
    """Check that `grant` is a function of its arguments: in any order, after any other call, in any process.

    Raises:
        AssertionError: it is not; the message says what it depends on.
    """
    held = Held()
    first = [plugin.grant(claim, held, inventory) for claim in claims]
    _must(held == Held(), "grant() must not change what other claims hold")
    for claim, grant in reversed([*zip(claims, first, strict=True)]):
        again = plugin.grant(claim, Held(), inventory)
        _must(
            again == grant,
            f"grant() must be a function of its arguments: claim {claim.ref} got another grant after other calls",
        )
    for seed in _SEEDS:
        answer = _elsewhere(plugin, inventory, claims, seed)
        _must(
            answer is None or answer == first,
            "grant() must be a function of its arguments: in another process it returned something else; "
            "does it depend on the order of a set, or on an environment variable?",
        )


def _elsewhere(
    plugin: Plugin, inventory: Inventory, claims: Sequence[AllocatedClaim], seed: str
) -> list[ClaimGrant] | None:
    """Return what `grant` returns in a process where sets of strings have another order; None without pickling."""
    try:
        task = pickle.dumps((sys.path, plugin.__class__.__module__, pickle.dumps((plugin, inventory, claims))))
    except Exception:  # noqa: BLE001 - an object of a driver may raise any error when it is pickled
        return None
    environment = {"PYTHONHASHSEED": seed, "PATH": os.environ.get("PATH", "")}
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", _ELSEWHERE], input=task, capture_output=True, env=environment, check=False
    )
    if done.returncode == _CANNOT_LOAD:
        return None
    _must(done.returncode == 0, f"grant() failed in another process: {done.stderr.decode(errors='replace')[-500:]}")
    answer: list[ClaimGrant] = pickle.loads(done.stdout)  # noqa: S301 - what this function's own process wrote
    return answer


def _check_hardware(
    plugin: Configures, claim: ClaimRef, grants: tuple[Grant, ...], machine: WritableMachine | None
) -> None:
    def seen() -> object:
        return None if machine is None else machine.contents()

    before = seen()
    _done(plugin.restore, claim, grants, "restore() must work if nothing was configured")
    _must(seen() == before, "restore() must not change what was never configured")
    _done(plugin.configure, claim, grants, "configure() failed")
    configured = seen()
    _done(plugin.configure, claim, grants, "configure() must be idempotent: called again, as after a crash, it failed")
    _must(seen() == configured, "configure() must be idempotent: called again, it left the hardware in another state")
    _done(plugin.restore, claim, grants, "restore() failed")
    _must(seen() == before, f"restore() {_UNDONE}")
    _done(plugin.restore, claim, grants, "restore() must work again, as after a crash")
    if machine is not None:
        _done(plugin.configure, claim, grants, "configure() failed")
        with machine.gone():
            _done(plugin.restore, claim, grants, "restore() must work when the hardware is gone")
        _done(plugin.restore, claim, grants, "restore() must work after the hardware has come back")


class _MemoryNotes:
    """`Notes` in memory."""

    lost = ""

    def __init__(self) -> None:
        self._text = b"null"

    def read(self) -> Any:
        return msgspec.json.decode(self._text)

    def write(self, notes: Any) -> None:
        self._text = msgspec.json.encode(notes)


def _check_settings(plugin: Tunes, records: Sequence[Record], machine: WritableMachine | None) -> None:
    """Check that settings depend only on the claims that need them, independent of earlier claims."""
    notes = _MemoryNotes()

    def tuned(claims: Sequence[Record]) -> object:
        try:
            plugin.tune(claims, notes)
        except Exception as error:
            raise AssertionError(f"tune() failed: {in_words(error)}") from error
        return None if machine is None else machine.contents()

    before = tuned(())
    for record in records:
        alone = tuned((record,))
        _must(tuned((record,)) == alone, "tune() must be idempotent: called again, it made other settings")
        for other in records:
            tuned((record, other))
            _must(
                tuned((record,)) == alone, "tune() must make the settings of the remaining claims after one has ended"
            )
        _must(tuned(()) == before, "tune() without claims must restore every setting")
    if machine is not None and records:
        tuned(records)
        # An error is allowed: the claim stays on record until its settings can be undone.
        with machine.gone(), contextlib.suppress(ClaimError):
            plugin.tune((), notes)
        _must(tuned(()) == before, "tune() must work after the hardware has come back")


def _done(
    act: Callable[[ClaimRef, tuple[Grant, ...]], None], claim: ClaimRef, grants: tuple[Grant, ...], sentence: str
) -> None:
    try:
        act(claim, grants)
    except Exception as error:
        raise AssertionError(f"{sentence}: {in_words(error)}") from error


def _check_restart(node: NodeClaims, claim: ResourceClaim, folder: Path) -> None:
    prepared = _prepared(node, claim)
    node.close()
    for path in (folder / "cdi").glob("*"):
        path.unlink()
    again = NodeClaims(node.plugin, folder / "data", folder / "cdi")
    again.open()
    _must(_prepared(again, claim) == prepared, "after a restart a repeated Prepare must answer the same")
    _must(_unprepared(again, ClaimRef.of(claim)) is None, "after a restart Unprepare must succeed")
    again.close()


def _check_stranger(node: NodeClaims, plugin: Plugin) -> None:
    stranger = _claim(plugin, "stranger", (Device(name="no-such-device"),))
    answer = node.prepare({ClaimRef.of(stranger): stranger})[stranger.metadata.uid]
    _must(not isinstance(answer, Prepared), "a claim for a device that does not exist must be refused")
    nothing = ClaimRef("default", "never-prepared", "uid-never-prepared")
    _must(_unprepared(node, nothing) is None, "Unprepare of a claim that was never prepared must succeed")


def _claim(
    plugin: Plugin, name: str, devices: Iterable[Device], parameters: Mapping[str, Any] | None = None
) -> ResourceClaim:
    results = [
        {
            "request": "request",
            "driver": plugin.driver,
            "pool": "node",
            "device": device.name,
            "consumedCapacity": {key: _least(device, key) for key in device.capacity},
        }
        for device in devices
    ]
    config = [{"source": "FromClaim", "opaque": {"driver": plugin.driver, "parameters": parameters}}]
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
            "status": {"allocation": {"devices": {"results": results, "config": config if parameters else []}}},
        },
    )


def _least(device: Device, key: str) -> str:
    capacity = device.capacity[key]
    policy = capacity.request_policy
    return (policy.default if policy and policy.default else capacity.value).text


def _prepared(node: NodeClaims, claim: ResourceClaim) -> tuple[PreparedDevice, ...]:
    answer = node.prepare({ClaimRef.of(claim): claim})[claim.metadata.uid]
    match answer:
        case Prepared(devices):
            return devices
        case Refused(reason) | Conflict(reason):
            raise AssertionError(f"Prepare of {claim.metadata.name} failed: {reason}")
        case _:
            assert_never(answer)


def _names(sources: Iterable[str]) -> str:
    return ", ".join(sorted(sources))


def _unprepared(node: NodeClaims, ref: ClaimRef) -> str | None:
    refusal = node.unprepare((ref,))[ref.uid]
    return None if refusal is None else refusal.reason


def _must(holds: bool, sentence: str) -> None:  # noqa: FBT001 - an assertion, spelt so that -O keeps it
    if not holds:
        raise AssertionError(sentence)
