"""What every driver's Prepare needs: a gRPC exchange, a GET, a durable commit and two small files."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import grpc

from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.server import Credentials
from dranode.proto import dra_v1_pb2 as api
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub, add_DRAPluginServicer_to_server
from tests.bench.peer.surroundings import uid

_BODY: Final = b"x" * 600


@contextlib.contextmanager
def echo(folder: Path) -> Iterator[Callable[[int], None]]:
    """Yield a NodePrepareResources call to a grpcio server that does nothing."""
    device = api.Device(request_names=["r"], pool_name="node", device_name="cpudevmachine", cdi_device_ids=["k/c=d"])

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        del context
        claim = request.claims[0].uid
        return api.NodePrepareResourcesResponse(claims={claim: api.NodePrepareResourceResponse(devices=[device])})

    server = grpc.server(futures.ThreadPoolExecutor(4))
    add_DRAPluginServicer_to_server(SimpleNamespace(NodePrepareResources=answer, NodeUnprepareResources=answer), server)
    server.add_insecure_port(f"unix:{folder}/echo.sock")
    server.start()
    with grpc.insecure_channel(f"unix:{folder}/echo.sock") as channel:
        prepare = DRAPluginStub(channel).NodePrepareResources

        def once(number: int) -> None:
            claim = api.Claim(namespace="default", name=f"claim-{number}", uid=uid(number))
            prepare(api.NodePrepareResourcesRequest(claims=[claim]), timeout=10)

        yield once
    server.stop(1)


def get(kubeconfig: Path) -> Callable[[int], None]:
    """Return a GET of the first claim on a persistent connection."""
    client = Client(Connection(Credentials(str(kubeconfig))))
    request = APIRequest("GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/claim-0", "get the claim")

    def once(number: int) -> None:
        del number
        client.send(request)

    return once


@contextlib.contextmanager
def commit(folder: Path) -> Iterator[Callable[[int], None]]:
    """Yield a durable commit of one SQLite row."""
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t (uid TEXT PRIMARY KEY, body BLOB)")

    def once(number: int) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (uid(number), _BODY))
        db.execute("COMMIT")

    yield once
    db.close()


def files(folder: Path) -> Callable[[int], None]:
    """Return a function that writes and renames two small files without flushing them."""

    def once(number: int) -> None:
        for file in ("spec", "metadata"):
            temporary = folder / f"{file}.tmp"
            temporary.write_bytes(_BODY[:200])
            temporary.replace(folder / f"{number}-{file}.json")

    return once
