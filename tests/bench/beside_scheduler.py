"""Compares `dranode fit` with kube-scheduler on the same nodes, pods and claims, in CPU seconds of the placing process.

The control plane is built as `make interop-scheduler` does it, from the newest release. kube-scheduler is started when
all objects exist, so that only its own work counts; what it writes through the API server is that server's work. `fit`
reads the same objects from the same server, and from a file. Without Go there are no rows.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.bench.compiled import environment
from tests.bench.dumps import DumpSize, documents
from tests.bench.table import Row
from tests.interop.api import Api, RefusedError
from tests.interop.control_plane import control_plane, scheduler, why_no_control_plane

_RELEASE: Final = "1.37"
_SIZE: Final = DumpSize(nodes=200, waiting=1_000)
_PROGRAM: Final = str(Path(sys.executable).with_name("dranode"))
_PATIENCE: Final = 600
_TICKS: Final = os.sysconf("SC_CLK_TCK")
# In this order, since namespaces must exist before their objects.
_PLURALS: Final = {
    "Namespace": "api/v1/{}namespaces",
    "Node": "api/v1/{}nodes",
    "DeviceClass": "apis/resource.k8s.io/v1/{}deviceclasses",
    "ResourceSlice": "apis/resource.k8s.io/v1/{}resourceslices",
    "ResourceClaim": "apis/resource.k8s.io/v1/{}resourceclaims",
    "Service": "api/v1/{}services",
    "ReplicaSet": "apis/apps/v1/{}replicasets",
    "Pod": "api/v1/{}pods",
}

Document = dict[str, Any]


def bench() -> Iterable[Row]:
    """Each program's CPU seconds for all pods, and its pods per CPU second."""
    if why_no_control_plane():
        return
    with tempfile.TemporaryDirectory(prefix="dranode-bench-") as name:
        folder = Path(name)
        with control_plane(_RELEASE, folder, schedules=False) as api:
            _create(api)
            dump = folder / "dump.json"
            dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(_listed(api))}))
            live, rows = _fit(folder, "--kubeconfig", str(folder / "kubeconfig"))
            read, same = _fit(folder, str(dump))
            assert rows == same, "from the server and from the file"
            placed = sum(row.split()[1] != "-" for row in rows)
            with scheduler(_RELEASE, folder) as process:
                bound, seconds = _settled(api)
                theirs = _cpu(process.pid)
    what = f"{_SIZE.waiting:,} pods with claims, {_SIZE.nodes} nodes of 8 devices"
    goes = "kube-scheduler"
    yield Row(f"fit --kubeconfig: {what}", live, "s of CPU", theirs, goes)
    yield Row(f"fit, from a file: {what}", read, "s of CPU", theirs, goes)
    yield Row("the same: pods in a second of CPU", _SIZE.waiting / read, "1/s", _SIZE.waiting / theirs, goes)
    yield Row("kube-scheduler by the clock", _SIZE.waiting / seconds, "1/s")
    # The counts may differ: ties among nodes are broken at random, and pods of one second have no order.
    yield Row("pods that fit", placed, "", bound, goes)


def _create(api: Api) -> None:
    """Create all objects, and the claims that pods name, since no controller generates them from templates here."""
    by_kind: dict[str, list[tuple[str, Document]]] = defaultdict(list)
    for document in documents(_SIZE):
        metadata = {key: document["metadata"][key] for key in ("name", "labels") if key in document["metadata"]}
        made: Document = {**document, "metadata": metadata}
        if document["kind"] == "Pod":
            (status,) = document["status"]["resourceClaimStatuses"]
            entry = {"name": status["name"], "resourceClaimName": status["resourceClaimName"]}
            made["spec"] = {**document["spec"], "resourceClaims": [entry]}
        namespace = document["metadata"].get("namespace")
        if document["kind"] == "ReplicaSet":
            labels = document["spec"]["selector"]["matchLabels"]
            template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "work", "image": "none"}]}}
            made["spec"] = {**document["spec"], "template": template}
        if document["kind"] in _PLURALS:
            by_kind[document["kind"]].append((_path(document["kind"], namespace), made))
    for kind in _PLURALS:
        for refused in api.create_all(by_kind[kind]):
            if isinstance(refused, RefusedError) and "AlreadyExists" not in str(refused):
                raise refused


def _path(kind: str, namespace: str | None = None) -> str:
    return "/" + _PLURALS[kind].format(f"namespaces/{namespace}/" if namespace else "")


def _listed(api: Api) -> Iterable[Document]:
    for kind in _PLURALS:
        answer = api.send("GET", _path(kind))
        yield from ({**each, "kind": kind, "apiVersion": answer["apiVersion"]} for each in answer["items"])


def _fit(folder: Path, *words: str) -> tuple[float, list[str]]:
    """The command's CPU seconds, and its line for each pod."""
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen([_PROGRAM, "fit", *words], stdout=out, env=environment())
        _, status, usage = os.wait4(process.pid, 0)
    # Some pods may fit nowhere, which is exit status 1.
    assert os.waitstatus_to_exitcode(status) in (0, 1)
    said = (folder / "out").read_text().splitlines()
    # The table of all pods ends with an empty line.
    table = itertools.takewhile(str.strip, said)
    return usage.ru_utime + usage.ru_stime, [line for line in table if line.startswith("team-")]


def _settled(api: Api) -> tuple[int, float]:
    """Return how many pods were bound once all had been tried, and the time since the first attempt."""
    began = time.monotonic()
    first = 0.0
    while True:
        pods = api.send("GET", _path("Pod"))["items"]
        bound = sum("nodeName" in pod["spec"] for pod in pods)
        looked_at = bound + sum("nodeName" not in pod["spec"] and "conditions" in pod["status"] for pod in pods)
        now = time.monotonic()
        first = first or (now if looked_at else 0.0)
        if looked_at == len(pods):
            return bound, now - first
        if now - began > _PATIENCE:
            raise TimeoutError(f"{looked_at} of {len(pods)} pods were looked at in {_PATIENCE} s")
        time.sleep(0.5)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
