"""A small, correct driver in this process, started and killed like a program. Faulty drivers override one method."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import grpc

from dranode.proto import dra_v1_pb2, dra_v1beta1_pb2, drahealth_v1_pb2, drahealth_v1alpha1_pb2
from dranode.proto import pluginregistration_v1_pb2 as registration
from dranode.sanity.driver_link import ProcessUsage
from tests.fakes.grpc_server import service
from tests.fakes.sanity.files import Files
from tests.fakes.sanity.publisher import VERSIONS, Publisher

NAME = "right.example.com"
KIND = "example.com/light"
CONFIGURATIONS = (
    {"apiVersion": "right.example.com/v1", "kind": "Light", "color": "red"},
    {"apiVersion": "right.example.com/v1", "kind": "Light", "color": "green"},
)
Document = dict[str, Any]


class Refused(Exception):  # noqa: N818 - an answer for a claim
    """The claim is not prepared."""


class Instance:
    """One running instance: its servers, its sockets, its publisher."""

    def __init__(self, driver: RightDriver, name: str) -> None:
        suffix = f"-{name}" if name else ""
        self.endpoint = driver.folder / "plugins" / f"dra{suffix}.sock"
        self.registration = driver.folder / "plugins_registry" / f"right{suffix}-reg.sock"
        self.stopped = threading.Event()
        self.servers = driver.serve(self)
        self.publisher = driver.publishes(self.stopped)
        self.publisher.start()

    def kill(self) -> None:
        """Leave everything behind, as SIGKILL does."""
        self.stopped.set()
        kept = {socket: socket.exists() for socket in (self.endpoint, self.registration)}
        for server in self.servers:
            server.stop(0).wait()
        for socket, existed in kept.items():
            # gRPC removes its sockets; a killed program's sockets stay.
            if existed and not socket.exists():
                _leave(socket)
        self.publisher.join()


class RightDriver:
    """The driver; a `DriverProcess` of the suite.

    Attributes:
        folder: the folder that the suite calls {kubelet}.
        server: the API server's URL.
        lock: serializes the instances, as a lock file does.
    """

    versions: ClassVar[tuple[str, ...]] = (
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    )
    rolling = True
    workers = 12

    def __init__(self, folder: Path, server: str) -> None:
        self.folder = folder
        self.server = server
        self.lock = threading.RLock()
        self.files = Files(folder)
        self.instances: dict[str, Instance] = {}
        self.status: int | None = None
        self.used = ProcessUsage(cpu=1.0, descriptors=20, threads=4, resident=30 << 20, zombies=0)

    # --- the process ---

    def start(self, instance: str = "") -> None:
        (self.folder / "plugins").mkdir(exist_ok=True)
        self.status = None
        self.instances[instance] = Instance(self, instance)

    def kill(self, instance: str = "") -> None:
        if running := self.instances.pop(instance, None):
            running.kill()

    def terminate(self, seconds: float, instance: str = "") -> int | None:
        del seconds
        running = self.instances.pop(instance)
        running.kill()
        for socket in self.leftovers(running):
            socket.unlink(missing_ok=True)
        return 0

    def leftovers(self, running: Instance) -> list[Path]:
        return [running.registration, running.endpoint]

    def exited(self, instance: str = "") -> int | None:
        del instance
        return self.status

    def log(self) -> str:
        return ""

    def usage(self, instance: str = "") -> ProcessUsage | None:
        """A process without growth, since the real one is the tests' own."""
        del instance
        return self.used

    def answered_claim(self) -> None:
        """Called after a claim was prepared and unprepared; a leaking driver keeps something here."""

    def close(self) -> None:
        for instance in tuple(self.instances):
            self.kill(instance)

    def publishes(self, stopped: threading.Event) -> Publisher:
        return Publisher(self, stopped)

    # --- the sockets ---

    def serve(self, instance: Instance) -> list[grpc.Server]:
        plugin = self._server(instance.endpoint, [*self.dra_services(), *self.health_services(instance)])
        methods = {"GetInfo": lambda _request, _context: self.info(instance), "NotifyRegistrationStatus": self.notified}
        registrar = self._server(instance.registration, [service(registration.DESCRIPTOR, "Registration", methods)])
        return [plugin, registrar]

    def _server(self, socket: Path, services: list[Any]) -> grpc.Server:
        socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(self.workers), handlers=services)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        return server

    def dra_services(self) -> list[Any]:
        def methods(api: Any) -> Any:
            return {
                "NodePrepareResources": lambda request, context: self.prepare_call(api, request, context),
                "NodeUnprepareResources": lambda request, context: self.unprepare_call(api, request, context),
            }

        return [service(api.DESCRIPTOR, "DRAPlugin", methods(api)) for api in (dra_v1_pb2, dra_v1beta1_pb2)]

    def health_services(self, instance: Instance) -> list[Any]:
        def methods(api: Any) -> Any:
            return {"NodeWatchResources": lambda _request, context: self.watch(api, context, instance)}

        modules = (drahealth_v1_pb2, drahealth_v1alpha1_pb2)
        return [service(api.DESCRIPTOR, "DRAResourceHealth", methods(api)) for api in modules]

    def info(self, instance: Instance) -> Any:
        return registration.PluginInfo(
            type="DRAPlugin", name=NAME, endpoint=str(instance.endpoint), supported_versions=self.versions
        )

    def notified(self, request: Any, context: Any) -> Any:
        if not request.plugin_registered:
            context.abort(grpc.StatusCode.INTERNAL, f"not registered: {request.error}")
        return registration.RegistrationStatusResponse()

    # --- Prepare ---

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        del context
        with self.lock:
            return api.NodePrepareResourcesResponse(
                claims={claim.uid: self.prepare_one(api, claim) for claim in request.claims}
            )

    def prepare_one(self, api: Any, claim: Any) -> Any:
        try:
            devices = self.prepare(claim)
        except Refused as reason:
            return api.NodePrepareResourceResponse(error=f"claim {claim.namespace}/{claim.name}: {reason}")
        return api.NodePrepareResourceResponse(devices=[self.answered(api, device) for device in devices])

    def answered(self, api: Any, device: Document) -> Any:
        shared = {"share_id": device["share"]} if device.get("share") and api is dra_v1_pb2 else {}
        return api.Device(
            request_names=[self.request_name(device["request"])],
            pool_name=device["pool"],
            device_name=device["device"],
            cdi_device_ids=device["cdi"],
            **shared,
        )

    def request_name(self, request: str) -> str:
        return request.partition("/")[0]

    def prepare(self, claim: Any) -> list[Document]:
        """Return the claim's devices, from the record if there is one."""
        record = self.records().get(claim.uid)
        if record is None:
            document = self.checked(claim, self.claim(claim))
            record = {"claim": document, "devices": self.grant(document)}
            self.save({**self.records(), claim.uid: record})
        self.write(record)
        return list(record["devices"])

    def checked(self, claim: Any, document: Document) -> Document:
        if document["metadata"]["uid"] != claim.uid:
            raise Refused(f"has the UID {document['metadata']['uid']}")
        if not document.get("status", {}).get("allocation"):
            raise Refused("is not allocated")
        return document

    def claim(self, claim: Any) -> Document:
        try:
            return self.get(f"namespaces/{claim.namespace}/resourceclaims/{claim.name}")
        except urllib.error.HTTPError as error:
            raise Refused(f"cannot be had: {error.code}") from error
        except OSError as error:
            raise Refused(f"cannot be had: {error}") from error

    def grant(self, document: Document) -> list[Document]:
        uid = document["metadata"]["uid"]
        granted: list[Document] = []
        for result in self.own_results(document):
            self.check_result(result, uid)
            granted.append(
                {
                    "request": result["request"],
                    "pool": result["pool"],
                    "device": result["device"],
                    "share": result.get("shareID"),
                    "color": self.color(result, document),
                    "cdi": [f"{KIND}={uid}_{len(granted)}"],
                }
            )
        for request in dict.fromkeys(self.request_name(device["request"]) for device in granted):
            first = next(device for device in granted if self.request_name(device["request"]) == request)
            first["cdi"].append(f"{NAME}/metadata={uid}_{request}")
        return granted

    def own_results(self, document: Document) -> list[Document]:
        results = document["status"]["allocation"]["devices"].get("results", [])
        return [result for result in results if result["driver"] == NAME]

    def check_result(self, result: Document, uid: str) -> None:
        if result["pool"] != "node" or result["device"] not in self.device_names():
            raise Refused(f"there is no device {result['pool']}/{result['device']}")
        if not result.get("adminAccess") and not result.get("shareID") and self.holders(result["device"]) - {uid}:
            raise Refused(f"device {result['device']} is held by another claim")

    def holders(self, device: str) -> set[str]:
        return {
            uid
            for uid, record in self.records().items()
            for result in self.own_results(record["claim"])
            if result["device"] == device and not result.get("adminAccess")
        }

    def device_names(self) -> set[str]:
        return {device["name"] for piece in self.pieces() for device in piece.get("devices", ())}

    def color(self, result: Document, document: Document) -> str:
        color = "none"
        for entry in self.configurations(document):
            if entry["opaque"]["driver"] == NAME and self.applies(entry, result["request"]):
                color = self.decoded(entry["opaque"]["parameters"])
        return color

    def configurations(self, document: Document) -> list[Document]:
        return list(document["status"]["allocation"]["devices"].get("config", []))

    def applies(self, entry: Document, request: str) -> bool:
        names = entry.get("requests")
        return not names or request in names or request.partition("/")[0] in names

    def decoded(self, parameters: Document) -> str:
        if parameters.get("kind") != "Light" or set(parameters) != {"apiVersion", "kind", "color"}:
            raise Refused(f"parameters {json.dumps(parameters)} are not a Light")
        return str(parameters["color"])

    # --- Unprepare ---

    def unprepare_call(self, api: Any, request: Any, context: Any) -> Any:
        del context
        with self.lock:
            return api.NodeUnprepareResourcesResponse(
                claims={claim.uid: self.unprepare_one(api, claim) for claim in request.claims}
            )

    def unprepare_one(self, api: Any, claim: Any) -> Any:
        self.unprepare(claim)
        self.answered_claim()
        return api.NodeUnprepareResourceResponse()

    def unprepare(self, claim: Any) -> None:
        self.files.remove(claim.uid)
        records = self.records()
        if records.pop(claim.uid, None) is not None:
            self.save(records)

    # --- what is written ---

    def write(self, record: Document) -> None:
        self.files.write(self.spec(record), record["claim"], self.metadata(record), self.container_path(record))

    def spec(self, record: Document) -> Document:
        devices = [
            {
                "name": device["cdi"][0].partition("=")[2],
                "containerEdits": {"env": [f"LIGHT_{index}={device['device']}:{device['color']}"]},
            }
            for index, device in enumerate(record["devices"])
        ]
        return {"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}

    def metadata(self, record: Document) -> dict[str, list[Document]]:
        """The documents of each request's file (KEP-5304)."""
        claim = record["claim"]["metadata"]
        names = list(dict.fromkeys(self.request_name(device["request"]) for device in record["devices"]))
        return {
            name: [self.metadata_document(version, claim, name, record) for version in ("v1beta1", "v1alpha1")]
            for name in names
        }

    def metadata_document(self, version: str, claim: Document, name: str, record: Document) -> Document:
        devices = [device for device in record["devices"] if self.request_name(device["request"]) == name]
        return {
            "apiVersion": f"metadata.resource.k8s.io/{version}",
            "kind": "DeviceMetadata",
            "metadata": {"name": claim["name"], "namespace": claim["namespace"], "uid": claim["uid"], "generation": 1},
            "requests": [
                {
                    "name": devices[0]["request"],
                    "devices": [
                        {
                            "driver": NAME,
                            "pool": device["pool"],
                            "name": device["device"],
                            "attributes": {"n": {"int": 1}},
                        }
                        for device in devices
                    ],
                }
            ],
        }

    def container_path(self, record: Document) -> str:
        metadata = record["claim"]["metadata"]
        pod_name = metadata.get("annotations", {}).get("resource.kubernetes.io/pod-claim-name")
        if pod_name:
            return f"/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/{pod_name}"
        return f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{metadata['name']}"

    # --- the record ---

    def records(self) -> dict[str, Document]:
        try:
            return dict(json.loads((self.folder / "plugins" / "state.json").read_text()))
        except FileNotFoundError:
            return {}

    def save(self, records: dict[str, Document]) -> None:
        temporary = self.folder / "plugins" / "state.tmp"
        temporary.write_text(json.dumps(records))
        temporary.replace(self.folder / "plugins" / "state.json")

    # --- slices ---

    def pieces(self) -> list[Document]:
        """The contents of the slices: devices, counters, partitions."""
        exclusive = [
            {
                "name": f"dev-{index}",
                "attributes": {"index": {"int": index}, "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}},
            }
            for index in range(4)
        ]
        policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
        shared = {
            "name": "shared-0",
            "allowMultipleAllocations": True,
            "capacity": {"slots": {"value": "40", "requestPolicy": policy}},
            "taints": [{"key": "right.example.com/note", "effect": "None"}],
        }
        counters = {"name": "board", "counters": {"parts": {"value": "2"}}}
        parts = [
            {
                "name": f"part-{index}",
                "consumesCounters": [{"counterSet": "board", "counters": {"parts": {"value": "1"}}}],
            }
            for index in range(3)
        ]
        return [{"devices": [*exclusive, shared]}, {"sharedCounters": [counters]}, {"devices": parts}]

    # --- health ---

    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        while not instance.stopped.is_set() and context.is_active():
            yield self.health(api)
            instance.stopped.wait(0.05)

    def health(self, api: Any) -> Any:
        return api.NodeWatchResourcesResponse(
            devices=[self.device_health(api, name) for name in sorted(self.device_names())]
        )

    def device_health(self, api: Any, name: str) -> Any:
        return api.DeviceHealth(
            device=api.DeviceIdentifier(pool_name="node", device_name=name),
            health=api.HEALTHY,
            last_updated_time=1_790_000_000,
            health_check_timeout_seconds=30,
            message="fine",
        )

    # --- the API server ---

    def get(self, path: str) -> Document:
        for version in VERSIONS:
            try:
                return self.request("GET", path, version=version)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
                missing = error
        raise missing

    def request(self, method: str, path: str, body: Any = None, version: str = "v1") -> Document:
        with self.open(path, version, method, body) as answer:
            return dict(json.load(answer))

    def open(self, path: str, version: str = "v1", method: str = "GET", body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.server}/apis/resource.k8s.io/{version}/{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)  # noqa: S310
        try:
            return urllib.request.urlopen(request, timeout=5)  # noqa: S310 - the suite's own server
        except urllib.error.HTTPError as error:
            error.close()
            raise


class DriverWithoutHealth(RightDriver):
    """A correct driver that reports no health."""

    versions = RightDriver.versions[:2]

    def health_services(self, instance: Instance) -> list[Any]:
        return super().health_services(instance)[:0]


def _leave(socket: Path) -> None:
    import socket as sockets  # noqa: PLC0415

    with contextlib.closing(sockets.socket(sockets.AF_UNIX)) as stale:
        stale.bind(str(socket))
