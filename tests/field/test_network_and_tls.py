"""Bug reports of networks, proxies and certificates that behave differently from those of a laboratory."""

import base64
import contextlib
import socket
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dranode.driver.kube.client import APIRequest, Client, Timing
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.server import Credentials
from tests.fakes.apiserver import CERTIFICATES
from tests.fakes.kubeconfig import asked_server, in_base64, tunnel_proxy, write_kubeconfig

GET = APIRequest("GET", "/api/v1/nodes/node", "get nodes")
BODY = b'{"metadata":{"name":"node"}}'


class Forgetful(socketserver.ThreadingTCPServer):
    """A load balancer that forgets its connections: it still accepts data on them, but never answers."""

    daemon_threads = True
    forgotten: frozenset[socket.socket] = frozenset()

    def __init__(self, together: int) -> None:
        self.together = threading.Barrier(together)
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Answering)

    def forget(self) -> None:
        self.forgotten = frozenset(self.connections)


class _Answering(socketserver.BaseRequestHandler):
    server: Forgetful

    def handle(self) -> None:
        self.server.connections.add(self.request)
        while self.request.recv(65536):
            if self.request not in self.server.forgotten:
                with contextlib.suppress(threading.BrokenBarrierError):
                    self.server.together.wait(1.0)
                self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY))


@contextlib.contextmanager
def forgetful(together: int) -> Iterator[Forgetful]:
    with Forgetful(together) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def client_of(folder: Path, port: int) -> Client:
    kubeconfig = write_kubeconfig(folder, port, {}, scheme="http")
    return Client(Connection(Credentials(str(kubeconfig)), retries=True), timing=Timing(dice=lambda: 0.0), retries=True)


def test_connections_that_a_load_balancer_forgot_cost_one_timeout_and_not_one_each(tmp_path: Path) -> None:
    with forgetful(6) as server:
        client = client_of(tmp_path, server.server_address[1])
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda _: client.send(GET), range(6)))
        assert len(server.connections) == 6
        server.forget()
        began = time.monotonic()
        assert client.send(GET)["metadata"]["name"] == "node"
        assert time.monotonic() - began < 10


def get(kubeconfig: Path) -> Any:
    return Client(Connection(Credentials(str(kubeconfig)))).send(GET)["metadata"]["name"]


@pytest.mark.parametrize(
    "before",
    [
        "# Autoridad Raíz\n".encode(),
        "# Autoridad Raíz\n".encode("latin-1"),
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
    ],
    ids=["comment", "comment that is not UTF-8", "damaged certificate", "revocations"],
)
@pytest.mark.parametrize("as_data", [True, False])
def test_a_ca_bundle_may_contain_more_than_certificates(tmp_path: Path, before: bytes, *, as_data: bool) -> None:
    bundle = before + (CERTIFICATES / "ca.crt").read_bytes().replace(b"\n", b"\r\n")
    (tmp_path / "bundle.pem").write_bytes(bundle)
    cluster = (
        {"certificate-authority-data": base64.b64encode(bundle).decode()}
        if as_data
        else {"certificate-authority": "bundle.pem"}
    )
    with asked_server() as seen:
        assert get(write_kubeconfig(tmp_path, seen.port, {}, cluster=cluster)) == "node"


def test_a_ca_bundle_without_a_certificate_is_refused(tmp_path: Path) -> None:
    cluster = {"certificate-authority-data": base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()}
    with asked_server() as seen, pytest.raises(ApiError, match="there is no certificate in PEM"):
        get(write_kubeconfig(tmp_path, seen.port, {}, cluster=cluster))
    assert not seen.headers


def test_a_host_name_with_a_trailing_dot_matches_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest, **more: resolve("127.0.0.1", *rest, **more))
    with asked_server() as seen:
        cluster = {
            "server": f"https://localhost.:{seen.port}",
            "certificate-authority-data": in_base64("ca.crt"),
        }
        assert get(write_kubeconfig(tmp_path, seen.port, {}, cluster=cluster)) == "node"


def test_a_client_certificate_needs_no_writable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    user = {"client-certificate-data": in_base64("server.crt"), "client-key-data": in_base64("server.key")}
    with asked_server(client_certificate=True) as seen:
        assert get(write_kubeconfig(tmp_path, seen.port, user)) == "node"
    assert seen.certificates


def test_an_empty_token_file_is_named_and_no_anonymous_request_is_sent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with asked_server() as seen, pytest.raises(ApiError, match=r"the token in .*token is empty"):
        get(write_kubeconfig(tmp_path, seen.port, {"tokenFile": "token"}))
    assert not seen.headers


def test_a_tunnel_request_has_a_user_agent_which_some_proxies_require(tmp_path: Path) -> None:
    with asked_server() as seen, tunnel_proxy() as (port, heads):
        cluster = {"proxy-url": f"http://127.0.0.1:{port}", "certificate-authority-data": in_base64("ca.crt")}
        assert get(write_kubeconfig(tmp_path, seen.port, {}, cluster=cluster)) == "node"
    assert "\r\nUser-Agent: dranode\r\n" in heads[0]


def test_unresponsive_addresses_leave_time_for_one_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several control plane nodes behind one name, two of which are switched off."""
    with contextlib.ExitStack() as opened, asked_server(tls=False) as seen:
        # The kernel drops connections to a socket whose queue is full, which looks like a machine that is switched off.
        full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filling = opened.enter_context(socket.socket())
            filling.settimeout(0)
            filling.connect_ex(full.getsockname())
        off, answering = (socket.AF_INET, socket.SOCK_STREAM, 6, "", full.getsockname()), ("127.0.0.1", seen.port)
        on = (socket.AF_INET, socket.SOCK_STREAM, 6, "", answering)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [off, off, on])
        kubeconfig = write_kubeconfig(tmp_path, seen.port, {}, scheme="http")
        driver = Client(Connection(Credentials(str(kubeconfig)), retries=True), retries=True)
        assert driver.send(GET, seconds=5.0, patient=False)["metadata"]["name"] == "node"


def test_a_name_server_that_never_answers_is_bounded_by_the_requests_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, over = socket.getaddrinfo, threading.Event()

    def silent(host: str, port: int, *, type: int, flags: int = 0) -> Any:  # noqa: A002 - getaddrinfo's name
        if flags & socket.AI_NUMERICHOST:
            return resolve(host, port, type=type, flags=flags)
        over.wait(10.0)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    cluster = {"server": "http://api.example:6443"}
    kubeconfig = write_kubeconfig(tmp_path, 6443, {}, scheme="http", cluster=cluster)
    driver = Client(Connection(Credentials(str(kubeconfig)), retries=True), retries=True)
    start = time.monotonic()
    with pytest.raises(
        ApiError, match=r"no name server has answered for api\.example in time; check /etc/resolv\.conf"
    ):
        driver.send(GET, seconds=0.5, patient=False)
    assert time.monotonic() - start < 5.0
    over.set()
