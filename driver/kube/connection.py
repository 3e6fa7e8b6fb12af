"""The connection to an API server: kept sockets, authentication, and what a failure means.

In a pod the credentials are those of its service account, elsewhere those of a kubeconfig. Any thread may send. Each
request has its own socket, and some sockets are kept for the next requests.
"""

import contextlib
import logging
import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from dranode.cdi.regular_file import read_given
from dranode.driver.kube.http1 import BrokenError, Channel, Head, Outgoing, seconds_left
from dranode.driver.kube.proxy import ProxyError, environment_proxy
from dranode.driver.kube.server import (
    Credentials,
    Server,
    TokenFile,
    UnreachableError,
    UnusableCredentialsError,
    tls_context,
    tls_problem,
)

log = logging.getLogger(__name__)


# The API server of this pod's cluster, and the pod's service account. Both follow from two variables that kubelet sets,
# the token in a file that kubelet renews, and the certificate of the authority. The `kubernetes` package reads the
# same, but takes 18 MiB of memory.

# For how many seconds a token is used before its file is read again.
_TOKEN_SECONDS: Final = 60.0


def pod_server(account: Path) -> Server:
    """Return the server, with the service account in a folder that has `token` and `ca.crt`.

    Raises:
        UnreachableError: a variable is missing, or a file cannot be used.
    """
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        raise UnreachableError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which kubelet sets in every pod, are not both set"
        )
    # kubelet renews the token long before it expires, so one that was read a minute ago is still valid.
    token = TokenFile(account / "token", "check that its service account exists", seconds=_TOKEN_SECONDS)
    token.headers()
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        authority = read_given(account / "ca.crt")
        tls = tls_context(authority)
        proxy = environment_proxy(url, lambda: tls_context(authority, public=True))
    except ProxyError as error:
        raise UnreachableError(f"the API server at {url} cannot be reached: {error}") from error
    except OSError as error:
        raise UnreachableError(
            f"the credentials in {account} cannot be used: no certificate can be read from ca.crt: {error}"
        ) from error
    return Server(url, token.headers, tls, proxy=proxy)


_UNAUTHORIZED: Final = 401
# Enough for the claims that are fetched at the same time, the watches of slices, and Events.
_KEPT: Final = 16
_PROGRAM_SECONDS: Final = 20.0
_NOTHING: Final = Outgoing("GET", "/", {}, 0.0)


class APIResponse:
    """An answer. `data` is its whole body; iterating yields the lines of a body that has not been read yet.

    Attributes:
        status: the HTTP status.
        headers: by name in lower case.
    """

    def __init__(self, head: Head, channel: Channel, outgoing: Outgoing, done: Callable[[Channel], None]) -> None:
        """Make the answer to `outgoing` that begins with `head`; `done` gets the channel once the body was read."""
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
            # A chunk may be a single byte, so the chunks are not collected as objects.
            body = bytearray()
            for piece in self._channel.body(self._head, self._outgoing.most):
                body += piece
            self._data = bytes(body)
            self._done(self._channel)
        return self._data

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body's lines as they come; raises like `data` if a line is too large or does not end in time."""
        # The deadline is renewed with each complete line, so a server that sends single bytes cannot hold a watch for
        # ever.
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
        """Close the connection without reading the rest of the body."""
        self._channel.close()


class _TLSError(UnreachableError):
    """There is no TLS connection, for example because one side does not accept the other's certificate."""


class _ClosedMeanwhile(Exception):  # noqa: N818 - no error: another connection is taken
    """The server closed a kept connection before it saw the request."""


class Connection:
    """One API server. Credentials are read with the first request; any thread may send."""

    def __init__(self, source: Credentials, *, retries: bool = False) -> None:
        """Name the credentials; nothing is read yet.

        Args:
            source: where the credentials are.
            retries: whether to read the credentials again for every request while they cannot be used, as a driver has
                to. A command reads them once: a program that fails for one request fails for all, and may ask a person
                each time.
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
        """Read the credentials before the first request, while their program can still ask a person.

        Raises:
            UnreachableError: the credentials cannot be used.
        """
        return self._authenticated(_NOTHING)[0]

    def send(self, outgoing: Outgoing) -> APIResponse:
        """Send a request.

        If the server refuses the credentials, or a certificate does not fit, they are read again once.

        Raises:
            UnreachableError: there is no answer.
        """
        server, request = self._authenticated(outgoing)
        # A program that provides credentials may ask a person, so the time starts after it.
        deadline = time.monotonic() + outgoing.seconds
        try:
            answer = self._sent(server, request, outgoing, deadline)
            # A token may have been revoked, or its file replaced, before the time at which it would be read again.
            if answer.status != _UNAUTHORIZED or self._is_last(server):
                return answer
            answer.close()
        except _TLSError as error:
            if self._is_last(server):
                raise
            log.debug("%s", error)
        left = deadline - time.monotonic()
        server, request = self._authenticated(outgoing, stale=server)
        return self._sent(server, request, outgoing, time.monotonic() + left)

    def begin(self, outgoing: Outgoing) -> Callable[[], APIResponse | None] | None:
        """Send a request that only reads on an open connection; the caller waits for the answer later.

        In this way one thread gets several answers in the time of the slowest. With a thread for each, the threads wait
        for one another, which takes longer than a nearby API server takes to answer.

        Returns:
            A function that waits for the answer, and returns None if it did not come; None if the request was not sent.
            In both cases use `send`, which tries again and reports errors.

        Raises:
            UnreachableError: the credentials cannot be read.
        """
        # No new connection is made here: connecting would hold up the other requests of this thread.
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
        """Close the connections that are not in use."""
        with self._lock:
            _close(self._kept)

    # --- credentials ---

    def _authenticated(self, outgoing: Outgoing, stale: Server | None = None) -> tuple[Server, bytes]:
        """Return the server and the encoded request; if `stale` was refused, the credentials are read again first."""
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
        """Return whether refused credentials are not read again, because a command reads them only once more."""
        return self._read_again and not self._retries and server is self._server

    def _opened(self) -> Server:
        with self._lock:
            if self._server is None:
                self._server = self._read()
            return self._server

    def _reopened(self, stale: Server) -> Server:
        self.close()
        with self._lock:
            # If several threads were refused at the same time, the first one reads the credentials for all.
            if self._server is None or self._server is stale:
                log.info("server=%s: reading its credentials again", stale)
                self._read_again = True
                self._server = self._read()
            return self._server

    def _read(self) -> Server:
        if self._source.kubeconfig:
            from dranode.driver.kube.kubeconfig import kubeconfig_server  # noqa: PLC0415 - YAML

            # Nobody can log in through a driver, and all of its calls wait for the program, so its time is limited.
            seconds = _PROGRAM_SECONDS if self._retries else None
            return kubeconfig_server(self._source.kubeconfig, self._source.context, seconds, self._source.flags)
        return pod_server(self._source.service_account)

    # --- requests ---

    def _sent(self, server: Server, request: bytes, outgoing: Outgoing, deadline: float) -> APIResponse:
        try:
            while (channel := self._taken()) is not None:
                with contextlib.suppress(_ClosedMeanwhile):
                    return self._exchanged(channel, request, outgoing, deadline, kept=True)
            channel = Channel(server.connect(seconds_left(deadline)))
            return self._exchanged(channel, request, outgoing, deadline, kept=False)
        except ssl.SSLError as error:
            raise _TLSError(tls_problem(server, error)) from error
        except TimeoutError as error:
            # Without the number of seconds, so that the same error is logged only once.
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
                # The last one that was used is the least likely to have been closed or forgotten meanwhile.
                channel = self._kept.pop()
            if channel.idle():
                return channel
            channel.close()

    def _exchanged(
        self, channel: Channel, request: bytes, outgoing: Outgoing, deadline: float, *, kept: bool
    ) -> APIResponse:
        try:
            answer = APIResponse(channel.request(request, seconds_left(deadline)), channel, outgoing, self._keep)
            if not outgoing.stream:
                _ = answer.data
        except BaseException as error:
            channel.close()
            if kept:
                # A load balancer that has forgotten this idle connection has most likely forgotten the others too, and
                # each of them would take the whole time of a request.
                self.close()
            # A server may close an idle connection at any time, also just when a request is sent. Only a request that
            # changes nothing may be sent again then.
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


def _close(channels: list[Channel]) -> None:
    while channels:
        channels.pop().close()


def _encoded(server: Server, outgoing: Outgoing) -> bytes:
    """Encode a request.

    Raises:
        UnreachableError: a header has a character that is not allowed. The header is not shown: it may be the token.
    """
    headers = {"Host": server.host, **outgoing.headers, **server.headers()}
    if outgoing.body is not None:
        headers["Content-Length"] = str(len(outgoing.body))
    named = (*headers.items(), *server.fixed_headers)
    lines = [f"{outgoing.method} {server.prefix}{outgoing.path} HTTP/1.1", *(f"{k}: {v}" for k, v in named)]
    # A line break in a token would begin a header of its own.
    if any("\n" in line or "\r" in line or not line.isascii() for line in lines):
        raise UnreachableError(
            f"a header for {server} has a line break or a character that is not ASCII; check the token"
        )
    return "\r\n".join((*lines, "", "")).encode("ascii") + (outgoing.body or b"")
