"""`kubectl dranode` on a cluster of 1,000 nodes and 20,000 devices: the process's time and CPU, start to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.bench.table import Row
from tests.fakes.pods import CPU, GPU, claim_spec, cpu_device, cpus, request, result

_NODES = 1000
_GPUS = 18
_CLAIMS = 4000
_SECONDS = 2.0
# What real objects carry and nobody here reads: who wrote which field, and the images of a node.
_FIELDS: dict[str, dict[str, dict[str, str]]] = {
    f"f:{name}": {f"f:{part}": {} for part in range(9)} for name in ("metadata", "spec", "status", "labels")
}
_MANAGED = [{"manager": name, "operation": "Update", "fieldsV1": _FIELDS} for name in ("kube-scheduler", "kubelet")]
_IMAGES = [{"names": [f"registry.example.com/team/app-{number}:v1"], "sizeBytes": number} for number in range(50)]
_COMMANDS = (("claims", "-A"), ("devices",), ("nodes",), ("explain", "pending"))


def _documents() -> dict[str, bytes]:
    """The answers of the server by path, encoded once."""
    names = [f"worker-{number:04}" for number in range(_NODES)]
    slices = [document for name in names for document in _slices(name)]
    claims = [_claim(number, names[number % _NODES]) for number in range(_CLAIMS)]
    claims.append({"metadata": _metadata("pending-gpu"), "spec": claim_spec(request(device_class=GPU, count=20))})
    pods = [_pod(f"pod-{number}", f"claim-{number}", names[number % _NODES]) for number in range(_CLAIMS)]
    waiting = _pod("pending", "pending-gpu", "")
    classes = [_class(driver) for driver in (CPU, GPU)]
    root, core = "/apis/resource.k8s.io/v1", "/api/v1"
    return {
        "/apis/resource.k8s.io": json.dumps({"versions": [{"version": "v1"}]}).encode(),
        "/version": json.dumps({"gitVersion": "v1.37.1"}).encode(),
        f"{root}/resourceslices": _list(slices),
        f"{root}/resourceclaims": _list(claims),
        f"{root}/deviceclasses": _list(classes),
        f"{root}/devicetaintrules": _list([]),
        f"{root}/namespaces/default/resourceclaims/pending-gpu": json.dumps(
            {**claims[-1], "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        ).encode(),
        f"{core}/pods": _list([*pods, waiting], "v1"),
        f"{core}/pods?pending": _list([waiting], "v1"),
        f"{core}/namespaces/default/pods/pending": json.dumps(waiting).encode(),
        f"{core}/namespaces/default/events": _list([], "v1"),
        f"{core}/nodes": _list([_node(name) for name in names], "v1"),
    }


def _list(items: list[Any], version: str = "resource.k8s.io/v1") -> bytes:
    return json.dumps({"apiVersion": version, "items": items}).encode()


def _metadata(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "managedFields": _MANAGED,
        **more,
    }


def _slices(node: str) -> Iterator[dict[str, Any]]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    numa = [{"resource.kubernetes.io/numaNode": {"int": number}} for number in range(2)]
    cpu = [cpu_device(f"cpudevnuma00{number}", "64", attributes=numa[number]) for number in range(2)]
    gpus = [{"name": f"gpu-{number}", "attributes": numa[number % 2]} for number in range(_GPUS)]
    for driver, devices in ((CPU, cpu), (GPU, gpus)):
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
        yield {"metadata": {"name": f"00000-{driver}-{node}-abcde"}, "spec": spec}


def _claim(number: int, node: str) -> dict[str, Any]:
    if number % 2:
        given = result("cpudevnuma000", CPU, node, shareID=f"s{number}", consumedCapacity={f"{CPU}/cpu": "4"})
    else:
        given = result(f"gpu-{number // _NODES}", GPU, node)
    user = {"resource": "pods", "name": f"pod-{number}", "uid": f"uid-pod-{number}"}
    status = {"allocation": {"devices": {"results": [given]}}, "reservedFor": [user]}
    return {"metadata": _metadata(f"claim-{number}"), "spec": claim_spec(cpus("4")), "status": status}


def _pod(name: str, claim: str, node: str) -> dict[str, Any]:
    containers = [{"name": "main", "image": "app", "resources": {"claims": [{"name": "c"}]}}]
    spec = {"containers": containers, "resourceClaims": [{"name": "c", "resourceClaimName": claim}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": _metadata(name), "spec": spec, "status": {"phase": "Running" if node else "Pending"}}


def _node(name: str) -> dict[str, Any]:
    ready = [{"type": "Ready", "status": "True"}]
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}, "managedFields": _MANAGED}
    return {"metadata": metadata, "status": {"conditions": ready, "images": _IMAGES}}


def _class(driver: str) -> dict[str, Any]:
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
    return {"metadata": {"name": driver}, "spec": {"selectors": selectors}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers: dict[str, bytes]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Say nothing."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        body = self.answers.get(f"{path}?pending" if "Pending" in query else path)
        self.send_response(200 if body is not None else 404)
        body = body if body is not None else b'{"kind":"Status","details":{"name":"none"},"message":"not found"}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def bench() -> Iterator[Row]:
    """Each command once to warm the disk, then once to measure."""
    _Handler.answers = _documents()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "config"
        kubeconfig.write_text(json.dumps(_kubeconfig(server.server_address[1])))
        for command in _COMMANDS:
            _run(command, kubeconfig)
            wall, cpu = _run(command, kubeconfig)
            name = f"kubectl dranode {' '.join(command)}, {_NODES} nodes, {_NODES * (_GPUS + 2)} devices"
            yield Row(name, wall, "s", target=f"under {_SECONDS:g} s", ok=wall < _SECONDS)
            yield Row(f"{name}: CPU", cpu, "s")
    server.shutdown()


def _run(command: tuple[str, ...], kubeconfig: Path) -> tuple[float, float]:
    program = Path(sys.executable).with_name("kubectl-dranode")
    begun, before = time.perf_counter(), os.times()
    done = subprocess.run([program, *command, "--kubeconfig", kubeconfig], stdout=subprocess.PIPE, check=False)
    after = os.times()
    assert done.stdout, command
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begun, cpu


def _kubeconfig(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    }
