"""Kubeconfigs and their targets: a server that records how it was asked, and a proxy."""

import base64
import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.apiserver import CERTIFICATES


@dataclass
class AskedServer:
    """What a server received: the headers of every request, each with all its values, and the clients' certificates."""

    port: int = 0
    headers: list[list[tuple[str, str]]] = field(default_factory=list)
    certificates: list[Any] = field(default_factory=list)

    def last(self, name: str) -> list[str]:
        return [value for key, value in self.headers[-1] if key.lower() == name.lower()]


@contextlib.contextmanager
def asked_server(
    *, tls: bool = True, client_certificate: bool = False, refuse: str = "", certificate: str = "server.crt"
) -> Iterator[AskedServer]:
    """An HTTP server that answers every request, with 401 if the token is `refuse`."""
    seen = AskedServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
            """Log nothing."""

        def do_GET(self) -> None:
            seen.headers.append(list(self.headers.items()))
            if tls:
                seen.certificates.append(self.request.getpeercert())
            refused = refuse and self.headers.get("Authorization") == f"Bearer {refuse}"
            body = b'{"kind":"Status","message":"no"}' if refused else b'{"metadata":{"name":"node"}}'
            self.send_response(401 if refused else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Log nothing: clients that do not trust the server hang up."""

    listening = Quiet(("127.0.0.1", 0), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATES / certificate, CERTIFICATES / "server.key")
        if client_certificate:
            context.load_verify_locations(CERTIFICATES / "ca.crt")
            context.verify_mode = ssl.CERT_REQUIRED
        listening.socket = context.wrap_socket(listening.socket, server_side=True, do_handshake_on_connect=False)
    seen.port = listening.server_address[1]
    threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    yield seen
    listening.shutdown()
    listening.server_close()


def in_base64(file: str) -> str:
    return base64.b64encode((CERTIFICATES / file).read_bytes()).decode()


def write_kubeconfig(
    folder: Path, port: int, user: dict[str, Any], *, scheme: str = "https", cluster: dict[str, Any] | None = None
) -> Path:
    cluster = cluster or {}
    trusted = {} if scheme == "http" or cluster else {"certificate-authority": str(CERTIFICATES / "ca.crt")}
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "preferences": {},
        "clusters": [{"name": "c", "cluster": {"server": f"{scheme}://127.0.0.1:{port}", **trusted, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


@contextlib.contextmanager
def tunnel_proxy(*, tls: bool = False, upstream: int = 0) -> Iterator[tuple[int, list[str]]]:
    """A proxy for tunnels and for plain HTTP requests; yields the heads of the requests that came.

    With `upstream` it takes every name for this machine's port of that number.
    """
    heads: list[str] = []
    listening = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.crt", CERTIFICATES / "server.key")

    def relay(accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            client = opened.enter_context(accepted)
            if tls:
                client = opened.enter_context(context.wrap_socket(accepted, server_side=True))
            head = b""
            while b"\r\n\r\n" not in head and (piece := client.recv(1 << 16)):
                head += piece
            heads.append(head.decode())
            host, _, port = head.split()[1].decode().removeprefix("http://").partition("/")[0].rpartition(":")
            address = ("127.0.0.1", upstream) if upstream else (host, int(port))
            server = opened.enter_context(socket.create_connection(address))
            if head.startswith(b"CONNECT"):
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                server.sendall(head)
            _pump(client, server)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=relay, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()[1], heads
    listening.close()


def _pump(client: socket.socket, server: socket.socket) -> None:
    """Copy bytes both ways until one side ends, in one thread, since a TLS socket may be used by one thread only."""
    while True:
        pending = isinstance(client, ssl.SSLSocket) and client.pending()
        readable = [client] if pending else select.select([client, server], [], [])[0]
        for source in readable:
            piece = source.recv(1 << 16)
            if not piece:
                return
            (server if source is client else client).sendall(piece)
