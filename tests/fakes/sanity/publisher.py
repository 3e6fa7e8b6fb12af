"""Keeps the correct driver's slices in the API server as they should be."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import urllib.error
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fakes.sanity.driver import RightDriver

Document = dict[str, Any]
VERSIONS = ("v1", "v1beta2", "v1beta1")


class Publisher(threading.Thread):
    """Compares and repairs the slices again and again until it is stopped."""

    seconds = 0.03

    def __init__(self, driver: RightDriver, stopped: threading.Event) -> None:
        super().__init__(name="publisher", daemon=True)
        self.driver = driver
        self.stopped = stopped
        self.version = "v1"
        # What was sent and what the server has kept of it, by slice; a server may drop fields.
        self.sent: dict[int, Document] = {}
        self.kept: dict[int, Document] = {}

    def run(self) -> None:
        while not self.stopped.is_set():
            with contextlib.suppress(OSError, KeyError, http.client.HTTPException):
                version = self.turn()
                self.watch(version)
            self.stopped.wait(self.seconds)

    def turn(self) -> str:
        """Bring the server to the desired state."""
        version, slices = self.listed()
        self.publish(slices)
        return version

    def watch(self, version: str) -> None:
        """Watch from a version on and act on each change; a bookmark is a chance to stop."""
        query = f"resourceslices?watch=true&resourceVersion={version}&{self.selector}"
        with self.driver.open(query, self.version) as events:
            for line in events:
                if self.stopped.is_set():
                    return
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] != "BOOKMARK":
                    self.turn()

    @property
    def selector(self) -> str:
        return "fieldSelector=spec.driver%3Dright.example.com,spec.nodeName%3Dnode"

    def listed(self) -> tuple[str, list[Document]]:
        """The list's version, and the driver's slices on its node."""
        for version in (self.version, *VERSIONS):
            try:
                found = self.driver.request("GET", f"resourceslices?{self.selector}", version=version)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
                continue
            self.version = version
            return found["metadata"]["resourceVersion"], [item for item in found["items"] if self.own(item)]
        return "0", []

    def own(self, item: Document) -> Any:
        return item["spec"]["driver"] == "right.example.com" and item["spec"].get("nodeName") == "node"

    def publish(self, slices: list[Document]) -> None:
        pieces = self.driver.pieces()
        if self.version == "v1beta1":
            pieces = [_basic(piece) for piece in pieces]
        generation = max((item["spec"]["pool"]["generation"] for item in slices), default=0)
        current: dict[int, Document] = {}
        for item in slices:
            index = _index(item["metadata"]["name"])
            if index in current or not 0 <= index < len(pieces) or item["spec"]["pool"]["generation"] < generation:
                self.delete(item)
            else:
                current[index] = item
        changed = [
            index
            for index, piece in enumerate(pieces)
            if index in current and not self.same(index, current[index], piece)
        ]
        if len(current) == len(pieces) and not changed:
            return
        bumped = generation + 1 if len(current) < len(pieces) or len(changed) > 1 else generation
        for index, piece in enumerate(pieces):
            if index not in current or index in changed or bumped != generation:
                self.put(index, self.document(index, piece, bumped, len(pieces), current.get(index)))

    def same(self, index: int, item: Document, piece: Document) -> Any:
        content = {key: item["spec"].get(key) for key in ("devices", "sharedCounters") if item["spec"].get(key)}
        expected = self.kept[index] if self.sent.get(index) == piece else piece
        return content == expected and item["spec"]["pool"]["resourceSliceCount"] == len(self.driver.pieces())

    def document(self, index: int, piece: Document, generation: int, count: int, old: Document | None) -> Document:
        metadata: Document = {
            "generateName": f"{index:05x}-right.example.com-node-",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "node", "uid": "uid-of-node", "controller": True}
            ],
        }
        if old:
            metadata = {key: old["metadata"][key] for key in ("name", "uid", "resourceVersion", "ownerReferences")
                        if key in old["metadata"]}  # fmt: skip
        pool = {"name": "node", "generation": generation, "resourceSliceCount": count}
        spec = {"driver": "right.example.com", "nodeName": "node", "pool": pool, **piece}
        api = f"resource.k8s.io/{self.version}"
        return {"apiVersion": api, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}

    def put(self, index: int, document: Document) -> None:
        name = document["metadata"].get("name")
        path = f"resourceslices/{name}" if name else "resourceslices"
        stored = self.driver.request("PUT" if name else "POST", path, document, self.version)
        self.kept[index] = {
            key: stored["spec"][key] for key in ("devices", "sharedCounters") if stored["spec"].get(key)
        }

    def delete(self, item: Document) -> None:
        self.driver.request("DELETE", f"resourceslices/{item['metadata']['name']}", version=self.version)


def _index(name: str) -> int:
    prefix = name.split("-", maxsplit=1)[0]
    return int(prefix, 16) if re.fullmatch("[0-9a-f]{5}", prefix) else -1


def _basic(piece: Document) -> Document:
    if "devices" not in piece:
        return piece
    devices = [
        {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
        for device in piece["devices"]
    ]
    return {"devices": devices}
