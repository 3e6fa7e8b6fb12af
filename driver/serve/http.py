"""The questions over plain HTTP and their answers: pages by path, one request and one answer a connection.

There is nothing to protect in these pages and nothing to write, so there is no TLS: the DaemonSet serves them on the
pod's address, everybody else on the loopback interface.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Final

import msgspec

from dranode.driver.core.api.errors import in_words

log = logging.getLogger(__name__)

# Prometheus and kubelet send a few hundred bytes.
MAX_HEAD: Final = 16 * 1024
_PLAIN: Final = "text/plain; charset=utf-8"


class Page(msgspec.Struct, frozen=True):
    """The answer to a path."""

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


def head_of(received: bytes | bytearray) -> bytes | None:
    """The request line and the headers, once all of them are there, or as much as anybody may send; None until then."""
    ends = [found + len(end) for end in (b"\r\n\r\n", b"\n\n") if (found := received.find(end)) >= 0]
    if ends:
        return bytes(received[: min(ends)])
    return bytes(received[:MAX_HEAD]) if len(received) >= MAX_HEAD else None


def path_of(head: bytes) -> str:
    """The path that is asked for, without its query; empty if none is."""
    words = head.partition(b"\n")[0].split()
    return words[1].partition(b"?")[0].decode("latin-1") if len(words) > 1 else ""


def answer(head: bytes, client: str, pages: Mapping[str, Make]) -> bytes:
    """The whole answer to a request; the connection is closed after it."""
    handler = _Exchange(head, client, pages)
    return handler.wfile.getvalue()


class _Exchange(BaseHTTPRequestHandler):
    """One request in memory: timeouts are for the owner of the socket."""

    server_version = "dranode"
    sys_version = ""
    # Else whatever has no version in it would be answered as in 1991, without a status.
    default_request_version = "HTTP/1.0"
    wfile: BytesIO

    def __init__(self, head: bytes, client: str, pages: Mapping[str, Make]) -> None:
        self.rfile, self.wfile = BytesIO(head), BytesIO()
        self.client_address = (client, 0)
        self._pages = pages
        if len(head) >= MAX_HEAD:
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self.handle_one_request()

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
        make = self._pages.get(path)
        if make is None:
            there = ", ".join(self._pages)
            return Page(f"there is no {path}; there is {there}\n".encode(errors="replace"), HTTPStatus.NOT_FOUND)
        try:
            return make(self.headers.get("Accept", ""))
        except Exception as error:
            log.exception("page=%s failed", path)
            return Page(
                f"{path} failed: {in_words(error)}\n".encode(errors="replace"), HTTPStatus.INTERNAL_SERVER_ERROR
            )

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log at debug level alone, because probes ask every few seconds."""
        log.debug("http client=%s %s", self.client_address[0], format % args)
