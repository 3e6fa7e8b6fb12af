"""An API server over HTTP: the verbs of `resource.k8s.io` that drivers use, watches included; it can fail on demand.

It serves any other resource too (nodes, pods, events), without rules of its own, and answers the requests of discovery:
`/api`, `/apis`, `/version`. Bodies are JSON, or Kubernetes' protobuf for slices, which some Go drivers send.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec

from dranode.api.errors import DocumentError
from dranode.driver.machine.yaml_files import dump_yaml, parse_yaml
from dranode.sanity.api_request import ApiRequest, selection
from dranode.sanity.kinds import KubeDocument, ResourceKind, kind_of, served
from dranode.sanity.kube_protobuf import MEDIA_TYPE, decode_body
from dranode.sanity.objects import ObjectChange, Objects, StatusError

# Seconds that a request is held back at most.
_PATIENCE: Final = 180.0
# How many of the last requests are kept with their bodies.
_BODIES: Final = 2000
_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


@dataclass
class ApiServer:
    """The server. `start` listens; every attribute may be changed while it runs.

    Attributes:
        objects: its objects.
        versions: the versions of resource.k8s.io that it serves.
        tokens: the bearer tokens that it accepts; None for any token or none.
        certificate: the files of certificate and key with which it serves HTTPS; None for HTTP.
        authority: the file with the authority of that certificate.
        bookmark_seconds: how long a watch is silent before a bookmark comes.
        faults: what goes wrong before a request is carried out.
        after: connections that are dropped after a request was carried out, instead of its answer.
        seen: the requests that came.
        watch_seconds: how long a watch lasts at most.
        mute: watches say nothing, not even that time passes.
        watches_ended: how many watches have lasted as long as they may.
        gone_as_event: answer a watch from a forgotten version with an event, as the watch cache does, not status 410.
    """

    objects: Objects = field(default_factory=Objects)
    versions: tuple[str, ...] = ("v1", "v1beta2", "v1beta1")
    tokens: set[str] | None = None
    certificate: tuple[Path, Path] | None = None
    authority: Path | None = None
    bookmark_seconds: float = 0.2
    watch_seconds: float = 3600.0
    mute: bool = False
    watches_ended: int = 0
    gone_as_event: bool = True
    faults: list[RequestFault] = field(default_factory=list)
    after: list[RequestFault] = field(default_factory=list)
    seen: list[SeenRequest] = field(default_factory=list)
    _server: _Server | None = None
    _port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- starting and stopping ---

    def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = _Server(("127.0.0.1", self._port), self)
        self._port = self._server.server_address[1]
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), name="apiserver", daemon=True).start()

    def stop(self) -> None:
        """Stop: connections break, new ones are refused. `start` listens again."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.break_connections()
            with self.objects.changed:
                self.objects.changed.notify_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """Return the port on which it listens."""
        return self._port

    @property
    def url(self) -> str:
        """Return where it listens."""
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self._port}"

    @property
    def running(self) -> bool:
        """Return whether it listens."""
        return self._server is not None

    def kubeconfig(self, path: Path, token_file: Path | None = None, token: str = "") -> str:
        """Write a kubeconfig for this server."""
        cluster: KubeDocument = {"server": self.url}
        if self.authority is not None:
            cluster["certificate-authority"] = str(self.authority)
        user = {"tokenFile": str(token_file)} if token_file else {"token": token} if token else {}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "stand-in",
            "clusters": [{"name": "stand-in", "cluster": cluster}],
            "users": [{"name": "stand-in", "user": user}],
            "contexts": [{"name": "stand-in", "context": {"cluster": "stand-in", "user": "stand-in"}}],
        }  # fmt: skip
        path.write_text(dump_yaml(document))
        return str(path)

    # --- for checks ---

    def heal(self) -> None:
        """Remove all faults, and serve everything again."""
        self.faults.clear()
        self.after.clear()
        self.objects.gates_off.clear()
        self.mute = False
        if not self.running:
            self.start()

    def put(self, resource: str, document: KubeDocument) -> KubeDocument:
        """Store an object."""
        return self.objects.create(kind_of(resource), document)

    def requests(self, method: str = "", path: str = "") -> list[SeenRequest]:
        """Return the requests of a method whose path contains a text."""
        with self._lock:
            return [seen for seen in self.seen if method in ("", seen.method) and path in seen.path]

    def writes(self, resource: str = "resourceslices") -> list[SeenRequest]:
        """Return the requests that wrote or tried to."""
        return [seen for seen in self.requests(path=resource) if seen.method != "GET"]

    def note(self, seen: SeenRequest) -> None:
        """Record a request."""
        with self._lock:
            self.seen.append(seen)
            # A driver that writes without end must not use up the memory.
            if len(self.seen) > _BODIES:
                self.seen[-_BODIES] = replace(self.seen[-_BODIES], body=None)

    def fault(self, faults: list[RequestFault], method: str, path: str) -> RequestFault | None:
        """Return the fault for a request, if any."""
        with self._lock:
            return next((fault for fault in faults if fault.takes(method, path)), None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], api: ApiServer) -> None:
        self.api = api
        self._connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: clients may disconnect at any time."""

    def break_connections(self) -> None:
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Say nothing."""

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def _handle(self) -> None:
        api = self.server.api
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        media = self.headers.get("Content-Type", "")
        body: Any = None

        def seen(status: int, refusal: str = "") -> None:
            headers = dict(self.headers)
            api.note(SeenRequest(self.command, parts.path, query, body, headers, status, time.monotonic(), refusal))

        try:
            body = _body(raw, media)
            if self._befallen(api.fault(api.faults, self.command, parts.path), seen):
                return
            self._authenticate(api)
            request = ApiRequest.parse(self.command, parts.path, api.versions)
            if request.kind is not None and query.get("watch") in ("true", "1"):
                seen(200)
                self._watch(api, request, query)
                return
            answer = _answered(request, api, query, body, media)
        except StatusError as refusal:
            seen(refusal.status, str(refusal))
            text = json.dumps(refusal.document()) if refusal.reason else str(refusal)
            self._send(refusal.status, text.encode())
            return
        seen(200)
        if api.fault(api.after, self.command, parts.path) is not None:
            self.close_connection = True
            return
        self._send(201 if self.command == "POST" else 200, json.dumps(answer).encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - the parent's names

    def _befallen(self, fault: RequestFault | None, seen: Any) -> bool:
        """Carry out a fault; returns whether the request has been answered by it."""
        if fault is None:
            return False
        time.sleep(fault.seconds)
        if fault.release is not None:
            fault.release.wait(_PATIENCE)
        if fault.drop:
            seen(0)
            self.close_connection = True
        elif fault.status:
            seen(fault.status)
            self._send(fault.status, fault.body.encode(), fault.headers)
        return fault.drop or bool(fault.status)

    def _authenticate(self, api: ApiServer) -> None:
        token = self.headers.get("Authorization", "").split(" ", 1)[-1].strip()
        if api.tokens is not None and token not in api.tokens:
            raise StatusError(401, "Unauthorized", "Unauthorized")

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, api: ApiServer, request: ApiRequest, query: Mapping[str, str]) -> None:
        kind, objects = request.the_kind, api.objects
        matches = selection(query.get("fieldSelector", ""), request.namespace)
        start = query.get("resourceVersion", "")
        version = int(start) if start not in ("", "0") else objects.version
        ends = time.monotonic() + min(float(query.get("timeoutSeconds") or 3600), api.watch_seconds)
        if not api.gone_as_event:
            with objects.changed:
                objects.since(kind, version)  # the caller answers with the status
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # A watch from version 0 begins with all objects. So does one with sendInitialEvents, which marks their end.
        if start == "0" or query.get("sendInitialEvents") == "true":
            version = self._initial(objects, request, matches)
        while api.running and time.monotonic() < ends:
            try:
                news, reached = self._news(api, kind, version)
            except StatusError as refusal:
                self._event("ERROR", refusal.document())
                break
            for change in news:
                if matches(change.document):
                    self._event(change.type, served(kind, change.document, request.version))
            version = reached
            if not news:
                self._bookmark(request, version)
        api.watches_ended += 1
        # A server that stops breaks the connection. Only a watch that reaches its time limit ends properly.
        self.close_connection = not api.running
        if api.running:
            self.wfile.write(b"0\r\n\r\n")

    def _initial(self, objects: Objects, request: ApiRequest, matches: Callable[[KubeDocument], bool]) -> int:
        version, documents = objects.select(request.the_kind, request.namespace, matches)
        for document in documents:
            self._event("ADDED", served(request.the_kind, document, request.version))
        self._bookmark(request, version, {_INITIAL_EVENTS_END: "true"})
        return version

    @staticmethod
    def _news(api: ApiServer, kind: ResourceKind, version: int) -> tuple[list[ObjectChange], int]:
        """Return the changes since a version, as soon as there is one or a bookmark is due."""
        objects = api.objects
        with objects.changed:
            news = objects.since(kind, version)
            if not news:
                objects.changed.wait(api.bookmark_seconds)
                news = objects.since(kind, version)
            reached = objects.version
        while api.mute and api.running:
            time.sleep(0.01)
        return news, reached

    def _bookmark(self, request: ApiRequest, version: int, annotations: Mapping[str, str] | None = None) -> None:
        metadata = {"resourceVersion": str(version), **({"annotations": annotations} if annotations else {})}
        mark = {"kind": request.the_kind.kind, "metadata": metadata, "spec": {}}
        self._event("BOOKMARK", {**mark, "apiVersion": request.group_version})

    def _event(self, kind: str, document: KubeDocument) -> None:
        line = json.dumps({"type": kind, "object": document}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))


def _answered(request: ApiRequest, api: ApiServer, query: Mapping[str, str], body: Any, media: str) -> KubeDocument:
    try:
        return request.answer(api.objects, api.versions, query, body, media)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StatusError(400, "BadRequest", f"the body is not an object of {request.path}: {error!r}") from error


def _body(raw: bytes, media: str) -> Any:
    if not raw:
        return None
    if media.startswith(MEDIA_TYPE):
        return decode_body(raw)
    try:
        return parse_yaml(raw, "the body") if "yaml" in media else msgspec.json.decode(raw)
    except (ValueError, RecursionError, DocumentError) as error:
        raise StatusError(400, "BadRequest", f"the body cannot be read: {error}") from error


@dataclass
class RequestFault:
    """A fault for requests whose method and path match, for the next `times` of them.

    `seconds` pass first, or the time until `release` is set. Then the connection is dropped, or `status` is answered;
    with neither, the request goes on.
    """

    method: str = ""
    path: str = ""
    times: int = 1
    seconds: float = 0.0
    release: threading.Event | None = None
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = '{"kind":"Status","message":"made to fail","code":0}'
    drop: bool = False

    def takes(self, method: str, path: str) -> bool:
        """Return whether it applies to this request, which then counts."""
        if self.times > 0 and self.method in ("", method) and self.path in path:
            self.times -= 1
            return True
        return False


@dataclass(frozen=True)
class SeenRequest:
    """A request that was received.

    Attributes:
        status: what was answered; 0 if nothing was.
        at: when, by the monotonic clock, in seconds.
        refusal: why it was refused, if it was.
    """

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    headers: Mapping[str, str]
    status: int
    at: float
    refusal: str = ""
