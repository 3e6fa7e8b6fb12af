"""The bench that a check works with: a driver between kubelet, an API server and a CDI folder, and claims for it."""

from __future__ import annotations

import contextlib
import copy
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from dranode.driver.core.api.documents import API_VERSION
from dranode.sanity.apiserver import ApiServer
from dranode.sanity.breach import Breach, Unable, expect
from dranode.sanity.kubelet import (
    CALL_SECONDS,
    DRA_SERVICES,
    GET_INFO_SECONDS,
    Answers,
    ClaimAnswer,
    ClaimIdentity,
    DriverCallError,
    DriverInfo,
    SocketClient,
)
from dranode.sanity.objects import KubeDocument, StatusError
from dranode.sanity.offers import OfferedDevice, offered_devices, together
from dranode.sanity.process import DriverProcess
from dranode.sanity.specs import SpecFolder

T = TypeVar("T")

NAMESPACE: Final = "sanity"
OTHER_DRIVER: Final = "other.sanity.example.com"
_LOOK_SECONDS: Final = 0.02
_CLASS: Final = "sanity.example.com"
# A driver that has let so many calls run out is given less time for each that follows, or a run would take hours.
_HUNG_CALLS: Final = 3
_HUNG_SECONDS: Final = 5.0


@dataclass(frozen=True)
class BenchClaim:
    """A claim for the driver: what kubelet sends of it, and the object."""

    identity: ClaimIdentity
    document: KubeDocument

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.identity.uid

    @property
    def results(self) -> list[KubeDocument]:
        """The results of its allocation."""
        return list(self.document["status"]["allocation"]["devices"]["results"])


@dataclass(frozen=True)
class BenchPlaces:
    """The places of a driver's files.

    Attributes:
        socket: the DRA service's socket; empty where registration says it.
        registration: a registration socket, or the folder in which one appears; None for none.
        cdi: the folder of CDI specs; None where the suite cannot see it.
        node: the node's name.
        data: the folder for plugins' data; None where the suite does not name it.
    """

    socket: str
    registration: Path | None
    cdi: Path | None
    node: str
    data: Path | None = None


@dataclass
class Bench:
    """A driver, and all that it talks to.

    Attributes:
        places: where things are.
        api: the API server; None where the driver has its claims from elsewhere.
        process: the driver, if the suite has started it.
        given: claims that exist already.
        configurations: opaque parameters that the driver takes, each with another effect.
        patience: seconds after which something that must come about will not.
        quiet: seconds for which something that must not come about is watched.
    """

    places: BenchPlaces
    api: ApiServer | None = None
    process: DriverProcess | None = None
    given: Sequence[KubeDocument] = ()
    configurations: Sequence[Any] = ()
    patience: float = 60.0
    quiet: float = 5.0
    _info: DriverInfo | None = None
    _clients: list[SocketClient] = field(default_factory=list)
    _plugin: SocketClient | None = None
    _claims: dict[str, BenchClaim] = field(default_factory=dict)
    _given_next: int = 0
    _unpublished: bool = False
    _unfinished: list[BenchClaim] = field(default_factory=list)
    _slices: list[str] = field(default_factory=list)
    _names: int = 0
    _expired: int = 0

    # --- the driver ---

    @property
    def driver(self) -> str:
        """The driver's name."""
        return self.info.name

    @property
    def info(self) -> DriverInfo:
        """Return what the driver says of itself, as it was first asked."""
        if self._info is None:
            self.connect()
        if self._info is None:
            raise Unable("the driver has no registration socket; name it with --registration-socket")
        return self._info

    @property
    def version(self) -> str:
        """The DRA service that kubelet would take."""
        versions = self._info.versions if self._info else tuple(DRA_SERVICES)
        known = next((version for version in versions if version in DRA_SERVICES), None)
        return known or next(iter(DRA_SERVICES))

    def connect(self) -> None:
        """Wait until the driver answers, register it as kubelet does, and connect to its service.

        Raises:
            Breach: it does not answer.
        """
        self.disconnect()
        if self.places.registration is not None:
            socket = self.registration_socket()
            with self.registrar(socket) as client:
                self._info = _asked(client, self.patience)
                client.notify(registered=True)
        self._plugin = SocketClient(self.endpoint())
        self._clients.append(self._plugin)
        self._wait_for_service(self._plugin)

    def endpoint(self) -> str:
        """The path of the DRA service's socket."""
        if self._info is None:
            return self.places.socket
        return self._info.endpoint or str(self.registration_socket())

    def registration_socket(self) -> Path:
        """The registration socket, as soon as there is one that answers.

        Raises:
            Unable: the suite does not know where it should be.
            Breach: none appears.
        """
        answering = self.eventually(lambda: self._ended() or next(iter(self.registration_sockets()), None))
        if not isinstance(answering, Path):
            log = f"; its log ends: {self.process.log()[-600:]}" if self.process else ""
            raise Breach(
                f"no registration socket answers at {self.places.registration}, and {answering}{log}"
                if answering
                else f"no registration socket answers at {self.places.registration} within {self.patience:g} s{log}",
                "create <registry folder>/<driver>-reg.sock and serve pluginregistration.Registration there",
            )
        return answering

    def registration_sockets(self) -> list[Path]:
        """The registration sockets that answer, oldest first.

        Raises:
            Unable: the suite does not know where they should be.
        """
        return [path for path in self.listed_sockets() if self._answers(path)]

    def listed_sockets(self) -> list[Path]:
        """The sockets that kubelet would look at, oldest first, whether they answer or not.

        Raises:
            Unable: the suite does not know where they should be.
        """
        place = self.places.registration
        if place is None:
            raise Unable("no registration socket was named; add --registration-socket")
        paths = sorted(place.glob("*"), key=_birth) if place.is_dir() else [place]
        return [path for path in paths if path.is_socket() and path.name[:1] != "."]

    def _answers(self, path: Path) -> bool:
        with self.registrar(path) as client:
            try:
                client.get_info()
            except DriverCallError:
                return False
        return True

    @contextlib.contextmanager
    def registrar(self, socket: Path | None = None) -> Iterator[SocketClient]:
        """A new connection to a registration socket, as kubelet makes one for every registration."""
        client = SocketClient(str(socket or self.registration_socket()))
        try:
            yield client
        finally:
            client.close()

    @property
    def plugin(self) -> SocketClient:
        """The connection to the DRA service."""
        if self._plugin is None:
            self.connect()
        if self._plugin is None:
            raise Unable("the driver's service is not known")
        return self._plugin

    def another_connection(self, endpoint: str | None = None, authority: str | None = None) -> SocketClient:
        """A connection to a DRA service of its own; closed at the end of the check."""
        client = SocketClient(endpoint or self.endpoint(), authority)
        self._clients.append(client)
        return client

    def disconnect(self) -> None:
        """Close every connection, as a kubelet that restarts does."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._plugin = None

    def started(self) -> DriverProcess:
        """The driver that the suite has started.

        Raises:
            Unable: somebody else has started it.
        """
        if self.process is None:
            raise Unable("the suite did not start the driver; name its command after --")
        return self.process

    def restart(self, between: Callable[[], object] = lambda: None) -> None:
        """Kill the driver, let something happen, start it again and wait until it answers."""
        process = self.started()
        self.disconnect()
        process.kill()
        between()
        process.start()
        self.connect()

    def ended_unasked(self) -> str:
        """That the driver has ended although no check asked it to, with its status; empty if it has not."""
        return "" if self._plugin is None else self._ended()

    def _ended(self) -> str:
        """That the driver has ended, with its status; empty if it runs, or somebody else has started it."""
        status = None if self.process is None else self.process.exited()
        if status is None:
            return ""
        how = f"status {status}" if status >= 0 else f"signal {-status} ({signal.strsignal(-status)})"
        return f"the driver ended with {how}"

    # --- claims ---

    def devices(self, count: int = 1, *, shareable: bool | None = None) -> list[OfferedDevice]:
        """Published devices that can be allocated at the same time.

        Raises:
            Unable: the driver does not publish so many.
        """
        offers = self.offers()
        kind = {None: "", True: "shareable ", False: "exclusive "}[shareable]
        devices = together([device for device in offers if shareable in (None, device.shareable)])[:count]
        if len(devices) < count:
            what = f"{count} {kind}devices that can be allocated together"
            raise Unable(f"the check needs {what}, and the driver publishes {len(devices)}")
        return devices

    def offers(self) -> list[OfferedDevice]:
        """Every device that the driver publishes, as soon as it publishes any.

        Raises:
            Unable: there is no API server, or nothing is published.
        """
        self.server()
        # Waiting once is enough for a driver that publishes nothing.
        seconds = 0.0 if self._unpublished else self.patience
        devices = self.eventually(lambda: offered_devices(self.slices()), seconds)
        self._unpublished = not devices
        if not devices:
            raise Unable(f"the driver published no device in a complete pool within {self.patience:g} s")
        return devices

    def slices(self) -> list[KubeDocument]:
        """The driver's slices."""
        slices = self.server().objects.all("resourceslices")
        return [document for document in slices if document["spec"]["driver"] == self.driver]

    def add_slice(self, document: KubeDocument) -> str:
        """Put a slice into the API server that is gone after the check; return its name."""
        name = f"of-sanity-{len(self._slices)}"
        self.server().put("resourceslices", {**document, "metadata": {**document.get("metadata", {}), "name": name}})
        self._slices.append(name)
        return name

    def server(self) -> ApiServer:
        """The API server.

        Raises:
            Unable: the driver has its claims from elsewhere.
        """
        if self.api is None:
            raise Unable("there is no API server; leave out --claims to have one, or add --kubeconfig")
        return self.api

    def claim(self, devices: Sequence[OfferedDevice] | None = None, **properties: Any) -> BenchClaim:
        """A claim that was allocated these devices, one request each; the properties are those of `make_claim`.

        Raises:
            Unable: there is no API server, and no more claims are given.
        """
        if self.api is None and devices is None and not properties:
            return self._given_claim()
        return self.make_claim([device.result("") for device in devices or self.devices()], **properties)

    def make_claim(
        self,
        results: Sequence[Mapping[str, Any]],
        *,
        requests: Sequence[str] = (),
        config: Iterable[Mapping[str, Any]] = (),
        identity: ClaimIdentity | None = None,
        name: str = "",
        namespace: str = NAMESPACE,
        annotations: Mapping[str, str] | None = None,
    ) -> BenchClaim:
        """Put an allocated claim into the API server.

        Args:
            results: of the allocation; those without a request get one of `requests`, or one made up.
            requests: names of requests (`name`, or `name/subrequest`).
            config: of the allocation.
            identity: of the claim; made up by default.
            name: likewise.
            namespace: likewise.
            annotations: of the claim.
        """
        self._names += 1
        names = [*requests, *(f"r{index}" for index in range(len(requests), len(results)))]
        filled = [{**result, "request": result.get("request") or names[index]} for index, result in enumerate(results)]
        identity = identity or ClaimIdentity(namespace, name or f"claim-{self._names}", str(uuid.uuid4()))
        metadata: KubeDocument = {"namespace": identity.namespace, "name": identity.name, "uid": identity.uid}
        metadata["annotations"] = dict(annotations or {})
        metadata["finalizers"] = ["resource.kubernetes.io/delete-protection"]
        document = {
            "apiVersion": API_VERSION,
            "metadata": metadata,
            "spec": {"devices": {"requests": _requests(filled)}},
            "status": {
                "allocation": {"devices": {"results": filled, "config": list(config)}},
                "reservedFor": [{"resource": "pods", "name": f"pod-{self._names}", "uid": str(uuid.uuid4())}],
            },
        }
        return self.put(BenchClaim(identity, document))

    def put(self, claim: BenchClaim) -> BenchClaim:
        """Put a claim into the API server, in place of one of its name."""
        objects = self.server().objects
        with contextlib.suppress(StatusError):
            objects.remove("resourceclaims", claim.identity.name, claim.identity.namespace)
        self.server().put("resourceclaims", copy.deepcopy(claim.document))
        return claim

    def change(self, claim: BenchClaim, edit: Callable[[KubeDocument], None]) -> BenchClaim:
        """Change a claim in the API server."""
        document = copy.deepcopy(claim.document)
        edit(document)
        return self.put(BenchClaim(claim.identity, document))

    def forget(self, claim: BenchClaim) -> None:
        """Delete a claim from the API server."""
        self.server().objects.remove("resourceclaims", claim.identity.name, claim.identity.namespace)

    def _given_claim(self) -> BenchClaim:
        if self._given_next >= len(self.given):
            raise Unable(f"the check needs another claim than the {len(self.given)} of --claims")
        document = self.given[self._given_next]
        self._given_next += 1
        metadata = document["metadata"]
        return BenchClaim(ClaimIdentity(metadata.get("namespace", ""), metadata["name"], metadata["uid"]), document)

    # --- calls ---

    def prepare(self, *claims: BenchClaim, version: str = "", client: SocketClient | None = None) -> Answers:
        """Let the driver prepare claims with one call; they are unprepared at the end of the check.

        Raises:
            DriverCallError: the whole call failed.
        """
        self._claims |= {claim.uid: claim for claim in claims}
        plugin = client or self.plugin
        with self._patiently() as seconds:
            return plugin.prepare(version or self.version, [claim.identity for claim in claims], seconds)

    def prepared(self, *claims: BenchClaim, version: str = "", client: SocketClient | None = None) -> list[ClaimAnswer]:
        """Prepare claims that the driver has to prepare; the answers are in their order.

        Raises:
            Breach: it does not.
        """
        with calling("NodePrepareResources"):
            answers = self.prepare(*claims, version=version, client=client)
        return [_succeeded("NodePrepareResources", answers, claim) for claim in claims]

    def unprepare(self, *claims: BenchClaim, version: str = "", client: SocketClient | None = None) -> Answers:
        """Let the driver unprepare claims with one call.

        Raises:
            DriverCallError: the whole call failed.
        """
        plugin = client or self.plugin
        with self._patiently() as seconds:
            return plugin.unprepare(version or self.version, [claim.identity for claim in claims], seconds)

    @contextlib.contextmanager
    def _patiently(self) -> Iterator[float]:
        """Return how long a call may take: kubelet's 45 s, or less for a driver that has let several run out."""
        try:
            yield CALL_SECONDS if self._expired < _HUNG_CALLS else _HUNG_SECONDS
        except DriverCallError as error:
            self._expired += error.code == "DEADLINE_EXCEEDED"
            raise

    def unprepared(self, *claims: BenchClaim, version: str = "", client: SocketClient | None = None) -> None:
        """Unprepare claims that the driver has to unprepare.

        Raises:
            Breach: it does not.
        """
        with calling("NodeUnprepareResources"):
            answers = self.unprepare(*claims, version=version, client=client)
        for claim in claims:
            _succeeded("NodeUnprepareResources", answers, claim)

    def refused(self, claim: BenchClaim) -> str:
        """The reason for which the driver refuses to prepare a claim, alone or with the whole call; else empty."""
        try:
            answers = self.prepare(claim)
        except DriverCallError as error:
            return str(error)
        answer = answers.get(claim.uid)
        return answer.error if answer else "no answer for the claim"

    # --- what is seen ---

    @property
    def specs(self) -> SpecFolder:
        """The CDI folder.

        Raises:
            Unable: the suite cannot see it.
        """
        if self.places.cdi is None:
            raise Unable("the CDI folder is not known; name it with --cdi-dir")
        return SpecFolder(self.places.cdi)

    def edits(self, claim: BenchClaim, answer: ClaimAnswer) -> str:
        """Return what containers get by an answer, without what names the claim, so that two claims can be compared."""
        text = repr(self.specs.edits(answer.cdi))
        shares = [str(result["shareID"]) for result in claim.results if result.get("shareID")]
        for value, token in [(claim.uid, "<uid>"), *((share, "<share>") for share in shares)]:
            for form in (value, value.replace("-", "_"), value.upper().replace("-", "_")):
                text = text.replace(form, token)
        return text.replace(claim.identity.name, "<name>")

    def eventually(self, holds: Callable[[], T], seconds: float | None = None) -> T:
        """Return what `holds` gives as soon as it is true, or at last after so many seconds (the bench's patience)."""
        ends = time.monotonic() + (self.patience if seconds is None else seconds)
        while not (seen := holds()) and time.monotonic() < ends:
            time.sleep(_LOOK_SECONDS)
        return seen

    # --- between checks ---

    def begin(self) -> None:
        """See that the driver runs and answers, starting it if it must be.

        Raises:
            Breach: it does not answer.
            DranodeError: it cannot be started.
        """
        if self.process is not None and (self._plugin is None or self.process.exited() is not None):
            self.disconnect()
            self.process.kill()
            self.process.start()
        if self._plugin is None:
            self.connect()
        self._release()

    def clean(self) -> None:
        """Undo what a check has done: claims, faults of the API server, connections."""
        if self.api is not None:
            self.api.heal()
        self._release()
        for claim in self._claims.values():
            with contextlib.suppress(StatusError, Unable):
                self.forget(claim)
        for name in self._slices:
            with contextlib.suppress(StatusError):
                self.server().objects.remove("resourceslices", name)
        self._slices.clear()
        if self._plugin is None:
            # What a check has prepared with a driver that it has ended is unprepared when that runs again.
            self._unfinished.extend(self._claims.values())
        self._claims.clear()
        self._given_next = 0
        for client in self._clients:
            if client is not self._plugin:
                client.close()
        self._clients = [self._plugin] if self._plugin else []

    def _release(self) -> None:
        """Unprepare what checks have prepared, if the driver runs."""
        claims = [*self._unfinished, *self._claims.values()]
        if claims and self._plugin is not None:
            with contextlib.suppress(DriverCallError):
                self.unprepare(*claims)
            self._unfinished.clear()

    def _wait_for_service(self, plugin: SocketClient) -> None:
        """Wait until the service answers at all; what it answers is a check's business."""

        def answers() -> bool:
            try:
                plugin.prepare(self.version, (), GET_INFO_SECONDS)
            except DriverCallError as error:
                return error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
            return True

        expect(
            self.eventually(answers),
            f"the DRA service at {self.endpoint()} does not answer within {self.patience:g} s",
            "listen at the endpoint that GetInfo names before the registration socket appears",
        )


@contextlib.contextmanager
def calling(method: str) -> Iterator[None]:
    """Report a call that fails as a whole as a breach."""
    try:
        yield
    except DriverCallError as error:
        raise Breach(
            f"{method} failed as a whole: {error}", "answer each claim with an entry of its own, an error among them"
        ) from error


def _succeeded(method: str, answers: Answers, claim: BenchClaim) -> ClaimAnswer:
    answer = answers.get(claim.uid)
    if answer is None:
        raise Breach(
            f"{method} has no answer for claim {claim.identity} ({claim.uid})",
            "add an entry for every claim of the call",
        )
    expect(
        not answer.error, f'{method} of claim {claim.identity} failed: "{answer.error}"', "prepare what is published"
    )
    return answer


def _asked(client: SocketClient, seconds: float) -> DriverInfo:
    try:
        return client.get_info(seconds, wait=True)
    except DriverCallError as error:
        raise Breach(f"GetInfo failed: {error}", "serve pluginregistration.Registration at the socket") from error


def _requests(results: Sequence[Mapping[str, Any]]) -> list[KubeDocument]:
    """The requests of the spec that such results answer."""
    requests: dict[str, KubeDocument] = {}
    for result in results:
        name, slash, alternative = str(result["request"]).partition("/")
        if slash:
            chosen = {"name": alternative, "deviceClassName": _CLASS}
            requests.setdefault(name, {"name": name, "firstAvailable": [chosen]})
        else:
            exactly: KubeDocument = {"deviceClassName": _CLASS}
            if result.get("adminAccess"):
                exactly["adminAccess"] = True
            if name in requests:
                requests[name]["exactly"] |= {"count": requests[name]["exactly"].get("count", 1) + 1}
            requests.setdefault(name, {"name": name, "exactly": exactly})
    return list(requests.values())


def _birth(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except FileNotFoundError:
        return 0.0, path.name
