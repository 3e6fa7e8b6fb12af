"""The mock machines of dra-driver-cpu's Prepare tests, and claims as the framework passes them to a driver.

Machines M1 to M7: reference sheet of dra-driver-cpu at commit de98098690f2, A.7.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import Quantity
from dranode.api.resource import DeviceAllocationConfiguration, DeviceRequestAllocationResult, OpaqueDeviceConfiguration
from dranode.cpu.config import parse_cpu_config
from dranode.cpu.grant import grant_cpus
from dranode.cpu.options import CPUOptions
from dranode.cpu.topology import Topology
from dranode.driver.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant, configs_for
from dranode.driver.claims.held import ClaimRef, Held, Holding
from tests.fakes.topology import Place, topology


def typed(machine: Topology, types: Mapping[int, str]) -> Topology:
    """The machine with CPUs of these types."""
    cpus = {id_: replace(cpu, type=types[id_]) for id_, cpu in machine.cpus.items()}
    return replace(machine, cpus=cpus)


def _places(count: int, core: Any, node: Any = lambda _: 0) -> dict[int, Place]:
    return {cpu: (core(cpu), node(cpu), node(cpu), 0) for cpu in range(count)}


_M1 = topology(_places(4, lambda cpu: cpu % 2))
MACHINES: dict[str, Topology] = {
    "M1": typed(_M1, dict.fromkeys(range(4), "p-core")),
    "M2": topology(_places(4, lambda cpu: cpu)),
    "M3": typed(_M1, {cpu: "e-core" if cpu % 2 else "p-core" for cpu in range(4)}),
    "M4": topology(_places(8, lambda cpu: cpu % 4, lambda cpu: cpu % 4 // 2)),
    "M5": topology(_places(128, lambda cpu: cpu, lambda cpu: cpu // 64)),
    "M6": topology(_places(138, lambda cpu: cpu, lambda cpu: cpu // 69)),
    "M7": topology(_places(240, lambda cpu: cpu % 120 // 2, lambda cpu: cpu // 120)),
}


def cpus(text: str) -> CPUSet:
    return CPUSet.parse(text)


def result(device: str, amount: str | int | None = None, request: str = "req", **fields: Any) -> Any:
    """An allocation result of the CPU driver."""
    consumed = {} if amount is None else {"dra.cpu/cpu": Quantity(amount)}
    return DeviceRequestAllocationResult(
        request=request, driver="dra.cpu", pool="worker1", device=device, consumed_capacity=consumed, **fields
    )


def config(
    parameters: Any,
    requests: tuple[str, ...] = (),
    source: Literal["FromClass", "FromClaim"] = "FromClaim",
    driver: str = "dra.cpu",
) -> DeviceAllocationConfiguration:
    """An opaque configuration as an allocation contains it."""
    opaque = OpaqueDeviceConfiguration(driver=driver, parameters=parameters)
    return DeviceAllocationConfiguration(source=source, requests=requests, opaque=opaque)


def own(**fields: Any) -> dict[str, Any]:
    """A CPUConfig document."""
    return {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", **fields}


def claim(
    results: Iterable[DeviceRequestAllocationResult],
    configs: Iterable[DeviceAllocationConfiguration] = (),
    name: str = "claim-1",
) -> AllocatedClaim:
    """A claim whose name is its UID, with configurations resolved and parsed as for `grant`."""
    configs = tuple(configs)
    return AllocatedClaim(
        ClaimRef("default", name, name),
        tuple(
            AllocatedResult(
                each, tuple(replace(one, parameters=parse_cpu_config(one)) for one in configs_for(each, configs))
            )
            for each in results
        ),
    )


def holding(**claims: str) -> Held:
    """What the claims with these names hold."""
    return Held.of(
        Holding(ClaimRef("default", name, name), cpus=CPUSet.parse(text)) for name, text in sorted(claims.items())
    )


def granted(
    machine: Topology, asked: AllocatedClaim, options: CPUOptions | None = None, held: Held | None = None
) -> ClaimGrant:
    """What `grant` decides; by default nothing is held and all options have their defaults."""
    return grant_cpus(asked, held or Held(), machine, options or CPUOptions())
