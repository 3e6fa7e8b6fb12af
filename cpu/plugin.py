"""The CPU driver, `dra.cpu`; its entry point in the group `dranode.plugins` is `cpu`."""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from dranode.cdi.spec import Spec
from dranode.cpu.config import parse_cpu_config
from dranode.cpu.devices import (
    ATTRIBUTES,
    cpu_devices,
    description,
    device_health,
    impairments,
    isolation_description,
    kept_back,
    left_out,
)
from dranode.cpu.grant import adopted, grant_cpus
from dranode.cpu.isolation.peers import IRQBalance, Peers, Systemd
from dranode.cpu.isolation.setting_files import BUS
from dranode.cpu.isolation.tuner import Tuner, disturbances, loss
from dranode.cpu.layout import cpu_layout
from dranode.cpu.options import CPUOptions, Isolation, check_reserved, read_options
from dranode.cpu.sysfs import read_online_for_pods, read_pcie_roots, read_topology
from dranode.cpu.topology import Topology
from dranode.cpu.treatment import CDI_KIND, claim_treatment, env_isolation, pinned_claim, pool, spec_cpus, unread_pool
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Config, Grant
from dranode.driver.claims.held import Held
from dranode.driver.claims.hooks import (
    Disturbance,
    HardwareProblem,
    Layout,
    LockedTuning,
    Notes,
    Recovers,
    Reports,
    Tunes,
)
from dranode.driver.claims.plugin import DeviceHealth, Impairment, Inventory, Plugin, Stop
from dranode.driver.claims.record import Record
from dranode.driver.machine import kubepods, udev
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import Root
from dranode.driver.machine.udev import Events
from dranode.driver.pinning.pods_cgroup import UNLIMITED, PodsCgroup
from dranode.driver.pinning.snapshot import PinnedClaim, Pins, PinSnapshot

log = logging.getLogger(__name__)


# The folder of a CPU, which the kernel's events name when it goes offline, comes back, is added or removed.
_PATH: Final = re.compile(r"/devices/system/cpu/cpu(\d+)", re.ASCII)


def cpu_of_event(action: str, subsystem: str, path: str, properties: Mapping[str, str]) -> int | None:
    """Return the CPU that a uevent is about; None if it is not about a CPU."""
    del action, properties
    match = _PATH.fullmatch(path)
    return int(match[1]) if subsystem == "cpu" and match is not None else None


def cpu_kernel_events() -> udev.Events[int]:
    """Open the source of the kernel's uevents about CPUs.

    Raises:
        ImportError: libudev is not installed.
        OSError: the kernel's netlink group cannot be joined.
    """
    return udev.KernelEvents(("cpu",), cpu_of_event)


# In individual mode dra-driver-cpu names devices by position in a list that it does not publish, so such a name does
# not tell the CPU.
_POSITION: Final = re.compile(r"cpudev\d{3,}", re.ASCII)


class CPUPlugin(Plugin, Reports, Pins, Recovers, Tunes):
    """CPUs as devices; `Inventory.hardware` is the machine's `Topology`.

    Args:
        root: the machine's files.
        options: how its CPUs are published and handed out.
        events: opens the source of the kernel's events; None for a captured or synthetic machine.
        host: the node's own files if `root` has those of a pod; None if they are the same.
    """

    driver = "dra.cpu"
    cdi_kind = CDI_KIND

    def __init__(
        self,
        root: Root,
        options: CPUOptions,
        events: Callable[[], Events[int]] | None = None,
        host: Root | None = None,
    ) -> None:
        self.options = options
        self._root = root
        self._host = host or root
        self._tuner: Tuner | None = None
        self._events = events
        self._seen: frozenset[str] = frozenset()
        self._core_numbers: dict[int, int] = {}
        self._pods: PodsCgroup = UNLIMITED

    def attribute_names(self) -> frozenset[str]:
        """Return the names of all attributes."""
        return ATTRIBUTES

    def discover(self) -> Inventory:
        """Read the machine's CPUs.

        Raises:
            MachineError: the machine's files are missing, damaged or contradict each other.
            UsageError: the reserved CPUs do not exist, or no CPU is left for claims.
        """
        topology = read_topology(self._root).with_core_numbers(self._core_numbers)
        # Only the first reading checks the option. If CPUs go offline later, the driver publishes those that remain.
        if not self._seen:
            check_reserved(self.options, topology)
        self._pods = topology.pods
        roots, root_warnings = read_pcie_roots(self._root) if self.options.expose_pcie_roots else ({}, ())
        devices = cpu_devices(topology, self.options, roots)
        self._seen |= {device.name for device in devices}
        return Inventory(
            devices=devices,
            hardware=topology,
            warnings=(*topology.warnings, *root_warnings, *left_out(topology, self.options)),
            kept_back=kept_back(topology, self.options),
        )

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        """Decide which CPUs the claim gets (`dranode.cpu.grant`)."""
        return grant_cpus(claim, held, inventory.hardware, self.options)

    def parse_config(self, config: Config) -> Any:
        """Decode a configuration in one of the three forms of `dranode.cpu.config`."""
        return parse_cpu_config(config)

    def describe(self, grant: Grant, record: Record, inventory: Inventory) -> Mapping[str, Any]:
        """Return the grant's CPUs and their NUMA nodes, or those of the whole claim if the grant's own are unknown.

        For isolation beyond `cpuset` it adds the level, and what still runs on the CPUs.
        """
        return description(grant, record, inventory.hardware) | isolation_description(grant, self.remaining)

    def pool(self, inventory: Inventory) -> PinSnapshot:
        """Return the machine without claims: the online CPUs on which pods may run, and the reserved CPUs."""
        return pool(inventory.hardware, self.options.reserved)

    def unread_pool(self) -> PinSnapshot:
        """Return the reserved CPUs, and the online CPUs on which pods may run if they can be read."""
        return unread_pool(read_online_for_pods(self._root), self.options.reserved)

    def pinned(self, record: Record) -> PinnedClaim:
        """Return the CPUs to which the claim's containers are pinned; other containers share what no claim holds."""
        return pinned_claim(record)

    def tunes(self, grants: tuple[Grant, ...]) -> bool:
        """Return whether a grant asks for isolation beyond `cpuset`."""
        if not any(grant.state for grant in grants):
            return False
        return claim_treatment(grants).isolation is not Isolation.CPUSET

    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        """Keep interrupts, unbound kernel work and host services off the CPUs of these claims (`isolation.tuner`)."""
        if self._tuner is None:
            peers = Peers()
            if isinstance(self._host, HostRoot):
                host_root = self.options.host_root.rstrip("/")
                peers = Peers(self._host, IRQBalance(f"{host_root}/run/irqbalance"), Systemd(f"{host_root}/{BUS}"))
            self._tuner = Tuner(self._host, self.options.reserved, peers)
        self._tuner.tune(claims, notes)
        self.must_notify = self._tuner.must_notify

    def notify(self, locked: LockedTuning) -> bool:
        """Tell irqbalance and systemd to keep host work off the CPUs of these claims (`isolation.peers`)."""
        return self._tuner is not None and self._tuner.notify(locked)

    @property
    def remaining(self) -> tuple[str, ...] | None:
        """Return why host work still runs on quiet CPUs, as last checked; None before the first check."""
        return None if self._tuner is None else self._tuner.remaining

    def disturbances(self, claims: Collection[Record], notes: Any) -> Iterable[Disturbance]:
        """Return the interrupts and the tasks' time on the CPUs of claims that want them quiet."""
        return disturbances(self._host, claims, notes)

    def tuned(self, record: Record) -> bool:
        """Return whether the CDI spec of a claim says that its CPUs are isolated beyond `cpuset`."""
        return env_isolation(record.uid, record.edits) is not Isolation.CPUSET

    def unrestorable(self, notes: Any) -> str:
        """Return why settings that claims have changed cannot be put back; empty if they can."""
        return loss(self._host, notes)

    def recover(self, uid: str, spec: Spec) -> ClaimGrant | None:
        """Return the CPUs that a claim was granted according to a CDI spec of this driver or of dra-driver-cpu."""
        return spec_cpus(uid, spec) if spec.kind == self.cdi_kind else None

    def adopted(self, claim: AllocatedClaim, recovered: ClaimGrant, inventory: Inventory) -> tuple[Grant, ...]:
        """Return the grants of a recovered claim, with the treatment and attributes that its CDI spec lacks."""
        return adopted(claim, recovered, inventory.hardware, self.options)

    def foreign(self, device: str) -> str:
        """Return the driver that uses such device names, if this is a position in dra-driver-cpu's list of CPUs."""
        return "dra-driver-cpu in individual mode" if _POSITION.fullmatch(device) else ""

    def health(self, inventory: Inventory) -> Iterable[DeviceHealth]:
        """Return the devices whose CPUs are offline or may not run pods (`dranode.cpu.devices`)."""
        return device_health(self._seen, inventory, self.options)

    def impairments(self, inventory: Inventory, records: Iterable[Record]) -> Iterable[Impairment]:
        """Return the claims that hold CPUs which are offline or may not run pods."""
        return impairments(inventory.hardware, records)

    def problems(self, inventory: Inventory) -> Iterable[HardwareProblem]:
        """Return a problem that names the CPUs on which no pod may run, if there are any."""
        topology: Topology = inventory.hardware
        return topology.pods.cpu_problems(topology.online)

    def watch(self, stop: Stop) -> Iterator[None]:
        """Yield when CPUs of the machine or of pods were added or removed, and every minute, until `stop` is set."""
        yield from udev.watch(
            udev.opened(self._events), lambda _: None, stop, due=lambda: kubepods.has_changed(self._root, self._pods)
        )

    def layout(self, inventory: Inventory) -> Layout:
        """Return the machine's packages, NUMA nodes, caches and cores."""
        return cpu_layout(inventory.hardware)


def plugin(root: Root, options: Mapping[str, object]) -> Plugin:
    """Make the CPU driver for the machine under `root`, with the options of `dranode.cpu.declared`.

    Raises:
        UsageError: an option has an invalid value.
    """
    read = read_options(options)
    if options.get("keep_shared") and not read.reserved:
        log.warning(
            "no CPU is reserved, so one CPU is not published and is left to containers without a claim; "
            "set --reserved-cpus to choose which"
        )
    elif "keep_shared" in options and read.max_isolation is not Isolation.CPUSET and not read.reserved:
        log.warning(
            "no CPU is reserved, so one CPU is not published and is left to interrupts, because claims may want "
            "all others quiet; set --reserved-cpus to choose which"
        )
    if not isinstance(root, HostRoot):
        return CPUPlugin(root, read)
    host = HostRoot(read.host_root)
    if read.max_isolation is not Isolation.CPUSET and not host.exists("proc/irq"):
        log.warning(
            "root=%s: there is no proc/irq, so claims with isolation beyond cpuset will be refused; set "
            "--cpu-host-root to where deploy/components/isolation mounts the node's files",
            read.host_root,
        )
    return CPUPlugin(root, read, cpu_kernel_events, host=host)
