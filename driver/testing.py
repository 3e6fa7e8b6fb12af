"""The contract test for drivers: run `check_plugin(your_plugin)` in your own tests.

It needs nothing but a folder to write to: claims are made up from the devices that the driver publishes and put through
the same code that serves kubelet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, assert_never

from dranode.cdi.names import written_kind_problem
from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.resource import Device, ResourceClaim
from dranode.driver.core.claims.allocation import results_of
from dranode.driver.core.claims.answers import Conflict, Prepared, Refused
from dranode.driver.core.claims.configs import configs_for
from dranode.driver.core.claims.grant import AllocatedClaim, AllocatedResult
from dranode.driver.core.claims.held import ClaimRef, Held
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.record import PreparedDevice
from dranode.driver.core.slices.desired import publishable
from dranode.driver.node.node import NodeClaims

_DRIVER: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_MAX_DRIVER: Final = 63


def check_plugin(plugin: Plugin, folder: Path, configs: Iterable[Mapping[str, Any]] = ()) -> None:
    """Prove a driver: what it publishes, and that Prepare and Unprepare of every device behave.

    Args:
        plugin: the driver, on hardware (real or made up) with at least one device.
        folder: an empty folder for ledger and CDI specs.
        configs: opaque parameters that the driver accepts, each tried on the first device.

    Raises:
        AssertionError: the driver breaks the contract; says where.
    """
    _check_name(plugin)
    devices = _check_discovery(plugin)
    (folder / "data").mkdir(parents=True)
    node = NodeClaims(plugin, folder / "data", folder / "cdi")
    node.open()
    for number, device in enumerate(devices):
        _check_life(node, device, _claim(plugin, f"claim-{number}", (device,)))
    for number, parameters in enumerate(configs):
        _check_life(node, devices[0], _claim(plugin, f"config-{number}", devices[:1], parameters))
    _check_purity(node, _claim(plugin, "pure", devices[:1]))
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
    first, second = plugin.discover(), plugin.discover()
    _must(bool(first.devices), "discover() found no device; give the driver hardware with at least one")
    _must(first.devices == second.devices, "discover() on unchanged hardware must find the same devices in order")
    sound = publishable(first)
    refused = sound.warnings[len(first.warnings) :]
    _must(not refused, f"the API server would refuse what discover() found: {'; '.join(refused)}")
    return first.devices


def _check_life(node: NodeClaims, device: Device, claim: ResourceClaim) -> None:
    ref = _ref(claim)
    prepared = _prepared(node, claim)
    _must([one.device for one in prepared] == [device.name], f"grant() must answer for {device.name}, once")
    _must(_prepared(node, claim) == prepared, f"a repeated Prepare of {device.name} must answer the same")
    failure = _unprepared(node, ref)
    _must(failure is None, f"Unprepare of {device.name} failed: {failure}")
    _must(_unprepared(node, ref) is None, f"a repeated Unprepare of {device.name} must succeed")
    _must(node.records() == (), f"Unprepare of {device.name} left a record")


def _check_purity(node: NodeClaims, claim: ResourceClaim) -> None:
    ref, results = _ref(claim), results_of(claim.status.allocation, node.plugin.driver)
    asked = AllocatedClaim(ref, tuple(AllocatedResult(result, configs_for(result, ())) for result in results))
    grants = [node.plugin.grant(asked, Held(), node.inventory) for _ in range(2)]
    _must(grants[0] == grants[1], "grant() must be a function of its arguments: two equal calls gave different grants")


def _check_restart(node: NodeClaims, claim: ResourceClaim, folder: Path) -> None:
    prepared = _prepared(node, claim)
    node.close()
    for path in (folder / "cdi").glob("*"):
        path.unlink()
    again = NodeClaims(node.plugin, folder / "data", folder / "cdi")
    again.open()
    _must(_prepared(again, claim) == prepared, "after a restart a repeated Prepare must answer the same")
    _must(_unprepared(again, _ref(claim)) is None, "after a restart Unprepare must succeed")
    again.close()


def _check_stranger(node: NodeClaims, plugin: Plugin) -> None:
    stranger = _claim(plugin, "stranger", (Device(name="no-such-device"),))
    answer = node.prepare({_ref(stranger): stranger})[stranger.metadata.uid]
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


def _ref(claim: ResourceClaim) -> ClaimRef:
    return ClaimRef(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)


def _prepared(node: NodeClaims, claim: ResourceClaim) -> tuple[PreparedDevice, ...]:
    answer = node.prepare({_ref(claim): claim})[claim.metadata.uid]
    match answer:
        case Prepared(devices):
            return devices
        case Refused(reason) | Conflict(reason):
            raise AssertionError(f"Prepare of {claim.metadata.name} failed: {reason}")
        case _:
            assert_never(answer)


def _unprepared(node: NodeClaims, ref: ClaimRef) -> str | None:
    refusal = node.unprepare((ref,))[ref.uid]
    return None if refusal is None else refusal.reason


def _must(holds: bool, sentence: str) -> None:  # noqa: FBT001 - an assertion, spelt so that -O keeps it
    if not holds:
        raise AssertionError(sentence)
