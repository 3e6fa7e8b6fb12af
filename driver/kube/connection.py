"""The connection to an API server: kept sockets, authentication, and what a failure means.

In a pod the credentials are the service account's, elsewhere those of a kubeconfig. Any thread may send; each request
has a socket to itself, and a few are kept for the next ones.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from dranode.driver.kube.http1 import BrokenError, Channel, Head, Outgoing
from dranode.driver.kube.proxy import ProxyError, environment_proxy
from dranode.driver.kube.server import Credentials, Server, UnreachableError, UnusableCredentialsError, tls_context

log = logging.getLogger(__name__)


# The API server of the cluster that this pod runs in, and the pod's service account there.  Four facts make it: two
# variables that kubelet sets, the token that it renews in its file, and the authority's certificate. The `kubernetes`
# package reads the same four at the price of 18 MiB and 100 ms.

# How old a token may be that is used without looking at its file again; kubelet renews it long before it ends.
_TOKEN_SECONDS: Final = 60.0


def pod_server(account: Path, clock: Callable[[], float] = time.monotonic) -> Server:
    """The server, with the account in a folder that has `token` and `ca.crt`.

    Raises:
        UnreachableError: one of the four is missing or cannot be read.
    """
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        raise UnreachableError(
            "the variables KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which kubelet sets, are not both there"
        )
    token = _Token(account / "token", clock)
    token.headers()
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        authority = (account / "ca.crt").read_bytes()
        tls = tls_context(authority)
        proxy = environment_proxy(url, lambda: tls_context(authority, public=True))
    except ProxyError as error:
        raise UnreachableError(f"the API server at {url} cannot be reached: {error}") from error
    except OSError as error:
        raise UnreachableError(
            f"the credentials in {account} cannot be used: ca.crt holds no certificate that can be read: {error}"
        ) from error
    return Server(url, token.headers, tls, proxy=proxy)


class _Token:
    """The pod's token, read again once it is old."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._headers: Mapping[str, str] = {}
        self._until = 0.0

    def headers(self) -> Mapping[str, str]:
        if not self._headers or self._clock() >= self._until:
            self._headers = {"Authorization": f"Bearer {self._read()}"}
            self._until = self._clock() + _TOKEN_SECONDS
        return self._headers

    def _read(self) -> str:
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UnreachableError(f"the pod's token {self._path} cannot be read: {reason}") from error
        if not token:
            raise UnreachableError(f"the pod's token {self._path} is empty; see that its service account exists")
        return token


_UNAUTHORIZED: Final = 401
# Claims that are fetched at a time, slices being watched, events, and some to spare.
_KEPT: Final = 16
_PROGRAM_SECONDS: Final = 20.0
_NOTHING: Final = Outgoing("GET", "/", {}, 0.0)


class APIResponse:
    """An answer. `data` is all of its body; iterating gives the lines of one that is left on the wire.

    Attributes:
        status: the HTTP status.
        headers: by name in lower case.
    """

    def __init__(self, head: Head, channel: Channel, outgoing: Outgoing, done: Callable[[Channel], None]) -> None:
        """The answer to `outgoing` that begins with `head`; `done` takes the channel when the body has been read."""
        self.status = head.status
        self.headers = head.headers
        self._channel = channel
        self._head = head
        self._outgoing = outgoing
        self._done = done
        self._data: bytes | None = None

    @property
    def data(self) -> bytes:
        """The body, read when it is first asked for.

        Raises:
            BrokenError: the connection ended in the middle, or the body is too large.
            TimeoutError: it did not come in time.
        """
        if self._data is None:
            # Chunks may be single bytes, so they are not kept one by one.
            body = bytearray()
            for piece in self._channel.body(self._head, self._outgoing.most):
                body += piece
            self._data = bytes(body)
            self._done(self._channel)
        return self._data

    def __iter__(self) -> Iterator[bytes]:
        """The body's lines as they come; raises as `data` does, where a line is too large or does not end in time."""
        rest = bytearray()
        self._channel.allow(self._outgoing.seconds)
        for piece in self._channel.body(self._head, None):
            searched = len(rest)
            rest += piece
            if rest.find(b"\n", searched) < 0:
                if len(rest) > self._outgoing.most:
                    raise BrokenError(f"a line of the answer is larger than {self._outgoing.most} bytes")
                continue
            *lines, rest = rest.split(b"\n")
            yield from map(bytes, lines)
            self._channel.allow(self._outgoing.seconds)
        if rest:
            yield bytes(rest)

    def shutdown(self) -> None:
        """End the body for its reader, from any thread."""
        with contextlib.suppress(OSError):
            self._channel.shutdown()

    def close(self) -> None:
        """Leave what is left of the body."""
        self._channel.close()


class _TLSError(Exception):
    """The server's certificate or ours does not fit."""


class _ClosedMeanwhile(Exception):  # noqa: N818 - no error: another connection is taken
    """The server closed a kept connection before it saw the request."""


class Connection:
    """One API server. Credentials are read with the first request; any thread may send."""

    def __init__(self, source: Credentials, *, retries: bool = False) -> None:
        """Name the credentials; nothing is read yet.

        Args:
            source: where the credentials are.
            retries: look for credentials again for every request while there are none, as a driver has to. A command
                does so once: a program that fails for one request fails for all, and may ask a person each time.
        """
        self._source = source
        self._retries = retries
        self._lock = threading.Lock()
        self._server: Server | None = None
        self._kept: list[Channel] = []
        self._asking = threading.Lock()
        self._failure = ""
        self._read_again = False
        # A connection that is dropped without being closed leaves no socket open.
        weakref.finalize(self, _close, self._kept)

    def log_in(self) -> Server:
        """Read the credentials before anything is asked, while a program among them can ask a person; the server.

        Raises:
            UnreachableError: they cannot be used.
        """
        return self._authenticated(_NOTHING)[0]

    def send(self, outgoing: Outgoing) -> APIResponse:
        """Send a request.

        Credentials that the server turns down, and certificates that do not fit, are read again once.

        Raises:
            UnreachableError: there is no answer.
        """
        server, request = self._authenticated(outgoing)
        # A program that gives credentials may ask a person, so the time begins now.
        deadline = time.monotonic() + outgoing.seconds
        try:
            answer = self._sent(server, request, outgoing, deadline)
            if answer.status != _UNAUTHORIZED or self._is_last(server):
                return answer
            answer.close()
        except _TLSError as error:
            if self._is_last(server):
                raise UnreachableError(f"{server} is not to be trusted: {error}") from error
            log.debug("server=%s is not to be trusted: %s", server, error)
        left = deadline - time.monotonic()
        server, request = self._authenticated(outgoing, stale=server)
        try:
            return self._sent(server, request, outgoing, time.monotonic() + left)
        except _TLSError as error:
            raise UnreachableError(f"{server} is not to be trusted: {error}") from error

    def begin(self, outgoing: Outgoing) -> Callable[[], APIResponse | None] | None:
        """Send a request that only reads on a connection that is open already; the caller waits for its answer later.

        So one thread gets several answers in the time of the slowest. A thread for each takes longer than an API server
        nearby does, because the threads wait for one another.

        Returns:
            A function that waits for the answer and returns it, None if it did not come; None if the request was not
            sent. Use `send` then, which tries again and says what is wrong.

        Raises:
            UnreachableError: the credentials cannot be read.
        """
        request = _encoded(self._opened(), outgoing)
        channel = self._taken()
        if channel is None:
            return None
        try:
            channel.send(request, outgoing.seconds)
        except (BrokenError, OSError):
            channel.close()
            return None
        return partial(self._finished, channel, outgoing)

    def _finished(self, channel: Channel, outgoing: Outgoing) -> APIResponse | None:
        try:
            answer = APIResponse(channel.answer(), channel, outgoing, self._keep)
            _ = answer.data
        except (BrokenError, OSError):
            channel.close()
            return None
        return answer

    def close(self) -> None:
        """Drop the connections that are at rest."""
        with self._lock:
            _close(self._kept)

    # --- credentials ---

    def _authenticated(self, outgoing: Outgoing, stale: Server | None = None) -> tuple[Server, bytes]:
        """Return the server, and the request as it goes there; credentials that it turned down are read again."""
        with contextlib.nullcontext() if self._retries else self._asking:
            if self._failure:
                raise UnusableCredentialsError(self._failure)
            try:
                server = self._opened() if stale is None else self._reopened(stale)
                return server, _encoded(server, outgoing)
            except UnreachableError as error:
                if not self._retries:
                    self._failure = str(error)
                raise

    def _is_last(self, server: Server) -> bool:
        """Return whether credentials are not read again for a server that turned them down: a command does so once."""
        return self._read_again and not self._retries and server is self._server

    def _opened(self) -> Server:
        with self._lock:
            if self._server is None:
                self._server = self._read()
            return self._server

    def _reopened(self, stale: Server) -> Server:
        self.close()
        with self._lock:
            if self._server is None or self._server is stale:
                log.info("server=%s: reading its credentials again", stale)
                self._read_again = True
                self._server = self._read()
            return self._server

    def _read(self) -> Server:
        if self._source.kubeconfig:
            from dranode.driver.kube.kubeconfig import kubeconfig_server  # noqa: PLC0415 - YAML

            # Nobody logs in at a driver, and all calls wait for the program.
            return kubeconfig_server(
                self._source.kubeconfig, self._source.context, _PROGRAM_SECONDS if self._retries else None
            )
        return pod_server(self._source.service_account)

    # --- requests ---

    def _sent(self, server: Server, request: bytes, outgoing: Outgoing, deadline: float) -> APIResponse:
        try:
            while (channel := self._taken()) is not None:
                with contextlib.suppress(_ClosedMeanwhile):
                    return self._exchanged(channel, request, outgoing, deadline, kept=True)
            channel = Channel(server.connect(_left(deadline)))
            return self._exchanged(channel, request, outgoing, deadline, kept=False)
        except ssl.SSLError as error:
            raise _TLSError(error.strerror or str(error)) from error
        except TimeoutError as error:
            # Without a number: what is said again and again should be the same.
            raise UnreachableError(f"{server} did not answer in time") from error
        except BrokenError as error:
            raise UnreachableError(f"{server} does not answer: {error}") from error
        except OSError as error:
            raise UnreachableError(f"{server} does not answer: {error.strerror or error}") from error

    def _taken(self) -> Channel | None:
        while True:
            with self._lock:
                if not self._kept:
                    return None
                channel = self._kept.pop()
            if channel.idle():
                return channel
            channel.close()

    def _exchanged(
        self, channel: Channel, request: bytes, outgoing: Outgoing, deadline: float, *, kept: bool
    ) -> APIResponse:
        try:
            answer = APIResponse(channel.request(request, _left(deadline)), channel, outgoing, self._keep)
            if not outgoing.stream:
                _ = answer.data
        except BaseException as error:
            channel.close()
            if kept:
                # What ended it, a load balancer that forgets what is idle for one, has most likely ended the others
                # too. Each of them would take a request's whole time.
                self.close()
            # A server closes what is kept when it likes; that it was about to says nothing of the request, but only a
            # request that changes nothing may be sent twice.
            if kept and outgoing.method == "GET" and isinstance(error, BrokenError) and error.untouched:
                raise _ClosedMeanwhile from error
            raise
        return answer

    def _keep(self, channel: Channel) -> None:
        with self._lock:
            if channel.reusable and len(self._kept) < _KEPT:
                self._kept.append(channel)
                return
        channel.close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _close(channels: list[Channel]) -> None:
    while channels:
        channels.pop().close()


def _encoded(server: Server, outgoing: Outgoing) -> bytes:
    """The request as it goes over the wire.

    Raises:
        UnreachableError: a header has a character that no header can carry; which one is not said, it may be the token.
    """
    headers = {"Host": server.host, **outgoing.headers, **server.headers()}
    if outgoing.body is not None:
        headers["Content-Length"] = str(len(outgoing.body))
    named = (*headers.items(), *server.fixed_headers)
    lines = [f"{outgoing.method} {server.prefix}{outgoing.path} HTTP/1.1", *(f"{k}: {v}" for k, v in named)]
    if any("\n" in line or "\r" in line or not line.isascii() for line in lines):
        raise UnreachableError(f"a header for {server} cannot be sent; look at the token's characters")
    return "\r\n".join((*lines, "", "")).encode("ascii") + (outgoing.body or b"")
