"""A client of a real API server that is as small as can be: JSON, one connection, and a watch on pods."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from typing import Any

Document = dict[str, Any]
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TLS.check_hostname = False
_TLS.verify_mode = ssl.CERT_NONE
_PATIENCE = 60.0


class RefusedError(Exception):
    """The server refuses a request; the text is its own."""


class Api:
    """One server, on a port of this machine."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
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
            # The server closes a connection that was idle; what only reads is asked again on a new one.
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

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def merge(self, path: str, change: Document) -> Document:
        patched: Document = self.send("PATCH", path, change, patch="application/merge-patch+json")
        return patched

    def delete_all(self, path: str) -> None:
        self.send("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})


class PodWatch:
    """What becomes of pods: each pod's last state, awaited by name."""

    def __init__(self, api: Api, token: str) -> None:
        self._connection = http.client.HTTPSConnection("127.0.0.1", api.port, context=_TLS, timeout=None)
        self._connection.request(
            "GET", "/api/v1/pods?watch=true&resourceVersion=0", None, {"Authorization": f"Bearer {token}"}
        )
        self._answer = self._connection.getresponse()
        self._settled: dict[str, Document] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pod-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(_PATIENCE)
        self._answer.close()
        self._connection.close()

    def settled(self, namespace: str, name: str) -> Document:
        """Wait until the scheduler has bound the pod, or has said why it cannot."""
        key = f"{namespace}/{name}"
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._settled, _PATIENCE):
                raise TimeoutError(f"the scheduler said nothing of pod {key} for {_PATIENCE:.0f} s")
            return self._settled.pop(key)

    def _run(self) -> None:
        try:
            while line := self._answer.readline():
                self._take(json.loads(line)["object"])
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return  # the server ends

    def _take(self, pod: Document) -> None:
        conditions = pod.get("status", {}).get("conditions", [])
        refused = any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)
        if pod.get("spec", {}).get("nodeName") or refused:
            with self._changed:
                self._settled[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = pod
                self._changed.notify_all()
