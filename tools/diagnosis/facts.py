"""The facts about a node that can stop a driver there, and the faults that are found in them.

Readers (`dranode.tools.readers`) make the facts, the rules of `dranode.tools.diagnosis.rules` judge them. A
group of facts that could not be read is None, with the reason in `Facts.unseen`: nothing is judged without being seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Any

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.hooks import Disturbance, HardwareProblem


class Severity(StrEnum):
    """The severity of a finding: claims fail or CPUs are shared (`stops`), or it works badly (`warns`)."""

    STOPS = "stops"
    WARNS = "warns"


class Fault(msgspec.Struct, frozen=True):
    """Something that a rule sees.

    Attributes:
        what: what is wrong, with value and place, in one sentence without a full stop.
        fix: what to do, likewise.
        severity: how bad it is; None for the severity of its rule.
    """

    what: str
    fix: str
    severity: Severity | None = None


class Finding(msgspec.Struct, frozen=True):
    """A fault under the name of its rule.

    Attributes:
        code: a stable name for it.
        severity: how bad it is.
        fault: what is wrong and what to do.
    """

    code: str
    severity: Severity
    fault: Fault


class ServeOptions(msgspec.Struct, frozen=True):
    """The options of `serve`, as the driver is configured.

    Attributes:
        node: the node's name.
        drivers: the names of the drivers.
        pinning: the names of those that hold containers to something, which needs NRI.
        pinning_cpus: the names of those of them that hold containers to CPUs.
        shares: whether one of them publishes devices that several claims may have.
        unshared: the options with which none of them does, such as `--lamps-sharing off`; empty if there are none.
        gated: feature gate of every other option that is on and whose fields a server may drop, by option.
        reserved: the CPUs that no claim gets.
        reserving: the flag that says so; empty if no driver has one.
        kubelet_root: `--kubelet-root`.
        cdi_dir: `--cdi-dir`.
        nri_socket: `--nri-socket`; empty for none.
        refusals: why a driver would not start with these options on this machine, one sentence each.
        unread: why a driver cannot read this machine, one sentence each.
        problems: what the drivers say of the machine.
        oddities: what the drivers log about it: what is odd or could not be read, one sentence each.
        holding_pages: the names of those that hold containers to huge pages on this machine.
        cdi_kinds: the CDI kinds of the drivers' devices.
    """

    node: str
    drivers: tuple[str, ...]
    pinning: tuple[str, ...] = ()
    pinning_cpus: tuple[str, ...] = ()
    shares: bool = True
    unshared: tuple[str, ...] = ()
    gated: Mapping[str, str] = msgspec.field(default_factory=dict)
    reserved: CPUSet = msgspec.field(default_factory=CPUSet)
    reserving: str = ""
    kubelet_root: str = "/var/lib/kubelet"
    cdi_dir: str = "/var/run/cdi"
    nri_socket: str = "/var/run/nri/nri.sock"
    refusals: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    problems: tuple[HardwareProblem, ...] = ()
    oddities: tuple[str, ...] = ()
    holding_pages: tuple[str, ...] = ()
    cdi_kinds: tuple[str, ...] = ()


class Kubelet(msgspec.Struct, frozen=True):
    """kubelet's configuration.

    Attributes:
        config: the file that it was read from; empty if it was not seen, and then only the policies of managers whose
            place is named are known.
        root: `--root-dir`.
        cpu_manager: the CPU manager's policy.
        cpu_manager_place: where that is said.
        reserved: the CPUs that kubelet keeps for the system.
        gates: feature gates that are set.
        memory_manager: the memory manager's policy.
        memory_manager_place: where that is said.
        topology_manager: the topology manager's policy.
    """

    config: str
    root: str = "/var/lib/kubelet"
    cpu_manager: str = "none"
    cpu_manager_place: str = ""
    reserved: CPUSet = msgspec.field(default_factory=CPUSet)
    gates: Mapping[str, bool] = msgspec.field(default_factory=dict)
    memory_manager: str = "None"
    memory_manager_place: str = ""
    topology_manager: str = "none"


class RuntimeFacts(msgspec.Struct, frozen=True):
    """The container runtime's configuration, its version's defaults filled in; all but name and version only if seen.

    Attributes:
        name: `containerd` or `CRI-O`.
        version: major and minor; None if unknown.
        config: the file that it was read from; empty if it was not seen.
        nri: whether NRI is on; None if unknown.
        nri_disabled: the name under which disabled_plugins has NRI; empty if it does not.
        cri_disabled: the same of CRI, which kubelet talks to.
        connections: whether NRI takes plug-ins over its socket.
        nri_socket: where that is.
        request_timeout: for how many seconds the runtime waits for a plug-in.
        cdi: whether CDI is on; None if unknown.
        cdi_dirs: the directories that CDI specs are read from.
        validator: whether NRI's default validator is on.
        required: the NRI plug-ins without which it lets no container be created.
        tolerance: the annotation by which a pod does without required plug-ins; empty for none.
        launched: the NRI plug-ins that the runtime starts by itself.
        hugetlb: whether it limits containers' huge pages.
    """

    name: str
    config: str
    version: tuple[int, int] | None = None
    nri: bool | None = True
    nri_disabled: str = ""
    cri_disabled: str = ""
    connections: bool = True
    nri_socket: str = "/var/run/nri/nri.sock"
    request_timeout: float = 2.0
    cdi: bool | None = True
    cdi_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    validator: bool = False
    required: tuple[str, ...] = ()
    tolerance: str = ""
    launched: tuple[str, ...] = ()
    hugetlb: bool = True


class PathState(StrEnum):
    """The kind of thing at a path."""

    THERE = "there"
    MISSING = "missing"
    WRONG = "wrong"  # something else than it should be
    UNUSABLE = "unusable"  # a folder that cannot be written, a socket on which no process answers


class Place(msgspec.Struct, frozen=True):
    """A folder or a socket that the driver needs.

    Attributes:
        path: where.
        state: what is there.
        use: what it is for.
    """

    path: str
    state: PathState
    use: str


class Endpoint(msgspec.Struct, frozen=True):
    """A socket in kubelet's registry of plug-ins.

    Attributes:
        path: the registration socket.
        answers: whether somebody serves it.
        driver: the driver's name, as it says; the name of the file if no process answers.
        endpoint: where it serves DRA.
        age: for how many seconds the socket has been there; None if unknown.
    """

    path: str
    answers: bool
    driver: str
    endpoint: str = ""
    age: float | None = None


class Records(msgspec.Struct, frozen=True):
    """A driver's ledger and the CDI specs that follow from it.

    Attributes:
        driver: whose.
        path: the ledger.
        error: why it cannot be used; empty if it can.
        newer: whether that is because a newer dranode wrote it.
        doubts: why the driver prepares no new claims although it can read the ledger, with what to do.
        damaged: rows that are quarantined, with the reason.
        unwritten: claims on record whose CDI spec is not there.
        orphans: CDI specs of this driver without a record.
        disturbances: what has disturbed the claims that want quiet CPUs.
        unrestorable: why settings of the machine that claims have changed cannot be put back; empty if they can.
    """

    driver: str
    path: str
    error: str = ""
    newer: bool = False
    doubts: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()
    unrestorable: str = ""


class NodeFacts(msgspec.Struct, frozen=True):
    """The node's folders, sockets and records.

    Attributes:
        places: what the driver needs.
        endpoints: who is in kubelet's registry; None if that could not be seen.
        records: of each driver.
        cpuset: whether the kernel's cgroups have the cpuset controller; None if there are no cgroups to see.
        socket_excess: by how many bytes the longest socket path is too long; 0 if it fits.
    """

    places: tuple[Place, ...] = ()
    endpoints: tuple[Endpoint, ...] | None = ()
    records: tuple[Records, ...] = ()
    cpuset: bool | None = None
    socket_excess: int = 0


class Right(msgspec.Struct, frozen=True):
    """Something that the driver must be allowed to do: an RBAC verb on a resource."""

    verb: str
    resource: str
    group: str = "resource.k8s.io"

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


class PublishedSlice(msgspec.Struct, frozen=True):
    """A ResourceSlice on this node of one of the drivers."""

    name: str
    driver: str
    pool: str
    devices: int


class ClassTrouble(Enum):
    """The faults that a DeviceClass of a driver may have."""

    INVALID = auto()  # a selector that no API server would take
    FAILS = auto()  # a selector that ends in an error on a device
    SELECTS_NOTHING = auto()
    CONFIG = auto()  # a configuration that the driver refuses
    SAME_RESOURCE = auto()  # two classes for one extended resource


class ClassProblem(msgspec.Struct, frozen=True):
    """Something that is wrong with a DeviceClass.

    Attributes:
        name: the class; several joined by `and`.
        trouble: what it is.
        what: the error, the expression, or the extended resource.
    """

    name: str
    trouble: ClassTrouble
    what: str


class ClusterFacts(msgspec.Struct, frozen=True):
    """The facts from the API server; None for a fact that it could not be asked.

    Attributes:
        versions: of `resource.k8s.io`, as it offers them.
        denied: what the account may not do.
        account: the driver's service account, `<namespace>:<name>`, if it is that; empty for our own.
        dropped: feature gates whose fields it drops, by what they are for.
        missing_classes: DeviceClasses of the drivers that are not there.
        node: whether there is a Node of this name.
        kubelet: kubelet's version: major, minor, and the patch release if it says one.
        extended: the extended resources that device plugins of the node have to give.
        slices: of the drivers on this node.
        refused: one sentence for each request that was refused or not answered.
        skew: by how many seconds the server's clock is ahead of this one, negative if it is behind; whole seconds.
        classes: the DeviceClasses that could be read, as plain documents.
        class_problems: what is wrong with them.
        driver_pod: why the driver's pod on the node is not there or does not serve; empty if it serves.
        pods_unseen: why the driver's pods could not be listed; empty if they could.
        left_out: why every DaemonSet of the driver leaves the node out; empty if one does not, or if that is not known.
        daemonsets: the DaemonSets of the driver that have a pod on the node, `<namespace>/<name>`.
    """

    versions: tuple[str, ...] | None = None
    denied: tuple[Right, ...] | None = None
    account: str = ""
    dropped: tuple[str, ...] | None = None
    missing_classes: tuple[str, ...] | None = None
    node: bool | None = None
    kubelet: tuple[int, ...] | None = None
    extended: tuple[str, ...] = ()
    slices: tuple[PublishedSlice, ...] | None = None
    refused: tuple[str, ...] = ()
    skew: int | None = None
    classes: tuple[Mapping[str, Any], ...] = ()
    class_problems: tuple[ClassProblem, ...] = ()
    driver_pod: str | None = None
    pods_unseen: str = ""
    left_out: str = ""
    daemonsets: tuple[str, ...] = ()


class Volume(msgspec.Struct, frozen=True):
    """A file system that the driver writes to.

    Attributes:
        path: the folder on it.
        use: what the driver writes there.
        free: bytes that may be written.
        size: all bytes.
        free_inodes: files that may be made; None where the file system does not count them.
    """

    path: str
    use: str
    free: int
    size: int
    free_inodes: int | None = None


class Affinity(msgspec.Struct, frozen=True):
    """A program of the node whose children inherit an affinity.

    Attributes:
        name: the program, as the kernel knows it.
        cpus: the CPUs on which it may run.
        missing: those on which its cgroup lets it run besides.
    """

    name: str
    cpus: CPUSet
    missing: CPUSet


class SystemFacts(msgspec.Struct, frozen=True):
    """The node's system. None, or an empty set, is what could not be seen or is not there.

    Attributes:
        volumes: the file systems that the driver writes to.
        cgroup_version: 1 or 2, of the hierarchy that has CPU sets.
        isolated: `isolcpus=`, as the kernel has it.
        nohz_full: `nohz_full=`, likewise.
        selinux: the label under which this runs, where SELinux is enforced.
        apparmor: the profile under which this runs, where one is enforced.
        variables: one sentence for each `DRANODE_` variable that is no option.
        conflicts: CDI devices that several files of equal priority define, with those files.
        affinities: programs that start containers, kubelet among them, with an affinity that leaves CPUs out.
        invalid_specs: CDI files that no runtime loads, each with the reason.
    """

    volumes: tuple[Volume, ...] = ()
    cgroup_version: int | None = None
    isolated: CPUSet = msgspec.field(default_factory=CPUSet)
    nohz_full: CPUSet = msgspec.field(default_factory=CPUSet)
    selinux: str = ""
    apparmor: str = ""
    variables: tuple[str, ...] = ()
    conflicts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    invalid_specs: tuple[tuple[str, str], ...] = ()
    affinities: tuple[Affinity, ...] = ()


class Facts(msgspec.Struct, frozen=True):
    """Everything that is known.

    Attributes:
        options: what the driver is configured to do.
        kubelet: its configuration.
        runtime: the container runtime's.
        node: folders, sockets and records.
        cluster: what the API server says.
        system: file systems, kernel, confinement, CDI files, variables.
        invalid_kubelet: why kubelet's configuration cannot be parsed; empty if it can, or was not seen.
        invalid_runtime: the same of the runtime's.
        unseen: one sentence for everything that could not be looked at.
    """

    options: ServeOptions
    kubelet: Kubelet | None = None
    runtime: RuntimeFacts | None = None
    node: NodeFacts | None = None
    cluster: ClusterFacts | None = None
    system: SystemFacts | None = None
    invalid_kubelet: str = ""
    invalid_runtime: str = ""
    unseen: tuple[str, ...] = ()
