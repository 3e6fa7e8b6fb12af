"""Plain HTTP for kubelet's probes and for Prometheus: /healthz, /readyz, /metrics.

There is nothing to protect in these pages and nothing to write, so there is no TLS: the DaemonSet serves them on the
pod's address, everybody else on the loopback interface.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from dranode.driver.threads import Fatal, OwnedThread

log = logging.getLogger(__name__)

_THREADS: Final = 4
# A client that says nothing for so long is hung up on, so that a few of them do not keep kubelet's probes waiting.
_SILENCE_SECONDS: Final = 3.0
_PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """What a path is answered with."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _PLAIN


# Makes the page of a path; is given the Accept header.
Make = Callable[[str], Page]


def verdict(problems: Iterable[str], well: str) -> Page:
    """The page of a probe: 200 with one word, or 503 with what is missing, one sentence a line."""
    lines = tuple(problems)
    if not lines:
        return Page(f"{well}\n".encode())
    return Page("".join(f"{line}\n" for line in lines).encode(), HTTPStatus.SERVICE_UNAVAILABLE)


class HTTPPages:
    """Serves pages on a socket that listens already."""

    def __init__(self, listener: socket.socket, pages: Mapping[str, Make], fatal: Fatal) -> None:
        """Prepare to serve `pages` (path -> page); the socket is closed by `stop`."""
        self._server = _Server(listener, pages)
        self._thread = OwnedThread("http", self._server.serve_forever, fatal)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_port)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()
        log.info("listening http=%s:%d", self._server.server_name, self.port)

    def stop(self) -> None:
        """Answer nobody any more."""
        if self._thread.is_alive():
            # The loop would notice the end only at its next look, half a second later.
            self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(HTTPServer):
    def __init__(self, listener: socket.socket, pages: Mapping[str, Make]) -> None:
        address = listener.getsockname()
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = address[0], address[1]
        self.pages = pages
        self._pool = futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="http")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of the pool; a client that is slow to ask holds up nobody else."""
        self._pool.submit(self._answer, request, client_address)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception as error:  # noqa: BLE001 - whatever a client does wrong ends its own connection only
            log.debug("http client=%s: %s", client_address[0], error)
        finally:
            self.shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening and wait for the answers that are being given."""
        super().server_close()
        self._pool.shutdown(cancel_futures=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENCE_SECONDS
    server_version = "dranode"
    sys_version = ""

    def do_GET(self) -> None:
        page = self._page()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET  # noqa: N815 - http.server looks for this name

    def _page(self) -> Page:
        path = self.path.partition("?")[0]
        make = self.server.pages.get(path)
        if make is None:
            there = ", ".join(self.server.pages)
            return Page(f"there is no {path}; there is {there}\n".encode(errors="replace"), HTTPStatus.NOT_FOUND)
        try:
            return make(self.headers.get("Accept", ""))
        except Exception as error:
            log.exception("the page %s failed", path)
            return Page(f"{path} failed: {error!r}\n".encode(errors="replace"), HTTPStatus.INTERNAL_SERVER_ERROR)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Probes ask every few seconds: only whoever wants all details hears of it."""
        log.debug("http client=%s %s", self.client_address[0], format % args)
