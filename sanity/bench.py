"""The bench that a check works with: a driver with kubelet, an API server, a CDI folder, and claims."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from dranode.cdi.errors import CDIError
from dranode.cdi.names import parse_qualified_name
from dranode.cdi.rules import SpecVerdict, validate
from dranode.cdi.spec import ContainerEdits, Spec
from dranode.sanity.apiserver import ApiServer
from dranode.sanity.breach import Breach, Unable, expect, shown
from dranode.sanity.claims import NAMESPACE, BenchClaim, OfferedDevice, allocated_claim, offered_devices, together
from dranode.sanity.driver_link import DriverLink
from dranode.sanity.kinds import KubeDocument
from dranode.sanity.kubelet import CALL_SECONDS, Answers, ClaimAnswer, ClaimIdentity, DriverCallError, SocketClient
from dranode.sanity.objects import StatusError

OTHER_DRIVER: Final = "other.sanity.example.com"
# How many checks report that a claim was not prepared for the same reason; a hundred may meet it.
_REPORTED: Final = 3
# How long the next call may take after so many calls have timed out; otherwise a run would take hours.
_LIMITS: Final = ((3, CALL_SECONDS), (10, 5.0), (sys.maxsize, 1.0))


@dataclass
class Bench(DriverLink):
    """A driver, and everything that it talks to.

    Attributes:
        api: the API server; None if the driver gets its claims from elsewhere.
        given: claims that exist already.
        configurations: opaque parameters that the driver accepts, each with a different effect.
        claims_tried: how many claims with devices there were.
        spoiled: the driver has to be started again before the next check, so that the check judges what it sees itself.
        broken_streams: what is wrong with the health services whose streams do not begin with a message.
    """

    api: ApiServer | None = None
    given: Sequence[KubeDocument] = ()
    configurations: Sequence[Any] = ()
    claims_tried: int = 0
    spoiled: bool = False
    broken_streams: dict[str, str] = field(default_factory=dict)
    _claims: dict[str, BenchClaim] = field(default_factory=dict)
    _given_next: int = 0
    _unfinished: dict[str, BenchClaim] = field(default_factory=dict)
    _slices: list[str] = field(default_factory=list)
    _names: int = 0
    _expired: int = 0
    _refusals: Counter[str] = field(default_factory=Counter)

    # --- claims ---

    def devices(self, count: int = 1, *, shareable: bool | None = None) -> list[OfferedDevice]:
        """Return published devices that can be allocated at the same time.

        Raises:
            Unable: the driver publishes fewer.
        """
        offers = self.offers()
        kind = {None: "", True: "shareable ", False: "exclusive "}[shareable]
        devices = together([device for device in offers if shareable in (None, device.shareable)])[:count]
        if len(devices) < count:
            what = f"{count} {kind}devices that can be allocated together"
            raise Unable(f"the check needs {what}, and the driver publishes {len(devices)}")
        return devices

    def offers(self) -> list[OfferedDevice]:
        """Return every published device, as soon as there is one.

        Raises:
            Unable: there is no API server, or nothing is published.
        """
        self.server()
        # Waiting once is enough for a driver that publishes nothing.
        devices = self.awaited("a device", lambda: offered_devices(self.slices()), 0.0)
        if not devices:
            others = sorted({document["spec"]["driver"] for document in self.server().objects.all("resourceslices")})
            reason = f"the driver published no device in a complete pool within {self.patience:g} s"
            if others and self.driver not in others:
                reason += f"; it is registered as {self.driver}, and the slices are those of {', '.join(others)}"
            raise Unable(reason)
        return devices

    def slices(self) -> list[KubeDocument]:
        """Return the driver's slices."""
        slices = self.server().objects.all("resourceslices")
        return [document for document in slices if document["spec"]["driver"] == self.driver]

    def add_slice(self, document: KubeDocument) -> str:
        """Create a slice that is deleted after the check; returns its name."""
        name = f"of-sanity-{len(self._slices)}"
        self.server().put("resourceslices", {**document, "metadata": {**document.get("metadata", {}), "name": name}})
        self._slices.append(name)
        return name

    def server(self) -> ApiServer:
        """The API server.

        Raises:
            Unable: the driver gets its claims from elsewhere.
        """
        if self.api is None:
            raise Unable("there is no API server; leave out --claims to have one, or add --kubeconfig")
        return self.api

    def claim(self, devices: Sequence[OfferedDevice] | None = None, **properties: Any) -> BenchClaim:
        """Return a claim that was allocated these devices, one request each; the properties are those of `make_claim`.

        Raises:
            Unable: there is no API server, and no more claims are given.
        """
        if self.api is None and devices is None and not properties:
            return self._given_claim()
        return self.make_claim([device.result("") for device in devices or self.devices()], **properties)

    def several_devices(self, count: int) -> list[OfferedDevice]:
        """Return a number of devices, or shares of one device if there are fewer.

        Raises:
            Unable: there is neither.
        """
        try:
            return self.devices(count)
        except Unable:
            (device,) = self.devices(shareable=True)
            if device.shares() < count:
                raise
            return [device] * count

    def pair_of_claims(self) -> list[BenchClaim]:
        """Return two claims that can be prepared at the same time.

        Raises:
            Unable: the driver does not have enough devices.
        """
        if self.api is None:
            return [self.claim(), self.claim()]
        return [self.claim([device]) for device in self.several_devices(2)]

    def two_claims(self) -> list[BenchClaim]:
        """Return two claims that can be prepared at the same time; one if the driver has only one device left."""
        if self.api is not None:
            with contextlib.suppress(Unable):
                return self.pair_of_claims()
        return [self.claim()]

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
            results: of the allocation; those without a request get one of `requests`, or a generated one.
            requests: names of requests (`name`, or `name/subrequest`).
            config: of the allocation.
            identity: of the claim; generated by default.
            name: likewise.
            namespace: likewise.
            annotations: of the claim.
        """
        self._names += 1
        self.claims_tried += bool(results)
        identity = identity or ClaimIdentity(namespace, name or f"claim-{self._names}", str(uuid.uuid4()))
        pod = f"pod-{self._names}"
        return self.put(
            allocated_claim(identity, results, pod, requests=requests, config=config, annotations=annotations)
        )

    def put(self, claim: BenchClaim) -> BenchClaim:
        """Store a claim in the API server; it replaces one of the same name."""
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
            raise Unable(f"the check needs more than the {len(self.given)} claims of --claims")
        document = self.given[self._given_next]
        self._given_next += 1
        self.claims_tried += 1
        metadata = document["metadata"]
        return BenchClaim(ClaimIdentity(metadata.get("namespace", ""), metadata["name"], metadata["uid"]), document)

    # --- calls ---

    def prepare(
        self, *claims: BenchClaim, version: str = "", client: SocketClient | None = None, most: float = CALL_SECONDS
    ) -> Answers:
        """Call the driver to prepare claims, for `most` seconds; they are unprepared at the end of the check.

        Raises:
            DriverCallError: the whole call failed.
        """
        self._claims |= {claim.uid: claim for claim in claims}
        plugin = client or self.plugin
        with self._patiently() as seconds:
            return plugin.prepare(version or self.version, [claim.identity for claim in claims], min(seconds, most))

    def prepared(self, *claims: BenchClaim, version: str = "", client: SocketClient | None = None) -> list[ClaimAnswer]:
        """Prepare claims, all of which must succeed; returns the answers in their order.

        Raises:
            Breach: it does not.
            Unable: it does not, for a reason that several checks have reported.
        """
        method, remedy = "NodePrepareResources", "prepare what is published"
        try:
            with calling(method):
                answers = self.prepare(*claims, version=version, client=client)
            prepared = [_succeeded(method, answers, claim, remedy) for claim in claims]
        except Breach as breach:
            reason = breach.seen
            for claim in claims:
                reason = reason.replace(claim.identity.name, "").replace(claim.uid, "")
            self._refusals[reason] += 1
            if self._refusals[reason] > _REPORTED:
                raise Unable(f"{breach.seen}, which {_REPORTED} other checks report") from breach
            raise
        return prepared

    def same_answer(
        self, claim: BenchClaim, before: ClaimAnswer, remedy: str, *, client: SocketClient | None = None
    ) -> ClaimAnswer:
        """Prepare a claim again; returns the answer, which must not have changed.

        Raises:
            Breach: the answer has changed.
        """
        (after,) = self.prepared(claim, client=client)
        expect(after == before, f"the answer is {shown(after)}, but was {shown(before)}", remedy)
        return after

    def unprepare(self, *claims: BenchClaim, version: str = "", client: SocketClient | None = None) -> Answers:
        """Call the driver to unprepare claims.

        Raises:
            DriverCallError: the whole call failed.
        """
        plugin = client or self.plugin
        with self._patiently() as seconds:
            return plugin.unprepare(version or self.version, [claim.identity for claim in claims], seconds)

    @contextlib.contextmanager
    def _patiently(self) -> Iterator[float]:
        """Return how long a call may take: kubelet's 45 s, or less after several calls have timed out."""
        try:
            yield next(seconds for calls, seconds in _LIMITS if self._expired < calls)
        except DriverCallError as error:
            self._expired += error.expired
            self.spoiled |= error.expired
            raise

    def unprepared(self, *claims: BenchClaim, version: str = "", client: SocketClient | None = None) -> None:
        """Unprepare claims, all of which must succeed.

        Raises:
            Breach: it does not.
        """
        with calling("NodeUnprepareResources"):
            answers = self.unprepare(*claims, version=version, client=client)
        for claim in claims:
            remedy = "answer without an error, also for a claim that is not prepared"
            _succeeded("NodeUnprepareResources", answers, claim, remedy)

    def refused(self, claim: BenchClaim) -> str:
        """Return why the driver refuses to prepare a claim, by its entry or the whole call; empty if it does not."""
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
            raise Unable("the CDI folder is unknown; pass --cdi-dir")
        return SpecFolder(self.places.cdi)

    def edits(self, claim: BenchClaim, answer: ClaimAnswer) -> str:
        """Return the edits of an answer, without the claim's names in them, so that two claims can be compared."""
        text = shown(self.specs.edits(answer.cdi))
        shares = [str(result["shareID"]) for result in claim.results if result.get("shareID")]
        for value, token in [(claim.uid, "<uid>"), *((share, "<share>") for share in shares)]:
            for form in (value, value.replace("-", "_"), value.upper().replace("-", "_")):
                text = text.replace(form, token)
        return text.replace(claim.identity.name, "<name>")

    def edits_if_any(self, claim: BenchClaim, answer: ClaimAnswer) -> str:
        """Return the same; nothing if the answer has no CDI ids or the suite cannot see the folder."""
        return self.edits(claim, answer) if answer.cdi and self.places.cdi is not None else ""

    def see_ids_resolve(self, answer: ClaimAnswer) -> None:
        """Check that a runtime finds an answer's CDI ids, if the suite can see the folder.

        Raises:
            Breach: it would not find one of them.
        """
        if answer.cdi and self.places.cdi is not None:
            self.specs.edits(answer.cdi)

    def files_of(self, claim: BenchClaim) -> list[str]:
        """Return the files in the CDI folder that contain a claim's UID; none if the suite cannot see the folder."""
        if self.places.cdi is None:
            return []
        return [name for name, content in self.specs.listing().items() if claim.uid.encode() in content]

    # --- between checks ---

    def begin(self) -> None:
        """Check that the driver runs and answers; start it if need be, with an empty folder if it holds old claims.

        Raises:
            Breach: it does not answer.
            DranodeError: it cannot be started.
        """
        self.see_it_answers()
        self._release()
        if self._unfinished and self.places.data is not None:
            self._unfinished.clear()
            self.start_afresh()

    def clean(self) -> None:
        """Undo what a check has done: claims, faults of the API server, connections."""
        if self.api is not None:
            self.api.heal()
        if self.spoiled and self.process is not None:
            self.disconnect()
        self.spoiled = False
        self._release()
        for claim in self._claims.values():
            with contextlib.suppress(StatusError, Unable):
                self.forget(claim)
        for name in self._slices:
            with contextlib.suppress(StatusError):
                self.server().objects.remove("resourceslices", name)
        self._slices.clear()
        self._claims.clear()
        self._given_next = 0
        for client in self._clients:
            if client is not self._plugin:
                client.close()
        self._clients = [self._plugin] if self._plugin else []

    def _release(self) -> None:
        """Unprepare what checks have prepared; what was not is tried again once the driver was started."""
        self._unfinished |= self._claims
        if self._unfinished and self._plugin is not None:
            with contextlib.suppress(DriverCallError):
                answers = self.unprepare(*self._unfinished.values())
                self._unfinished = {uid: claim for uid, claim in self._unfinished.items()
                                    if uid not in answers or answers[uid].error}  # fmt: skip


@contextlib.contextmanager
def calling(method: str) -> Iterator[None]:
    """Report a call that fails as a whole as a breach."""
    try:
        yield
    except DriverCallError as error:
        remedy = "answer each claim with its own entry, even if it is an error"
        if error.expired:
            remedy = "answer before kubelet's 45 s are over, with an error for a claim that takes longer"
        raise Breach(f"{method} failed as a whole: {error}", remedy) from error


def _succeeded(method: str, answers: Answers, claim: BenchClaim, remedy: str) -> ClaimAnswer:
    answer = answers.get(claim.uid)
    if answer is None:
        raise Breach(
            f"{method} has no answer for claim {claim.identity} ({claim.uid})",
            "add an entry for every claim of the call",
        )
    expect(not answer.error, f'{method} of claim {claim.identity} failed: "{answer.error}"', remedy)
    return answer


# The CDI folder, read as a container runtime reads it, by the rules of the reference loader.


@dataclass(frozen=True)
class SpecFile:
    """A spec file; `spec` is None if a runtime does not load it."""

    path: Path
    verdict: SpecVerdict
    spec: Spec | None

    def names(self) -> Iterator[str]:
        """Return the qualified names of its devices."""
        for device in self.spec.devices if self.spec else ():
            yield f"{self.spec.kind}={device.name}" if self.spec else ""


@dataclass(frozen=True)
class SpecFolder:
    """The folder of CDI specs that driver and runtime share."""

    folder: Path

    def listing(self) -> dict[str, bytes]:
        """Return every file of the folder with its content, including temporary ones."""
        try:
            paths = sorted(path for path in self.folder.iterdir() if path.is_file())
        except FileNotFoundError:
            return {}
        return {path.name: content for path in paths if (content := _content(path)) is not None}

    def files(self) -> list[SpecFile]:
        """Return the files that a runtime reads."""
        return [
            _spec_file(self.folder / name, content)
            for name, content in self.listing().items()
            if name.endswith((".json", ".yaml"))
        ]

    def resolve(self, name: str, files: Sequence[SpecFile] | None = None) -> tuple[ContainerEdits, ...]:
        """Return the edits that a container gets for a qualified name: the spec's, then the device's.

        Args:
            name: the CDI id.
            files: the spec files; read again by default.

        Raises:
            Breach: a runtime would not find it.
        """
        try:
            parse_qualified_name(name)
        except CDIError as error:
            raise Breach(f"CDI id {error}", "return `vendor/class=name` with characters that CDI allows") from None
        files = self.files() if files is None else files
        defining = [file for file in files if name in file.names()]
        broken = "; ".join(f"{file.path.name}: {file.verdict.problems[0]}" for file in files if not file.verdict.ok)
        expect(
            defining,
            f"CDI id {name} is in no spec of {self.folder}{f' ({broken})' if broken else ''}",
            "before you answer Prepare, write the spec into the folder that the runtime reads"
            + (", and fix what `dranode cdi validate` reports" if broken else ""),
        )
        expect(
            len(defining) == 1,
            f"CDI id {name} is in {' and '.join(file.path.name for file in defining)}, so runtimes accept neither",
            "give every device a name that only one spec defines",
        )
        spec = defining[0].spec
        if spec is None:
            raise Breach(f"{defining[0].path} is not loaded", "write a spec that the reference loader accepts")
        device = next(device for device in spec.devices if f"{spec.kind}={device.name}" == name)
        return spec.container_edits, device.container_edits

    def edits(self, names: Iterable[str]) -> list[Any]:
        """Return the edits for several names in their order, as plain documents, without empty ones.

        Raises:
            Breach: a runtime would not find one of them.
        """
        files = self.files()
        found = [edits for name in names for edits in self.resolve(name, files) if edits]
        return [json.loads(msgspec.json.encode(edits)) for edits in found]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _spec_file(path: Path, content: bytes) -> SpecFile:
    verdict = validate(content)
    return SpecFile(path, verdict, verdict.spec)
