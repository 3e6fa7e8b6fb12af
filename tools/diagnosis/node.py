"""Rules about the node itself: kubelet, folders, sockets, the ledger."""

from collections.abc import Iterator
from typing import Final

from dranode.tools.diagnosis.facts import REWRITE_SPEC, Endpoint, Facts, Fault, Kubelet, PathState, Place, Records
from dranode.tools.diagnosis.runtime import plain_path

# Feature gates of kubelet that the driver needs, with what happens without them; on by default.
_GATES: Final = {
    "DynamicResourceAllocation": "no pod with a claim starts",
    "KubeletPodResourcesDynamicResources": "it is unknown which container has which claim",
}


# In a rolling update, the old instance ends within seconds after the new one is ready. Pulling the image may take
# longer, but the new instance creates its socket only after that.
_UPDATE_SECONDS: Final = 600.0
_TWO_STAY: Final = (
    "an update would be over by now: check with kubectl get daemonsets -A whether two run the driver, and delete one; "
    "if it is an update, the new pod's log says why it does not become ready"
)


def options_refused(facts: Facts) -> Iterator[Fault]:
    """The driver would not start with its options on this machine."""
    for sentence in facts.options.refusals:
        yield Fault(sentence, "change the option; `dranode machine show` shows what this machine has")


def hardware_unread(facts: Facts) -> Iterator[Fault]:
    """A driver cannot read the machine, so it is not ready and prepares no claims."""
    for sentence in facts.options.unread:
        yield Fault(
            sentence,
            "fix it on the machine, or check whether /sys and /proc are completely mounted into the driver's pod; the "
            "driver tries again every second",
        )


def _configured(kubelet: Kubelet) -> str:
    """Return where to change kubelet's configuration."""
    return kubelet.config or (
        "kubelet's configuration (k3s: kubelet-arg in /etc/rancher/k3s/config.yaml; MicroK8s: "
        "/var/snap/microk8s/current/args/kubelet)"
    )


def cpu_manager_static(facts: Facts) -> Iterator[Fault]:
    """Kubelet's CPU manager and the driver would set the same cgroups."""
    kubelet = facts.kubelet
    if kubelet is not None and facts.options.pinning_cpus and kubelet.cpu_manager == "static":
        yield Fault(
            f"kubelet's CPU manager has the policy static ({kubelet.cpu_manager_place}), and hands out the same CPUs "
            "as this driver",
            f"set cpuManagerPolicy: none in {_configured(kubelet)}, drain the node, remove "
            f"{kubelet.root}/cpu_manager_state and restart kubelet",
        )


def kubelet_root_differs(facts: Facts) -> Iterator[Fault]:
    """Kubelet looks for plug-ins in another folder than the one where the driver puts its sockets."""
    kubelet, root = facts.kubelet, facts.options.kubelet_root
    if kubelet is not None and plain_path(kubelet.root) != plain_path(root):
        yield Fault(
            f"kubelet's root is {kubelet.root}, but the driver's --kubelet-root is {root}, so neither finds the other",
            f"pass --kubelet-root {kubelet.root} and mount its folders",
        )


def kubelet_gate_off(facts: Facts) -> Iterator[Fault]:
    """A feature gate that is on by default was turned off."""
    kubelet = facts.kubelet
    for gate, effect in _GATES.items() if kubelet is not None else ():
        if kubelet is not None and kubelet.gates.get(gate) is False:
            yield Fault(
                f"kubelet's feature gate {gate} is off, so {effect}",
                f"remove it from featureGates in {kubelet.config} and restart kubelet",
            )


def hardware_odd(facts: Facts) -> Iterator[Fault]:
    """A driver logs a warning about the machine: devices may be missing, or published with less than they have."""
    for sentence in facts.options.oddities:
        yield Fault(
            sentence,
            "if this is not intended, fix it on the machine, or mount all of /sys, /proc and /dev into the driver's "
            "pod; its log says the same",
        )


def config_invalid(facts: Facts) -> Iterator[Fault]:
    """Kubelet cannot parse its configuration, so it does not start again."""
    if facts.invalid_kubelet:
        yield Fault(facts.invalid_kubelet, "correct the file, because kubelet cannot restart with it")


def memory_manager_static(facts: Facts) -> Iterator[Fault]:
    """Kubelet's memory manager binds containers to NUMA nodes without considering their claims."""
    kubelet = facts.kubelet
    if kubelet is not None and facts.options.pinning and kubelet.memory_manager == "Static":
        yield Fault(
            f"kubelet's memory manager has the policy Static ({kubelet.memory_manager_place}), and binds the memory of "
            "Guaranteed pods to NUMA nodes without considering their claims",
            f"set memoryManagerPolicy: None in {_configured(kubelet)}, drain the node, remove "
            f"{kubelet.root}/memory_manager_state and restart kubelet",
        )


def topology_manager_strict(facts: Facts) -> Iterator[Fault]:
    """Kubelet's topology manager rejects pods without considering their claims."""
    kubelet = facts.kubelet
    if kubelet is not None and kubelet.topology_manager in ("restricted", "single-numa-node"):
        yield Fault(
            f"kubelet's topology manager has the policy {kubelet.topology_manager} ({kubelet.config}), and rejects "
            "pods because of NUMA nodes that kube-scheduler chose for their claims",
            f"set topologyManagerPolicy: none or best-effort in {kubelet.config} and restart kubelet",
        )


def reserved_differ(facts: Facts) -> Iterator[Fault]:
    """Kubelet and the driver reserve different CPUs for the system."""
    kubelet, reserved, flag = facts.kubelet, facts.options.reserved, facts.options.reserving
    if kubelet is None or not facts.options.pinning_cpus or not kubelet.reserved or kubelet.reserved == reserved:
        return
    yield Fault(
        f"kubelet reserves the CPUs {kubelet.reserved} for the system ({kubelet.config}), but the driver reserves "
        f"{reserved or 'none'}{f' ({flag})' if flag else ''}",
        f"pass {flag} {kubelet.reserved}" if flag else f"configure the driver to reserve {kubelet.reserved}",
    )


def no_reserved(facts: Facts) -> Iterator[Fault]:
    """Claims may take every CPU except one."""
    kubelet, flag = facts.kubelet, facts.options.reserving
    if facts.options.pinning_cpus and not facts.options.reserved and not (kubelet is not None and kubelet.reserved):
        yield Fault(
            "no CPU is reserved, so the system and containers without claims may be left with a single CPU; only a "
            "claim that would take this CPU too is refused",
            f"{f'pass {flag}' if flag else 'configure the driver to reserve some'}, with two CPUs or more on a server",
        )


def _places(facts: Facts, state: PathState) -> Iterator[Place]:
    places = facts.node.places if facts.node is not None else ()
    for place in places:
        if place.state is state and (facts.options.pinning or place.use != "NRI"):
            yield place


def _unenforced(place: Place) -> str:
    return ": claims are not enforced, and none is prepared" if place.use == "NRI" else ""


def place_missing(facts: Facts) -> Iterator[Fault]:
    """A folder or a socket is missing."""
    for place in _places(facts, PathState.MISSING):
        if place.path.endswith(".sock"):
            server = "NRI is on in the runtime" if place.use == "NRI" else "kubelet runs"
            yield Fault(
                f"the socket {place.path} ({place.use}) does not exist{_unenforced(place)}",
                f"check that {server}, and that the socket's folder is mounted into the driver's pod",
            )
        else:
            yield Fault(
                f"the folder {place.path} ({place.use}) does not exist",
                "mount it into the driver's pod as deploy/daemonset.yaml does, or correct the option",
            )


def place_wrong(facts: Facts) -> Iterator[Fault]:
    """Something else is where a folder or a socket should be."""
    for place in _places(facts, PathState.WRONG):
        kind = "socket" if place.path.endswith(".sock") else "folder"
        yield Fault(
            f"{place.path} ({place.use}) is not a {kind}",
            f"remove it; a hostPath that was mounted before the {kind} existed may have created it",
        )


def place_unusable(facts: Facts) -> Iterator[Fault]:
    """A folder cannot be written, or no process answers on a socket."""
    for place in _places(facts, PathState.UNUSABLE):
        if place.path.endswith(".sock"):
            yield Fault(
                f"no process answers on the socket {place.path} ({place.use}){_unenforced(place)}",
                "mount the folder instead of the socket, because a restart creates a new socket; otherwise start the "
                "program that serves it",
            )
        else:
            yield Fault(
                f"the folder {place.path} ({place.use}) is not writable",
                "run as root, mount it without readOnly, and with SELinux use deploy/components/crio",
            )


def socket_path_too_long(facts: Facts) -> Iterator[Fault]:
    """Kubelet's root is too long for the paths of Unix sockets."""
    excess = facts.node.socket_excess if facts.node is not None else 0
    if excess > 0:
        yield Fault(
            f"the sockets under {facts.options.kubelet_root} have paths of {107 + excess} bytes, but a Unix socket's "
            "path may have at most 107",
            "choose a kubelet root with a shorter path",
        )


def no_cpuset_controller(facts: Facts) -> Iterator[Fault]:
    """The kernel cannot pin containers: no cgroup hierarchy has the cpuset controller."""
    if facts.node is not None and facts.node.cpuset is False and facts.options.pinning:
        yield Fault(
            "the kernel's cgroups have no cpuset controller here, so no container can be pinned",
            "delegate it: rootless and nested clusters need Delegate=cpuset for the user's service",
        )


def _endpoints(facts: Facts, driver: str) -> list[Endpoint]:
    endpoints = facts.node.endpoints if facts.node is not None else None
    return [endpoint for endpoint in endpoints or () if endpoint.driver == driver]


def stale_sockets(facts: Facts) -> Iterator[Fault]:
    """No process serves a registration socket, and kubelet keeps trying it."""
    for driver in facts.options.drivers:
        for endpoint in _endpoints(facts, driver):
            if not endpoint.answers:
                yield Fault(
                    f"no process serves the registration socket {endpoint.path}", f"remove it: rm {endpoint.path}"
                )


def second_driver(facts: Facts) -> Iterator[Fault]:
    """Two drivers have the same name and are not two instances of a rolling update."""
    for driver in facts.options.drivers:
        answering = [endpoint for endpoint in _endpoints(facts, driver) if endpoint.answers]
        # Without a pod's UID in its name, the socket is not one of a rolling update.
        single = [endpoint for endpoint in answering if endpoint.path.endswith(f"/{driver}-reg.sock")]
        both_stay = all(endpoint.age is not None and endpoint.age > _UPDATE_SECONDS for endpoint in answering)
        if len(answering) > 1 and (single or len(answering) > 2 or both_stay):  # noqa: PLR2004 - an update has two
            paths = ", ".join(endpoint.path for endpoint in answering)
            yield Fault(
                f"{len(answering)} drivers serve {driver} on this node: {paths}",
                _TWO_STAY if both_stay else "stop all but one; dra-driver-cpu and dranode cannot run side by side",
            )


def foreign_endpoint(facts: Facts) -> Iterator[Fault]:
    """The process that serves the driver's name belongs to another installation."""
    for driver in facts.options.drivers:
        folder = f"{plain_path(facts.options.kubelet_root)}/plugins/{driver}/"
        for endpoint in _endpoints(facts, driver):
            if endpoint.answers and endpoint.endpoint and not plain_path(endpoint.endpoint).startswith(folder):
                yield Fault(
                    f"{driver} at {endpoint.path} serves claims at {endpoint.endpoint}, outside {folder}",
                    "stop that driver, or pass the --kubelet-root that it uses",
                )


def not_serving(facts: Facts) -> Iterator[Fault]:
    """No process serves the driver."""
    for driver in facts.options.drivers if facts.node is not None and facts.node.endpoints is not None else ():
        if not any(endpoint.answers for endpoint in _endpoints(facts, driver)):
            yield Fault(
                f"{driver} does not run on this node now, so pods with its claims wait",
                "start it: kubectl apply -k deploy/, and check that the DaemonSet's pod runs here",
            )


def _records(facts: Facts) -> tuple[Records, ...]:
    return facts.node.records if facts.node is not None else ()


def ledger_unusable(facts: Facts) -> Iterator[Fault]:
    """The ledger cannot be read."""
    for ledger in _records(facts):
        if ledger.error and not ledger.newer:
            yield Fault(
                ledger.error,
                f"check the file system under {ledger.path}; do not delete the ledger: it says who holds which CPUs",
            )


def ledger_newer(facts: Facts) -> Iterator[Fault]:
    """A newer dranode wrote the ledger, so this one does not use it."""
    for ledger in _records(facts):
        if ledger.newer:
            what, _, fix = ledger.error.partition("; ")
            yield Fault(what, fix)


def records_missing(facts: Facts) -> Iterator[Fault]:
    """Claims may hold devices without a record, so no new claim is prepared."""
    for record in _records(facts):
        for sentence in record.ledger_problems:
            reason, _, remedy = sentence.partition("; ")
            yield Fault(f"{record.driver}: {reason}", remedy)


def record_quarantined(facts: Facts) -> Iterator[Fault]:
    """A row of the ledger is damaged; its claim keeps its devices."""
    for ledger in _records(facts):
        for damaged in ledger.damaged:
            yield Fault(
                f"a record of {ledger.driver} is quarantined: claim {damaged}",
                "delete the pods that use the claim, so that it is unprepared and allocated again",
            )


def cdi_spec_missing(facts: Facts) -> Iterator[Fault]:
    """A claim is on record, but a runtime finds no CDI spec with its devices."""
    for ledger in _records(facts):
        for claim, problem in ledger.specs:
            yield Fault(f"claim {claim} is prepared by {ledger.driver}, but its CDI spec {problem}", REWRITE_SPEC)


def cdi_spec_left_over(facts: Facts) -> Iterator[Fault]:
    """The driver has a CDI spec of a claim that is not on record."""
    for ledger in _records(facts):
        for path in ledger.orphans:
            yield Fault(
                f"{path} is a CDI spec of {ledger.driver} for a claim that is not on record",
                "leave it if a pod uses the claim: the driver takes it over; otherwise dranode drain removes it",
            )
