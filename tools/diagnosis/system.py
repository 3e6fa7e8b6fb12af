"""Rules about the node's system: file systems, kernel, confinement, CDI files, variables, quiet CPUs."""

from collections.abc import Iterator, Sequence
from typing import Final

from dranode.driver.claims.hooks import Disturbance
from dranode.tools.diagnosis.facts import Facts, Fault, Severity, SystemFacts

_MIB: Final = 1 << 20
# A ledger, its journal and a few thousand CDI specs need less.
_ENOUGH: Final = 64 * _MIB
_LEAST: Final = _MIB
_ENOUGH_INODES: Final = 1000
# The SELinux label and the AppArmor profiles that runtimes give to unprivileged containers.
CONFINED: Final = ":container_t:"
_DEFAULT_PROFILES: Final = ("cri-containerd.apparmor.d", "crio-default", "docker-default", "unconfined")
# An interrupt that was pending when it was moved fires once more on its old CPU.
_LATE: Final = 1
_MOST_NAMED: Final = 5


def _system(facts: Facts) -> SystemFacts:
    return facts.system if facts.system is not None else SystemFacts()


def disk_full(facts: Facts) -> Iterator[Fault]:
    """A file system that the driver writes to is full, so no claim is prepared."""
    for volume in _system(facts).volumes:
        if volume.free < _LEAST or volume.free_inodes == 0:
            resource = "inode" if volume.free_inodes == 0 else "space"
            yield Fault(
                f"the file system of {volume.path} ({volume.use}) has no {resource} left",
                "free some; df and df -i show the usage, and the driver continues by itself",
            )


def disk_low(facts: Facts) -> Iterator[Fault]:
    """A file system that the driver writes to will soon be full."""
    for volume in _system(facts).volumes:
        low = volume.free < _ENOUGH or (volume.free_inodes is not None and volume.free_inodes < _ENOUGH_INODES)
        if low and volume.free >= _LEAST and volume.free_inodes != 0:
            inodes = "" if volume.free_inodes is None else f" and {volume.free_inodes} inodes"
            yield Fault(
                f"the file system of {volume.path} ({volume.use}) has only {volume.free // _MIB} MiB{inodes} left",
                "free some before claims can no longer be prepared",
            )


def cgroup_v1(facts: Facts) -> Iterator[Fault]:
    """The node has cgroup v1, which kubelet 1.35 and newer only accepts if it is configured to."""
    if _system(facts).cgroup_version == 1 and facts.options.pinning:
        yield Fault(
            "the node has cgroup v1, with which kubelet 1.35 and newer does not start unless failCgroupV1 is false",
            "boot with systemd.unified_cgroup_hierarchy=1, as current distributions do",
        )


def confined(facts: Facts) -> Iterator[Fault]:
    """SELinux or AppArmor denies the driver access to sockets and folders of the node."""
    system = _system(facts)
    if CONFINED in system.selinux:
        yield Fault(
            f"SELinux is enforced, and this runs as {system.selinux}, so it may not use the node's sockets and folders",
            "use deploy/components/crio, which gives the driver's pod the type spc_t",
        )
    profile = system.apparmor.partition(" ")[0]
    if profile and profile not in _DEFAULT_PROFILES:
        yield Fault(
            f"AppArmor enforces the profile {profile} here, which may block sockets and folders of the node",
            "remove the profile from the pod, or check with journalctl -k | grep apparmor what it denies",
        )


def isolated_reserved(facts: Facts) -> Iterator[Fault]:
    """CPUs that are reserved for the system are isolated, so the kernel does not spread processes over them."""
    both = _system(facts).isolated & facts.options.reserved
    if both and facts.options.pinning_cpus:
        yield Fault(
            f"the CPUs {both} are reserved for the system and isolated (isolcpus), so the kernel does not spread its "
            "processes over them",
            f"take {both} out of isolcpus, or reserve other CPUs",
        )


def affinity_inherited(facts: Facts) -> Iterator[Fault]:
    """The runtime or kubelet has a CPU affinity. Containers inherit it and cannot use all of their claims' CPUs."""
    for program in _system(facts).affinities if facts.options.pinning_cpus else ():
        yield Fault(
            f"{program.name} has a CPU affinity to {program.cpus} only. Unless the runtime resets it, as runc 1.2.7, "
            "1.3.1 and newer do, containers inherit it and never use the CPUs "
            f"{program.missing}, whatever their claims say",
            f"remove CPUAffinity= from its unit and from /etc/systemd/system.conf (AllowedCPUs= of system.slice keeps "
            f"services off CPUs and is not inherited by pods), restart {program.name}, and recreate the pods",
        )


def nohz_shared(facts: Facts) -> Iterator[Fault]:
    """CPUs without a tick are not isolated, so containers without claims share them."""
    system = _system(facts)
    shared = system.nohz_full - system.isolated - facts.options.reserved
    if shared and facts.options.pinning_cpus:
        yield Fault(
            f"the CPUs {shared} have nohz_full but are not isolated, so containers without claims run there and bring "
            "the tick back",
            f"add isolcpus=managed_irq,domain,{shared} to the kernel's command line, or leave nohz_full out",
        )


def unknown_variable(facts: Facts) -> Iterator[Fault]:
    """A misspelled variable would leave its option at the default, so the driver refuses to start with it."""
    for sentence in _system(facts).variables:
        what, _, hint = sentence.partition(": ")
        yield Fault(what, hint or "correct it in the DaemonSet, or remove it")


def cdi_conflict(facts: Facts) -> Iterator[Fault]:
    """Two CDI files define one device, so a runtime resolves neither. For another vendor's device this only warns."""
    for device, files in _system(facts).conflicts:
        kind = device.partition("=")[0]
        ours = kind in facts.options.cdi_kinds or kind.partition("/")[0] in facts.options.drivers
        yield Fault(
            f"the CDI device {device} is defined by {' and '.join(files)}, so runtimes accept neither",
            "remove the stale file, or let one of the two drivers use another kind",
            None if ours else Severity.WARNS,
        )


def cdi_invalid(facts: Facts) -> Iterator[Fault]:
    """No runtime loads a CDI file: its devices are missing, and every runtime logs an error at each refresh."""
    for file, reason in _system(facts).invalid_specs:
        yield Fault(
            f"no runtime loads the CDI spec {file}: {reason}",
            "have its owner write it again, or remove it; dranode cdi validate lists everything that is wrong",
        )


def interrupted(facts: Facts) -> Iterator[Fault]:
    """Devices have interrupted CPUs since a claim that wants them quiet was prepared."""
    for disturbance in _disturbances(facts):
        often = sorted((-count, name) for name, count in (disturbance.interrupts or {}).items() if count > _LATE)
        if often:
            yield Fault(
                f"claim {disturbance.claim} wants CPUs {disturbance.cpus} quiet, but devices have interrupted them "
                f"since it started: {_listed([f'{name} ({-count} times)' for count, name in often])}",
                "the driver's log says which interrupts the kernel refuses to move, and why; keep interrupts that the "
                f"kernel manages away with isolcpus=managed_irq,domain,{disturbance.cpus} on its command line",
            )


def shared_with_processes(facts: Facts) -> Iterator[Fault]:
    """Threads other than the claim's have run on CPUs that it wants quiet."""
    for disturbance in _disturbances(facts):
        if disturbance.processes:
            yield Fault(
                f"claim {disturbance.claim} wants CPUs {disturbance.cpus} quiet, but threads without that claim were "
                f"the last to run there: {_listed(disturbance.processes)}",
                "keep processes away with AllowedCPUs= of their systemd units or an affinity (taskset), and kernel "
                f"threads with isolcpus={disturbance.cpus} on the kernel's command line; dranode claims --verify shows "
                "how long others ran",
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def settings_lost(facts: Facts) -> Iterator[Fault]:
    """Settings of the machine that claims have changed cannot be restored."""
    for records in facts.node.records if facts.node is not None else ():
        if records.unrestorable:
            yield Fault(
                f"{records.driver}: {records.unrestorable}",
                "reboot the node when none of these claims is in use there any more",
            )


def _disturbances(facts: Facts) -> Iterator[Disturbance]:
    for records in facts.node.records if facts.node is not None else ():
        yield from records.disturbances
