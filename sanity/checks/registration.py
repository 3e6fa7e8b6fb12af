"""Checks on how a driver meets kubelet: `pluginregistration.Registration` and the services that it advertises."""

import stat
from pathlib import Path
from typing import Final

from dranode.api.names import is_dns_subdomain
from dranode.api.slice_validation import DRIVER_NAME
from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach, Unable, expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.kubelet import DRA_SERVICES, HEALTH_SERVICES, NOTIFY_SECONDS, DriverCallError, DriverInfo

_PROTO: Final = "k8s.io/kubelet/pkg/apis/pluginregistration/v1/api.proto"
_MANAGER: Final = "kubelet, pkg/kubelet/cm/dra/plugin (registration of DRA plugins)"
_WATCHER: Final = "kubelet, pkg/kubelet/pluginmanager"
# How long a driver may take to end, or to be there again.
_AGAIN_SECONDS: Final = 30.0
_SOCKET_BYTES: Final = 107
_UNKNOWN_METHOD: Final = "/sanity.example.com.NoService/NoMethod"


def _info(bench: Bench) -> DriverInfo:
    with bench.registrar() as client:
        return client.get_info()


@must("registration-get-info", f"{_WATCHER}: the deadline of GetInfo")
def get_info_in_time(bench: Bench) -> None:
    """GetInfo is answered within 1 s.

    Uses kubelet's time limit for the registration socket.
    """
    errors = []
    for socket in bench.listed_sockets():
        with bench.registrar(socket) as client:
            try:
                client.get_info()
            except DriverCallError as error:
                errors.append(f"GetInfo at {socket} failed: {error}")
            else:
                return
    if not errors:
        bench.registration_socket()
    raise Breach("; ".join(errors), "answer GetInfo at once, from memory")


@must("registration-type", f"{_PROTO}, PluginInfo.type; {_MANAGER}")
def type_is_dra(bench: Bench) -> None:
    """GetInfo returns the type "DRAPlugin".

    kubelet finds the handler by this word.
    """
    info = _info(bench)
    expect(info.type == "DRAPlugin", f'the type is "{info.type}"', 'answer `type: "DRAPlugin"`')


@must("registration-name", "KEP-4381; resource.k8s.io/v1 types.go, ResourceSliceSpec.driver")
def name_is_valid(bench: Bench) -> None:
    """The name is the driver's: a DNS subdomain of at most 63 characters, the same as in its slices and allocations.

    The name has to be valid in slices.
    """
    name = _info(bench).name
    expect(
        is_dns_subdomain(name, DRIVER_NAME),
        f'the name "{name}" is not a DNS subdomain of at most {DRIVER_NAME} characters',
        "register under the driver name of the slices",
    )


@must("registration-endpoint", f"{_PROTO}, PluginInfo.endpoint; unix(7), sun_path")
def endpoint_is_a_socket(bench: Bench) -> None:
    """The endpoint is the absolute path of a socket with at most 107 bytes; without one it is the registration socket.

    kubelet has to be able to dial the path.
    """
    endpoint = _info(bench).endpoint
    if not endpoint:
        return
    path = Path(endpoint)
    expect(path.is_absolute(), f'the endpoint "{endpoint}" is not absolute', "return a path, without `unix:`")
    size = len(endpoint.encode())
    expect(size <= _SOCKET_BYTES, f"the endpoint has {size} bytes", "choose a shorter data folder or socket name")
    expect(
        path.is_socket(), f"the endpoint {endpoint} is not a socket", "listen before the registration socket appears"
    )


@must("registration-versions", f"{_MANAGER}: a plugin with none of kubelet's services is refused")
def versions_are_known(bench: Bench) -> None:
    """supported_versions has at least one of v1.DRAPlugin and v1beta1.DRAPlugin.

    kubelet has to know the service.
    """
    versions = _info(bench).versions
    expect(
        set(versions) & set(DRA_SERVICES),
        f"supported_versions is {listed(versions)}",
        "list v1.DRAPlugin, and v1beta1.DRAPlugin for kubelet 1.32 and 1.33",
    )


@should("registration-versions-order", f"{_MANAGER}: kubelet takes the first of the plugin's list that it knows")
def versions_are_in_order(bench: Bench) -> None:
    """Newer services come before older ones.

    The newest has to be the first.
    """
    versions = [version for version in _info(bench).versions if version in DRA_SERVICES]
    order = [version for version in DRA_SERVICES if version in versions]
    expect(versions == order, f"supported_versions has {', '.join(versions)}", f"list them as {', '.join(order)}")


@should("registration-versions-unique", "k8s.io/kubelet/pkg/apis/dra/v1 and dra-health/v1: the names of the services")
def versions_are_names(bench: Bench) -> None:
    """supported_versions lists each service once, and only services that kubelet knows.

    Finds typing errors in the names of services.
    """
    versions = _info(bench).versions
    known = {*DRA_SERVICES, *HEALTH_SERVICES}
    odd = [version for version in versions if version not in known or versions.count(version) > 1]
    expect(not odd, f"supported_versions has {listed(odd)}", f"list only {listed(known)}, each once")


@must("registration-versions-served", f"{_PROTO}, PluginInfo.supported_versions: the plugin's service versions")
def versions_are_served(bench: Bench) -> None:
    """Every DRA service that is advertised is served.

    Makes an empty call to each advertised service.
    """
    for version in _info(bench).versions:
        if version in DRA_SERVICES:
            try:
                bench.plugin.prepare(version, (), NOTIFY_SECONDS)
            except DriverCallError as error:
                if error.code == "UNIMPLEMENTED":
                    raise Breach(f"{version} is advertised: {error}", "serve it, or leave it out") from error


@must("registration-repeatable", f"{_WATCHER}: every retry of a registration begins with GetInfo")
def get_info_repeats(bench: Bench) -> None:
    """GetInfo can be called repeatedly, and always gives the same answer.

    Makes five calls, each on its own connection.
    """
    first = _info(bench)
    for _ in range(4):
        again = _info(bench)
        expect(again == first, f"GetInfo answers {shown(again)} after {shown(first)}", "answer GetInfo from constants")


@must("registration-notified", f"{_WATCHER}: the deadline of NotifyRegistrationStatus; its failure is not retried")
def success_is_taken(bench: Bench) -> None:
    """NotifyRegistrationStatus with success is answered within 5 s.

    A registration ends with this call.
    """
    with bench.registrar() as client:
        try:
            client.notify(registered=True)
        except DriverCallError as error:
            raise Breach(f"NotifyRegistrationStatus failed: {error}", "answer it at once, without an error") from error


@must("registration-after-refusal", f"{_WATCHER}: kubelet tries again when it restarts or when the socket appears anew")
def refusal_is_survived(bench: Bench) -> None:
    """After kubelet has refused a registration, the driver can still be registered: it keeps running, or exits.

    Sends plugin_registered=false, and then registers the driver.
    """
    with bench.registrar() as client:
        try:
            client.notify(registered=False, error="refused by the sanity suite")
        except DriverCallError as error:
            # An error in answer to bad news is right, and no answer if the driver ends because of it.
            if error.code == "UNIMPLEMENTED":
                raise Breach(str(error), "implement NotifyRegistrationStatus") from error
    problems: list[str] = []
    if not bench.eventually(lambda: _ended(bench) or _registers(bench, problems), min(bench.patience, _AGAIN_SECONDS)):
        raise Breach(f"after a refusal the driver does not register: {problems[-1]}", "keep serving, or exit")
    if bench.process is not None:
        # It may be about to end.
        bench.disconnect()


def _ended(bench: Bench) -> bool:
    return bench.process is not None and bench.process.exited() is not None


def _registers(bench: Bench, problems: list[str]) -> bool:
    for socket in bench.listed_sockets():
        with bench.registrar(socket) as client:
            try:
                client.get_info()
                client.notify(registered=True)
            except DriverCallError as error:
                problems.append(str(error))
            else:
                return True
    problems.append("there is no registration socket that answers")
    return False


@must("registration-kubelet-restart", "kubelet e2e_node, dra_test.go: must register after Kubelet restart")
def kubelet_restarts(bench: Bench) -> None:
    """A kubelet that has restarted registers the driver again and reaches its service by new connections.

    Closes all connections at once, and then registers the driver again.
    """
    claim = bench.claim()
    bench.prepared(claim)
    bench.connect()
    bench.prepared(claim)


@must(
    "registration-stale-socket",
    "KEP-4381, kubeletplugin helper: a file at the socket's path is removed before it listens",
)
def stale_sockets_are_replaced(bench: Bench) -> None:
    """A driver that was killed replaces the sockets that it left behind when it starts again.

    SIGKILL leaves both sockets; then the driver is started.
    """
    before = sorted(path.name for path in bench.registration_sockets())
    stale: list[bool] = []
    bench.restart(lambda: stale.append(bench.places.registration is not None))
    after = sorted(path.name for path in bench.registration_sockets())
    expect(
        after == before,
        f"before there was {listed(before)}, and now {listed(after)}",
        "use the same socket names again",
    )


@should("registration-service-first", "kubeletplugin helper: the DRA service is started before the registrar")
def service_listens_first(bench: Bench) -> None:
    """The service listens before the registration socket does, so that a registered driver is reachable.

    Connects to the service as soon as the registration socket answers.
    """
    process = bench.started()
    bench.disconnect()
    process.kill()
    for socket in bench.places.registration.glob("*") if bench.places.registration else ():
        socket.unlink()
    process.start()
    with bench.registrar() as client:
        endpoint = client.get_info().endpoint
    if not endpoint:
        return
    try:
        bench.another_connection(endpoint).prepare(bench.version, (), NOTIFY_SECONDS)
    except DriverCallError as error:
        if error.code == "UNAVAILABLE":
            raise Breach(f"the service did not listen when GetInfo was answered: {error}", "start it first") from error
    finally:
        bench.disconnect()


@must(
    "registration-authority", f"{_WATCHER}: the registration socket is dialled by its raw path with a dialer of its own"
)
def any_authority_is_taken(bench: Bench) -> None:
    """Calls are accepted whatever their :authority is: kubelet's registration dials a path.

    Uses the :authority that gRPC clients derive from a path, which is percent-encoded.
    """
    path = str(bench.endpoint())
    client = bench.another_connection(authority=path.replace("/", "%2F"))
    try:
        client.prepare(bench.version, (), NOTIFY_SECONDS)
    except DriverCallError as error:
        if error.code in ("UNAVAILABLE", "INTERNAL", "UNKNOWN") and "empty" not in error.details:
            raise Breach(f"a call with an unusual :authority failed: {error}", "ignore :authority") from error


@should(
    "registration-unknown-method", "gRPC status codes: UNIMPLEMENTED; kubelet takes it for a service that is not there"
)
def unknown_methods_are_unimplemented(bench: Bench) -> None:
    """An unknown method is answered with UNIMPLEMENTED, and the driver keeps running.

    Calls a service that no API has.
    """
    try:
        bench.plugin.raw(_UNKNOWN_METHOD)
    except DriverCallError as error:
        expect(error.code == "UNIMPLEMENTED", f"an unknown method: {error}", "leave the answer to the gRPC library")
    else:
        raise Breach("an unknown method was answered", "serve the methods of the API alone")
    bench.plugin.prepare(bench.version, (), NOTIFY_SECONDS)


@should(
    "registration-folder",
    f"{_WATCHER}: the folder is watched, and every entry that does not begin with a dot is looked at",
)
def folder_holds_sockets(bench: Bench) -> None:
    """The registration folder holds nothing of the driver's but its socket.

    Nothing else, such as locks and data, belongs into kubelet's directory.
    """
    place = bench.places.registration
    if place is None:
        raise Unable("the registration socket is unknown; pass --registration-socket")
    folder = place if place.is_dir() else place.parent
    others = sorted(path.name for path in folder.iterdir() if not path.is_socket() and path.name[:1] != ".")
    expect(not others, f"{folder} holds {listed(others)}", "keep other files in the driver's own folder")


@should("registration-socket-mode", "unix(7): connecting to a stream socket takes write permission on it")
def sockets_are_protected(bench: Bench) -> None:
    """Only their owner and group can write to the sockets: anybody who can write there can prepare claims.

    Looks at the modes of both sockets.
    """
    for path in (bench.registration_socket(), Path(bench.endpoint())):
        mode = stat.S_IMODE(path.stat().st_mode)
        expect(not mode & 0o002, f"{path.name} has the mode {mode:04o}", "leave it to the umask, or use 0600")
