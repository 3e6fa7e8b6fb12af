"""Reports of networks, proxies and certificates that behave as those of a laboratory do not."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dranode.driver.kube.client import APIRequest, Client, Timing
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.server import Credentials
from tests.fakes.kubeconfig import write_kubeconfig

GET = APIRequest("GET", "/api/v1/nodes/node", "get nodes")
BODY = b'{"metadata":{"name":"node"}}'


class Forgetful(socketserver.ThreadingTCPServer):
    """A load balancer that forgets its connections: it takes what comes on them, and nothing comes back."""

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


def test_connections_that_a_load_balancer_forgot_cost_one_answers_time_and_not_one_each(tmp_path: Path) -> None:
    with forgetful(6) as server:
        client = client_of(tmp_path, server.server_address[1])
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda _: client.send(GET), range(6)))
        assert len(server.connections) == 6
        server.forget()
        began = time.monotonic()
        assert client.send(GET)["metadata"]["name"] == "node"
        assert time.monotonic() - began < 10
