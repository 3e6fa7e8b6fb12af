"""The facts about a node that `dranode doctor` checks, and the faults that it finds.

`dranode.tools.readers` reads the facts, and the rules of `dranode.tools.diagnosis.rules` judge them. A group of facts
that could not be read is None, and `Facts.unseen` says why. What was not seen is not judged.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Any, Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.hooks import Disturbance, HardwareProblem

REWRITE_SPEC: Final = (
    "restart the driver: it writes the spec again from its record; remove a folder or a link in its place first"
)


class Severity(StrEnum):
    """The severity of a finding: claims fail or CPUs are shared (`stops`), or the driver works badly (`warns`)."""

    STOPS = "stops"
    WARNS = "warns"


class Fault(msgspec.Struct, frozen=True):
    """A fault that a rule has found.

    Attributes:
        what: what is wrong, with value and place, in one sentence without a period.
        fix: what to do, in the same form.
        severity: how bad it is; None for the severity of its rule.
    """

    what: str
    fix: str
    severity: Severity | None = None


class Finding(msgspec.Struct, frozen=True):
    """A fault with the code of its rule.

    Attributes:
        code: a stable name.
        severity: how bad it is.
        fault: what is wrong and what to do.
    """

    code: str
    severity: Severity
    fault: Fault


class ServeOptions(msgspec.Struct, frozen=True):
    """The options that `serve` runs with, and what the drivers say about the machine.

    Attributes:
        node: the node's name.
        drivers: the names of the drivers.
        pinning: the drivers that pin containers, which needs NRI.
        pinning_cpus: the drivers that pin containers to CPUs.
        shares: whether a driver publishes devices that several claims can share.
        unshared: the options that prevent this, such as `--lamps-sharing off`; empty if there are none.
        gated: the feature gate of every other option that is on and whose fields a server may drop, by option.
        reserved: the CPUs that no claim gets.
        reserving: the flag that reserves them; empty if no driver has one.
        kubelet_root: `--kubelet-root`.
        cdi_dir: `--cdi-dir`.
        nri_socket: `--nri-socket`; empty for none.
        refusals: why a driver would not start with these options on this machine, one sentence for each.
        unread: why a driver cannot read this machine, one sentence for each.
        problems: what the drivers report about the machine.
        oddities: what the drivers would log about the machine: what is odd or could not be read, in one sentence each.
        holding_pages: the drivers that limit containers' huge pages on this machine.
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
        config: the file that it was read from; empty if only the managers' state files could be read. Then only the
            policies whose place is set are known.
        root: `--root-dir`.
        cpu_manager: the CPU manager's policy.
        cpu_manager_place: the file that says so.
        reserved: the CPUs that kubelet reserves for the system.
        gates: the feature gates that are set.
        memory_manager: the memory manager's policy.
        memory_manager_place: the file that says so.
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
    """The container runtime's configuration, with its version's defaults.

    Attributes:
        name: `containerd` or `CRI-O`.
        version: major, minor, and the patch release if known; None if unknown.
        config: the file that it was read from; empty if it could not be read, and then only name and version are valid.
        nri: whether NRI is on; None if unknown.
        nri_disabled: NRI's name in disabled_plugins; empty if it is not there.
        cri_disabled: CRI's name in disabled_plugins; empty if it is not there.
        connections: whether NRI accepts plug-ins on its socket.
        nri_socket: the path of this socket.
        request_timeout: how many seconds the runtime waits for a plug-in.
        cdi: whether CDI is on; None if unknown.
        cdi_dirs: the directories of CDI specs.
        validator: whether NRI's default validator is on.
        required: the NRI plug-ins without which it rejects every container.
        tolerance: the annotation of pods that do not need the required plug-ins; empty if there is none.
        launched: the NRI plug-ins that the runtime starts itself.
        hugetlb: whether it limits containers' huge pages.
    """

    name: str
    config: str
    version: tuple[int, ...] | None = None
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
    """The state of a folder or a socket."""

    THERE = "there"
    MISSING = "missing"
    WRONG = "wrong"  # a file of another type
    UNUSABLE = "unusable"  # a folder that cannot be written to, or a socket on which no process answers


class Place(msgspec.Struct, frozen=True):
    """A folder or a socket that the driver needs.

    Attributes:
        path: its path.
        state: its state.
        use: what the driver needs it for.
    """

    path: str
    state: PathState
    use: str


class Endpoint(msgspec.Struct, frozen=True):
    """A socket in kubelet's registry of plug-ins.

    Attributes:
        path: the registration socket.
        answers: whether a process answers on it.
        driver: the name that the driver reports; the one in the file's name if no process answers.
        endpoint: the driver's DRA socket.
        age: how many seconds the socket has existed; None if unknown.
    """

    path: str
    answers: bool
    driver: str
    endpoint: str = ""
    age: float | None = None


class Records(msgspec.Struct, frozen=True):
    """A driver's ledger and CDI specs.

    Attributes:
        driver: the driver.
        path: the ledger.
        error: why the ledger cannot be used; empty if it can.
        newer: whether that is because a newer dranode wrote it.
        ledger_problems: why the driver prepares no new claims although it can read the ledger, with what to do.
        damaged: the quarantined rows, each with the reason.
        specs: the claims on record whose CDI spec is missing or of no use, each with the file and the reason.
        orphans: the CDI specs of this driver without a record.
        disturbances: what has disturbed the claims that want quiet CPUs.
        unrestorable: why settings of the machine that claims have changed cannot be restored; empty if they can.
    """

    driver: str
    path: str
    error: str = ""
    newer: bool = False
    ledger_problems: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    specs: tuple[tuple[str, str], ...] = ()
    orphans: tuple[str, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()
    unrestorable: str = ""


class NodeFacts(msgspec.Struct, frozen=True):
    """The node's folders, sockets and records.

    Attributes:
        places: the folders and sockets that the driver needs.
        endpoints: the sockets in kubelet's registry; None if they could not be read.
        records: the ledger and CDI specs of each driver.
        cpuset: whether the kernel's cgroups have the cpuset controller; None if no cgroups are visible.
        socket_excess: how many bytes the longest socket path is too long; 0 if it fits.
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

    INVALID = auto()  # an API server would reject a selector
    FAILS = auto()  # a selector fails on a device
    SELECTS_NOTHING = auto()
    CONFIG = auto()  # the driver refuses its configuration
    SAME_RESOURCE = auto()  # another class has the same extended resource


class ClassProblem(msgspec.Struct, frozen=True):
    """A fault of a DeviceClass.

    Attributes:
        name: the class, or several joined by `and`.
        trouble: the kind of fault.
        what: the error, the expression, or the extended resource.
    """

    name: str
    trouble: ClassTrouble
    what: str


class ClusterFacts(msgspec.Struct, frozen=True):
    """The facts from the API server. A fact that could not be read is None.

    Attributes:
        versions: the versions of `resource.k8s.io` that it offers.
        denied: the rights that the account lacks.
        account: the driver's service account, `<namespace>:<name>`; empty if this runs with that account itself.
        dropped: the feature gates whose fields the server drops.
        missing_classes: the drivers' DeviceClasses that do not exist.
        node: whether there is a Node of this name.
        kubelet: kubelet's version: major, minor, and the patch release if known.
        extended: the extended resources that device plugins on the node offer.
        slices: the drivers' slices on this node.
        refused: a sentence for each request that was rejected or not answered.
        skew: how many whole seconds the server's clock is ahead of this one; negative if it is behind.
        classes: the DeviceClasses that could be read, as plain documents.
        class_problems: what is wrong with them.
        driver_pod: why the driver's pod on the node is missing or does not serve; empty if it serves.
        pods_unseen: why the driver's pods could not be listed; empty if they could.
        left_out: why every DaemonSet of the driver leaves the node out; empty if one selects it, or if unknown.
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
        free: how many bytes are free.
        size: how many bytes it has.
        free_inodes: how many files can be created; None if the file system does not count them.
    """

    path: str
    use: str
    free: int
    size: int
    free_inodes: int | None = None


class Affinity(msgspec.Struct, frozen=True):
    """A program of the node with a CPU affinity, which its children inherit.

    Attributes:
        name: the program's name in the kernel.
        cpus: the CPUs on which it may run.
        missing: the other CPUs of its cgroup.
    """

    name: str
    cpus: CPUSet
    missing: CPUSet


class SystemFacts(msgspec.Struct, frozen=True):
    """The node's system. None, or an empty value, means unknown or not there.

    Attributes:
        volumes: the file systems that the driver writes to.
        cgroup_version: 1 or 2, the version of the hierarchy with CPU sets.
        isolated: the CPUs of `isolcpus=`.
        nohz_full: the CPUs of `nohz_full=`.
        selinux: this process's label if SELinux is enforced.
        apparmor: this process's profile if AppArmor enforces one.
        variables: a sentence for each `DRANODE_` variable that is not an option.
        conflicts: the CDI devices that several files of equal priority define, with those files.
        affinities: kubelet and the programs that start containers, if their CPU affinity excludes CPUs.
        invalid_specs: the CDI files that no runtime loads, each with the reason.
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
    """All facts about a node.

    Attributes:
        options: the driver's options.
        kubelet: kubelet's configuration.
        runtime: the container runtime's configuration.
        node: folders, sockets and records.
        cluster: the facts from the API server.
        system: file systems, kernel, confinement, CDI files, variables.
        invalid_kubelet: why kubelet's configuration cannot be parsed; empty if it can, or if it was not read.
        invalid_runtime: why the runtime's configuration cannot be parsed; empty if it can, or if it was not read.
        unseen: a sentence for everything that could not be read.
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
