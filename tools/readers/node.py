"""Reads the node's folders, sockets, registry of plug-ins and records."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import grpc
import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import DranodeError, LedgerError, MachineError
from dranode.cdi.regular_file import read_regular
from dranode.cdi.rules import validate
from dranode.driver.claims.answers import Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.hooks import Disturbance, Tunes
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Record, ledger_problems, prepared_devices
from dranode.driver.claims.users import names_every_pod, pods_among
from dranode.driver.kubelet.sockets import MAX_SOCKET_PATH, uri
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.presence import is_there
from dranode.driver.machine.root import Root
from dranode.driver.node.ledger import SCHEMA_WITH_LOSS, Contents, decoded_notes, newer_schema_error
from dranode.driver.node.specs import Specs
from dranode.driver.pinning.container_cgroups import is_pod_folder
from dranode.proto import dra_v1_pb2 as dra
from dranode.proto import pluginregistration_v1_pb2 as api
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from dranode.proto.pluginregistration_v1_pb2_grpc import RegistrationStub
from dranode.show.ledger_reading import read_ledger
from dranode.tools.diagnosis.facts import Endpoint, NodeFacts, PathState, Place, Records, ServeOptions
from dranode.tools.diagnosis.placement import ClaimVariables
from dranode.tools.readers.host import HostError, NodeHost
from dranode.tools.readers.processes import NO_KERNEL, ThreadSeen, pods_seen, shows_kernel, threads_seen_on

_UID_LENGTH: Final = 36
_REGISTRATION: Final = "-reg.sock"


def read_node(
    host: NodeHost, options: ServeOptions, plugins: Sequence[Plugin], pod_resources: str
) -> tuple[NodeFacts, list[str]]:
    """Return the facts about what the driver needs on the node, and sentences on what could not be read."""
    unseen: list[str] = []
    return NodeFacts(
        places=(*_folders(host, options, unseen), *_sockets(host, options, pod_resources, unseen)),
        endpoints=_endpoints(host, options, unseen),
        records=tuple(_records(host, options, plugins, unseen)),
        cpuset=_cpuset(host, unseen),
        socket_excess=_excess(options),
    ), unseen


def _folders(host: NodeHost, options: ServeOptions, unseen: list[str]) -> Iterator[Place]:
    root = options.kubelet_root.rstrip("/")
    uses = {
        f"{root}/plugins": "the ledger and the sockets that kubelet calls",
        f"{root}/plugins_registry": "registering the driver with kubelet",
        options.cdi_dir: "CDI specs",
    }
    is_root = os.geteuid() == 0
    if not is_root:
        unseen.append("whether the driver can write to its folders: this does not run as root")
    for path, use in uses.items():
        try:
            state = host.folder_state(path)
            if path == options.cdi_dir and state is PathState.MISSING:
                # The driver creates this folder itself, if it can.
                above = host.folder_state(str(PurePosixPath(path).parent))
                state = above if above in (PathState.THERE, PathState.UNUSABLE) else state
        except PermissionError:
            unseen.append(f"whether there is a folder {path}: permission denied; try as root")
            continue
        yield Place(path, PathState.THERE if not is_root and state is PathState.UNUSABLE else state, use)


def _sockets(host: NodeHost, options: ServeOptions, pod_resources: str, unseen: list[str]) -> Iterator[Place]:
    uses = {options.nri_socket: "NRI"} if options.nri_socket else {}
    uses[pod_resources] = "asking kubelet which container has which claim"
    for path, use in uses.items():
        try:
            yield Place(path, host.socket_state(path), use)
        except PermissionError:
            unseen.append(f"whether a process answers on {path}: permission denied; try as root")


def _endpoints(host: NodeHost, options: ServeOptions, unseen: list[str]) -> tuple[Endpoint, ...] | None:
    try:
        if host.folder_state(registry(options)) in (PathState.MISSING, PathState.WRONG):
            return None  # another rule reports this
        return tuple(read_endpoints(host, options))
    except PermissionError as error:
        place = error.filename or "a socket in it"
        unseen.append(f"which plug-ins are registered with kubelet: {place}: permission denied; try as root")
        return None
    except HostError as error:
        unseen.append(f"which plug-ins are registered with kubelet: {error}")
        return None


def registry(options: ServeOptions) -> str:
    """Return the folder of kubelet's registry of plug-ins on the node."""
    return f"{options.kubelet_root.rstrip('/')}/plugins_registry"


def read_endpoints(host: NodeHost, options: ServeOptions, clock: Callable[[], float] = time.time) -> Iterator[Endpoint]:
    """Yield the entries of kubelet's registry of plug-ins: DRA drivers that answer, and sockets without a server.

    Args:
        host: the node.
        options: the options of `serve`.
        clock: returns the time, in seconds since the epoch, to tell how old sockets are.

    Raises:
        PermissionError: this process may not list the registry, or connect to a socket in it.
        HostError: the registry cannot be listed for another reason.
    """
    folder = registry(options)
    for name in host.names(folder):
        if not name.endswith(".sock"):
            continue
        path = f"{folder}/{name}"
        place = host.place(path)
        answers = host.socket_state(path) is PathState.THERE
        # gRPC cannot connect to a path that is too long; then only the socket's name shows whose it is.
        peer = who_serves(place) if answers and len(os.fsencode(place)) <= MAX_SOCKET_PATH else None
        if peer is None:
            yield Endpoint(path, answers, _driver(name, options.drivers))
        elif peer.kind == "DRAPlugin":
            yield Endpoint(path, answers=True, driver=peer.name, endpoint=peer.endpoint, age=_age(place, clock))


def _age(place: Path, clock: Callable[[], float]) -> float | None:
    try:
        return max(0.0, clock() - place.stat().st_mtime)
    except OSError:
        return None


def _driver(name: str, drivers: Iterable[str]) -> str:
    """Return the driver in a socket's name: `<driver>-reg.sock` or `<driver>-<pod UID>-reg.sock`."""
    stem = name.removesuffix(_REGISTRATION)
    return next((driver for driver in drivers if stem == driver or stem.startswith(f"{driver}-")), stem)


def _records(host: NodeHost, options: ServeOptions, plugins: Sequence[Plugin], unseen: list[str]) -> Iterator[Records]:
    for plugin in plugins:
        path = f"{options.kubelet_root.rstrip('/')}/plugins/{plugin.driver}/ledger.db"
        specs = Specs(host.place(options.cdi_dir), plugin.claim_kind)
        if not _may_read(host.place(path)):
            unseen.append(f"the ledger {path}: permission denied; try as root")
            continue
        try:
            contents = read_ledger(host.place(path))
        except DranodeError as error:
            yield Records(plugin.driver, path, error=str(error))
            continue
        if contents.schema > SCHEMA_WITH_LOSS:
            yield Records(plugin.driver, path, error=newer_schema_error(host.place(path), contents.schema), newer=True)
            continue
        known = {record.uid for record in contents.records} | {row.uid for row in contents.damaged}
        written = _written(specs)
        if written is None:
            unseen.append(f"which claims have a CDI spec: {options.cdi_dir}: permission denied; try as root")
        yield Records(
            plugin.driver,
            path,
            ledger_problems=ledger_problems(contents.loss, contents.records, plugin.driver),
            damaged=tuple(f"with UID {row.uid}, {row.reason}" for row in contents.damaged),
            specs=tuple(
                (str(record.ref), f"{options.cdi_dir}/{specs.name(record.uid)}: {problem}")
                for record in contents.records
                if written is not None and (problem := spec_problem(specs, record))
            ),
            orphans=tuple(f"{options.cdi_dir}/{specs.path(uid).name}" for uid in sorted((written or set()) - known)),
            disturbances=read_disturbances(host.files, plugin, contents, unseen),
            unrestorable=read_unrestorable(plugin, contents),
        )


def spec_problem(specs: Specs, record: Record) -> str:
    """Return why a runtime would not find the claim's CDI devices; empty if it would, or if that cannot be seen."""
    if record.lost:
        return ""
    try:
        data = read_regular(specs.path(record.uid))
    except (FileNotFoundError, NotADirectoryError) as error:
        return f"it does not exist ({error.strerror}), so its containers fail with unresolvable CDI devices"
    except PermissionError:
        return ""
    except OSError as error:
        return f"no runtime can read it: {error.strerror}"
    verdict = validate(data)
    if verdict.problems:
        return f"no runtime loads it: {verdict.problems[0]}"
    spec = specs.read(record.uid)
    defined = {f"{spec.kind}={device.name}" for device in spec.devices} if spec is not None else set()
    missing = {cdi for device in prepared_devices(specs.kind, record, ()) for cdi in device.cdi} - defined
    return f"it lacks the devices {', '.join(sorted(missing))}" if missing else ""


def _may_read(ledger: Path) -> bool:
    try:
        return not is_there(ledger) or os.access(ledger, os.R_OK)
    except PermissionError:
        return False
    except OSError:
        return True  # reading it says what is wrong


def _written(specs: Specs) -> frozenset[str] | None:
    # Another rule reports it if the directory is a file.
    try:
        return specs.uids()
    except LedgerError:
        return None


def _cpuset(host: NodeHost, unseen: list[str]) -> bool | None:
    try:
        controllers = host.text_if_there("/sys/fs/cgroup/cgroup.controllers")
        if controllers is not None:
            return "cpuset" in controllers.split()
        return True if any(host.names(folder) for folder in Cgroups(host.files).cpuset[1:]) else None
    except PermissionError:
        unseen.append("whether the node has the cpuset controller: /sys/fs/cgroup: permission denied; try as root")
    except HostError as error:
        unseen.append(f"whether the node has the cpuset controller: {error}")
    return None


def _excess(options: ServeOptions) -> int:
    """Return how many bytes the longest socket path, which contains a pod's UID, is too long."""
    longest = max(options.drivers, key=len, default="")
    path = f"{options.kubelet_root.rstrip('/')}/plugins/{longest}/dra-{'0' * _UID_LENGTH}.sock"
    return max(0, len(os.fsencode(path)) - MAX_SOCKET_PATH)


def read_unrestorable(plugin: Plugin, contents: Contents) -> str:
    """Return why settings that the driver's claims have changed cannot be restored; empty if they can."""
    if not isinstance(plugin, Tunes):
        return ""
    try:
        return plugin.unrestorable(decoded_notes(contents))
    except LedgerError as error:
        return f"settings that claims have changed cannot be restored: {error}"


def read_disturbances(files: Root, plugin: Plugin, contents: Contents, unseen: list[str]) -> tuple[Disturbance, ...]:
    """Return what has disturbed the driver's claims; empty if the driver has tuned nothing.

    Args:
        files: the node's files.
        plugin: the driver.
        contents: its ledger.
        unseen: gets a sentence for everything that cannot be read.
    """
    if not isinstance(plugin, Tunes) or not contents.notes:
        return ()
    try:
        disturbances = tuple(plugin.disturbances(contents.records, decoded_notes(contents)))
    except LedgerError as error:
        unseen.append(f"what disturbed the quiet CPUs of {plugin.driver}'s claims: {error}")
        return ()
    unseen += [
        f"how often devices interrupted CPUs {disturbance.cpus}, which claim {disturbance.claim} wants quiet: the "
        "kernel does not count it for all of them (/proc/interrupts), or did not when the claim started"
        for disturbance in disturbances
        if disturbance.count is None
    ]
    owners = {record.uid: record for record in contents.records}
    try:
        if not disturbances or shows_kernel(files):
            return tuple(
                replace(disturbance, processes=_intruders(files, disturbance.cpus, owners[disturbance.claim.uid]))
                for disturbance in disturbances
            )
        unseen.append(f"which threads ran on CPUs that claims want quiet: {NO_KERNEL}; run this on the node itself")
    except MachineError as error:
        unseen.append(f"which threads ran on CPUs that claims want quiet: {error}")
    return disturbances


def _intruders(files: Root, cpus: CPUSet, owner: Record) -> tuple[str, ...]:
    """Return the processes of other owners whose threads ran last on a claim's CPUs, the busiest first."""
    seconds: dict[str, float] = {}
    own = _own_processes(files, owner)
    for thread in threads_seen_on(files, cpus):
        if thread.pid not in own and not _is_own(thread, owner):
            name = f"{thread.name} ({'kernel thread' if thread.kernel else 'process'} {thread.pid})"
            seconds[name] = seconds.get(name, 0.0) + thread.seconds
    return tuple(name for name, _ in sorted(seconds.items(), key=lambda pair: -pair[1]))


def _own_processes(files: Root, owner: Record) -> frozenset[int]:
    """Return the processes of containers with the claim if the record does not name all of its pods."""
    if names_every_pod(owner.pods):
        return frozenset()
    variables = ClaimVariables.of(owner)
    containers = pods_seen(files, None).containers
    return frozenset(pid for container in containers if variables.are_in(container.env) for pid in container.pids)


def _is_own(thread: ThreadSeen, owner: Record) -> bool:
    return any(is_pod_folder(part, pod.uid) for pod in pods_among(owner.pods) for part in thread.cgroup.split("/"))


_TIMEOUT: Final = 1.0
# kubelet's own timeout.
_UNPREPARE_SECONDS: Final = 45.0


class Registrant(msgspec.Struct, frozen=True):
    """A plug-in's answer to GetInfo.

    Attributes:
        kind: `DRAPlugin`, `CSIPlugin`, ...
        name: the driver's name.
        endpoint: the path of the socket on which it serves.
    """

    kind: str
    name: str
    endpoint: str


def who_serves(socket: Path) -> Registrant | None:
    """Return the plug-in that answers GetInfo (pluginregistration/v1) at a socket; None if none does within 1 s."""
    with grpc.insecure_channel(uri(socket)) as channel:
        try:
            info = RegistrationStub(channel).GetInfo(api.InfoRequest(), timeout=_TIMEOUT)
        except grpc.RpcError:
            return None
    return Registrant(info.type, info.name, info.endpoint)


def unprepare(endpoint: Path, refs: Iterable[ClaimRef]) -> dict[str, Refused | None]:
    """Have a driver unprepare claims (NodeUnprepareResources of `v1.DRAPlugin`), as kubelet would.

    Args:
        endpoint: the driver's DRA socket.
        refs: the claims.

    Returns:
        For each claim, by UID, None or why it is not unprepared. All claims are refused if the driver does not answer
        within 45 s, kubelet's timeout.
    """
    request = dra.NodeUnprepareResourcesRequest(
        claims=[dra.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]
    )
    with grpc.insecure_channel(uri(endpoint)) as channel:
        try:
            answers = DRAPluginStub(channel).NodeUnprepareResources(request, timeout=_UNPREPARE_SECONDS).claims
        except grpc.RpcError as error:
            failure = Refused(f"the driver at {endpoint} does not answer: {error.details() or error.code()}")
            return dict.fromkeys((claim.uid for claim in request.claims), failure)
    return {
        claim.uid: Refused(answers[claim.uid].error or "the driver did not answer for it")
        if claim.uid not in answers or answers[claim.uid].error
        else None
        for claim in request.claims
    }
