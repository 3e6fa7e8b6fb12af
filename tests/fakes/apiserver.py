"""An API server over HTTP in the test's own process, which can fail on demand. The real client talks to it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.fakes.apiobjects import KINDS, Document, Kind, Objects, Refusal, kind_of, served, stored
from tests.fakes.waiting import PATIENCE

CERTIFICATES = Path(__file__).parents[1] / "vectors" / "apiserver"


@dataclass
class Fault:
    """What goes wrong with requests whose method and path match, for the next `times` of them.

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
        if self.times > 0 and self.method in ("", method) and self.path in path:
            self.times -= 1
            return True
        return False


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    headers: Mapping[str, str]
    status: int


@dataclass
class ApiServer:
    """The server. `start` listens; everything may be changed while it runs.

    Attributes:
        objects: what it keeps.
        versions: the versions of resource.k8s.io that it serves.
        tokens: the bearer tokens that it takes; None for any or none.
        tls: serve HTTPS with the certificate of tests/vectors/apiserver.
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
    tls: bool = False
    bookmark_seconds: float = 0.2
    watch_seconds: float = 3600.0
    mute: bool = False
    watches_ended: int = 0
    gone_as_event: bool = True
    faults: list[Fault] = field(default_factory=list)
    after: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    _server: _Server | None = None
    _port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- life ---

    def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = _Server(("127.0.0.1", self._port), self)
        self._port = self._server.server_address[1]
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATES / "server.crt", CERTIFICATES / "server.key")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), name="apiserver", daemon=True).start()

    def stop(self) -> None:
        """Go away: connections break, new ones are refused. `start` comes back."""
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
        return self._port

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path, token_file: Path | None = None, token: str = "") -> str:
        """Write a kubeconfig for this server."""
        cluster: Document = {"server": self.url}
        if self.tls:
            cluster["certificate-authority"] = str(CERTIFICATES / "ca.crt")
        user = {"tokenFile": str(token_file)} if token_file else {"token": token} if token else {}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(document))
        return str(path)

    # --- for tests ---

    def put(self, resource: str, document: Document) -> Document:
        """Put an object there."""
        return self.objects.create(kind_of(resource), document)

    def requests(self, method: str = "", path: str = "") -> list[Seen]:
        """The requests that came, of a method and with this in their path."""
        with self._lock:
            return [one for one in self.seen if method in ("", one.method) and path in one.path]

    def writes(self, resource: str = "resourceslices") -> list[Seen]:
        """The requests that wrote, or wanted to."""
        return [one for one in self.requests(path=resource) if one.method != "GET"]

    def note(self, one: Seen) -> None:
        with self._lock:
            self.seen.append(one)

    def fault(self, faults: list[Fault], method: str, path: str) -> Fault | None:
        with self._lock:
            return next((fault for fault in faults if fault.takes(method, path)), None)

    @property
    def running(self) -> bool:
        return self._server is not None


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
        """Say nothing: clients that go away are part of the tests."""

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
        body = json.loads(raw) if raw else None

        def seen(status: int) -> None:
            api.note(Seen(self.command, parts.path, query, body, dict(self.headers), status))

        fault = api.fault(api.faults, self.command, parts.path)
        if fault is not None:
            time.sleep(fault.seconds)
            if fault.release is not None:
                fault.release.wait(PATIENCE)
            if fault.drop:
                seen(0)
                self.close_connection = True
                return
            if fault.status:
                seen(fault.status)
                self._send(fault.status, fault.body.encode(), fault.headers)
                return
        try:
            self._authenticate(api)
            asked = _Asked.parse(api, self.command, parts.path)
            if asked.kind is not None and query.get("watch") == "true":
                seen(200)
                self._watch(api, asked, query)
                return
            answer = asked.answer(api, query, body, self.headers.get("Content-Type", ""))
        except Refusal as refusal:
            seen(refusal.status)
            text = json.dumps(refusal.document()) if refusal.reason else str(refusal)
            self._send(refusal.status, text.encode())
            return
        seen(200)
        if api.fault(api.after, self.command, parts.path) is not None:
            self.close_connection = True
            return
        self._send(201 if self.command == "POST" else 200, json.dumps(answer).encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - the parent's names

    def _authenticate(self, api: ApiServer) -> None:
        token = self.headers.get("Authorization", "").split(" ", 1)[-1].strip()
        if api.tokens is not None and token not in api.tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, api: ApiServer, asked: _Asked, query: Mapping[str, str]) -> None:
        kind, objects = asked.the_kind, api.objects
        version = int(query.get("resourceVersion") or objects.version)
        ends = time.monotonic() + min(float(query.get("timeoutSeconds") or 3600), api.watch_seconds)
        wanted = selection(query.get("fieldSelector", ""))
        if not api.gone_as_event:
            with objects.changed:
                objects.since(kind, version)  # the caller answers with the status
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while api.running and time.monotonic() < ends:
            try:
                with objects.changed:
                    news = objects.since(kind, version)
                    if not news:
                        objects.changed.wait(api.bookmark_seconds)
                        news = objects.since(kind, version)
                    reached = objects.version
            except Refusal as refusal:
                self._event("ERROR", refusal.document())
                break
            while api.mute and api.running:
                time.sleep(0.01)
            for change in news:
                if wanted(change.document):
                    self._event(change.type, served(kind, change.document, asked.version))
            version = reached
            if not news:
                mark = {"kind": kind.kind, "metadata": {"resourceVersion": str(version)}, "spec": {}}
                self._event("BOOKMARK", {**mark, "apiVersion": f"{kind.group}/{asked.version}"})
        api.watches_ended += 1
        # A server that goes away breaks off; only one that has had enough ends its answer.
        self.close_connection = not api.running
        if api.running:
            self.wfile.write(b"0\r\n\r\n")

    def _event(self, kind: str, document: Document) -> None:
        line = json.dumps({"type": kind, "object": document}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))


@dataclass(frozen=True)
class _Asked:
    """What a path asks for."""

    method: str
    version: str
    kind: Kind | None = None
    group: str = ""
    namespace: str = ""
    name: str = ""
    part: str = ""

    @property
    def the_kind(self) -> Kind:
        assert self.kind is not None
        return self.kind

    @classmethod
    def parse(cls, api: ApiServer, method: str, path: str) -> _Asked:
        segments = path.strip("/").split("/")
        group, rest = ("", segments[1:]) if segments[0] == "api" else (segments[1], segments[2:])
        if not rest:
            return cls(method, "", group=group)
        version, *rest = rest
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = next((kind for kind in KINDS if (kind.group, kind.resource) == (group, rest[0])), None)
        if kind is None or (group == "resource.k8s.io" and version not in api.versions):
            raise Refusal(404, "", "404 page not found")
        name, part = (*rest[1:], "", "")[:2]
        return cls(method, version, kind, group, namespace, name, part)

    def answer(self, api: ApiServer, query: Mapping[str, str], body: Any, media: str) -> Document:
        if self.kind is None:
            if self.group == "resource.k8s.io" and not api.versions:
                raise Refusal(404, "", "404 page not found")
            versions = [{"groupVersion": f"{self.group}/{one}", "version": one} for one in api.versions]
            return {"kind": "APIGroup", "apiVersion": "v1", "name": self.group, "versions": versions}
        kind, objects = self.kind, api.objects
        dry_run = query.get("dryRun") == "All"
        if self.method in ("POST", "PUT") and not media.startswith("application/json"):
            raise Refusal(415, "UnsupportedMediaType", f"the body is {media}")
        match self.method:
            case "GET" if self.name:
                answer = objects.get(kind, self.namespace, self.name)
            case "GET":
                version, items = objects.select(kind, self.namespace, selection(query.get("fieldSelector", "")))
                group = f"{kind.group}/{self.version}" if kind.group else self.version
                listed = [self._bare(served(kind, one, self.version)) for one in items]
                metadata = {"resourceVersion": str(version)}
                return {"kind": f"{kind.kind}List", "apiVersion": group, "metadata": metadata, "items": listed}
            case "POST":
                space = {"namespace": self.namespace} if kind.namespaced else {}
                document = {**stored(body), "metadata": {**body.get("metadata", {}), **space}}
                answer = objects.create(kind, document, dry_run=dry_run)
            case "PUT":
                answer = objects.replace(kind, stored(body), dry_run=dry_run)
            case "DELETE":
                objects.delete(kind, self.namespace, self.name, (body or {}).get("preconditions"))
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            case _:
                return served(kind, self._apply(objects, query, body, media), self.version)
        return served(kind, answer, self.version)

    def _apply(self, objects: Objects, query: Mapping[str, str], body: Any, media: str) -> Document:
        if media != "application/apply-patch+yaml" or self.part != "status" or not query.get("fieldManager"):
            raise Refusal(415, "UnsupportedMediaType", f"this server applies status only, and was sent {media}")
        document = {**stored(body), "metadata": {**body["metadata"], "namespace": self.namespace, "name": self.name}}
        force = query.get("force") == "true"
        return objects.apply_status(self.the_kind, document, query["fieldManager"], force=force)

    @staticmethod
    def _bare(document: Document) -> Document:
        # Items of a list do not say what they are.
        return {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}


def selection(selector: str) -> Callable[[Document], bool]:
    """Whether an object matches a field selector."""
    pairs = [pair.split("=", 1) for pair in selector.split(",") if pair]

    def matches(document: Document) -> bool:
        for path, value in pairs:
            found: Any = document
            for key in path.split("."):
                found = found.get(key, "") if isinstance(found, dict) else ""
            if found != value:
                return False
        return True

    return matches


@contextlib.contextmanager
def api_server(**attributes: Any) -> Iterator[ApiServer]:
    """A server that listens."""
    with ApiServer(**attributes) as server:
        yield server
