"""A minimal client of a real API server: JSON, one connection, and watches."""

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

Document = dict[str, Any]
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TLS.check_hostname = False
_TLS.verify_mode = ssl.CERT_NONE
_PATIENCE = 60.0
_AT_ONCE = 4


class RefusedError(Exception):
    """The server refused a request; the text is the server's."""


class Api:
    """A client of a server on a port of this machine."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self._token = token
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPSConnection | None = None

    def ready(self) -> bool:
        try:
            self.send("GET", "/readyz", text=True)
        except (OSError, http.client.HTTPException, RefusedError):
            self.close()
            self._connection = None
            return False
        return True

    def send(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        text: bool = False,
        patch: str = "",
        again: bool = False,
    ) -> Any:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=_TLS, timeout=_PATIENCE)
        headers = {**self._headers, "Content-Type": patch} if patch else self._headers
        try:
            self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = self._connection.getresponse()
        except ConnectionError:
            # The server may close an idle connection. A request that only reads is sent again on a new one.
            self.close()
            self._connection = None
            if method != "GET" or again:
                raise
            return self.send(method, path, text=text, again=True)
        data = answer.read()
        if answer.status >= 400:
            raise RefusedError(f"{method} {path}: {answer.status} {data.decode(errors='replace')[:600]}")
        return data.decode() if text else json.loads(data)

    def create(self, path: str, document: Document) -> Document:
        made: Document = self.send("POST", path, document)
        return made

    def create_all(self, documents: Sequence[tuple[str, Document]]) -> list[Document | RefusedError]:
        """Create objects that do not depend on each other, in parallel; returns the answers in the objects' order."""
        made: list[Document | RefusedError] = [RefusedError("not sent")] * len(documents)
        numbers = iter(range(len(documents)))
        drawing = threading.Lock()

        def send() -> None:
            api = Api(self.port, self._token)
            with contextlib.closing(api):
                while True:
                    with drawing:
                        number = next(numbers, None)
                    if number is None:
                        return
                    try:
                        made[number] = api.create(*documents[number])
                    except RefusedError as error:
                        made[number] = error

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for done in [pool.submit(send) for _ in range(_AT_ONCE)]:
                done.result()
        return made

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def merge(self, path: str, change: Document) -> Document:
        patched: Document = self.send("PATCH", path, change, patch="application/merge-patch+json")
        return patched

    def delete_all(self, path: str) -> None:
        self.send("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})


class Watch:
    """Follows all objects of a kind, so that a test can wait for the state of one."""

    def __init__(self, api: Api, token: str, path: str) -> None:
        self._connection = http.client.HTTPSConnection("127.0.0.1", api.port, context=_TLS, timeout=None)
        self._connection.request(
            "GET", f"{path}?watch=true&resourceVersion=0", None, {"Authorization": f"Bearer {token}"}
        )
        self._answer = self._connection.getresponse()
        self._objects: dict[tuple[str, str], Document] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(_PATIENCE)
        self._answer.close()
        self._connection.close()

    def until(self, namespace: str, name: str, state: Callable[[Document], bool]) -> Document:
        """Wait until the object is in a state."""
        key = namespace, name
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._objects and state(self._objects[key]), _PATIENCE):
                last = json.dumps(self._objects.get(key))
                raise TimeoutError(f"{name} of {namespace} stayed for {_PATIENCE:.0f} s as it is: {last}")
            return self._objects[key]

    def _run(self) -> None:
        try:
            while line := self._answer.readline():
                self._take(json.loads(line))
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return  # the server ends

    def _take(self, event: Document) -> None:
        metadata = event["object"]["metadata"]
        key = metadata["namespace"], metadata["name"]
        with self._changed:
            if event["type"] == "DELETED":
                self._objects.pop(key, None)
            else:
                self._objects[key] = event["object"]
            self._changed.notify_all()


class ClaimWatch(Watch):
    """Watches claims, and attaches their devices at once, as a fast driver would."""

    def __init__(self, api: Api, token: str) -> None:
        self._port, self._token = api.port, token
        # How many claims had devices to attach.
        self.attached = 0
        super().__init__(api, token, "/apis/resource.k8s.io/v1/resourceclaims")

    def _take(self, event: Document) -> None:
        status = event["object"].get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results", [])
        waiting = [each for each in results if each.get("bindingConditions")]
        if event["type"] != "DELETED" and waiting and "devices" not in status:
            metadata = event["object"]["metadata"]
            path = (
                f"/apis/resource.k8s.io/v1/namespaces/{metadata['namespace']}/resourceclaims/{metadata['name']}/status"
            )
            # By now the claim may be deleted or deallocated, or an idle connection closed.
            with contextlib.closing(Api(self._port, self._token)) as driver, contextlib.suppress(RefusedError):
                driver.merge(path, {"status": {"devices": [_attached(each) for each in waiting]}})
                self.attached += 1
        super()._take(event)


def _attached(result: Document) -> Document:
    """Return the status of a device whose binding conditions are all true."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {"type": name, "status": "True", "reason": "Attached", "message": "", "lastTransitionTime": now}
        for name in result["bindingConditions"]
    ]
    known: Document = {key: result[key] for key in ("driver", "pool", "device", "shareID") if key in result}
    return known | {"conditions": conditions}


class PodWatch(Watch):
    """Watches pods."""

    def __init__(self, api: Api, token: str) -> None:
        super().__init__(api, token, "/api/v1/pods")

    def settled(self, namespace: str, name: str) -> Document:
        """Wait until the scheduler has bound the pod or reported why it cannot."""
        return self.until(namespace, name, _settled)


def _settled(pod: Document) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    refused = any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)
    return bool(pod["spec"].get("nodeName")) or refused
