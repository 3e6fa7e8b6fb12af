"""An API server as credentials name it: where it is, who we are there, and why it is to be trusted."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from dranode.driver.core.api.errors import DranodeError

CONNECT_SECONDS: Final = 3.0
_PORTS: Final = {"http": 80, "https": 443}


class UnreachableError(DranodeError):
    """No answer came: no connection, none in time, or the server is not the one that it should be."""


class UnusableCredentialsError(UnreachableError):
    """Nothing was asked, and nothing can be before somebody changes the credentials."""


class Server(msgspec.Struct, frozen=True):
    """An API server.

    Attributes:
        url: where it is, `https://10.96.0.1:443` or with a path.
        headers: those of authentication, asked for with every request, since a token is renewed in its file.
        tls: how its certificate is judged; None for plain HTTP.
        name: the name in its certificate, where that is not the one in `url`.
        proxy: a proxy's URL; empty for none.
        always: names and values of headers that every request has, a name perhaps several times.
    """

    url: str
    headers: Callable[[], Mapping[str, str]]
    tls: ssl.SSLContext | None = None
    name: str = ""
    proxy: str = ""
    always: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"the API server at {self.url}"

    @property
    def host(self) -> str:
        """Return what the header `Host` says."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def prefix(self) -> str:
        """Return what goes before every path: the server's own, and for a plain one behind a proxy all of the URL."""
        return (self.url if self.proxy and self.tls is None else urlsplit(self.url).path).rstrip("/")

    def connect(self, seconds: float) -> socket.socket:
        """A connection that is ready for a request, made within `seconds`.

        Raises:
            ssl.SSLError: the server's certificate does not fit.
            OSError: there is none.
        """
        server = urlsplit(self.url)
        plain = _dial(server, seconds) if not self.proxy else self._through_proxy(server, seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            name = _plain(self.name or server.hostname or "")
            return plain if self.tls is None else self.tls.wrap_socket(plain, server_hostname=name or None)
        except BaseException:
            plain.close()
            raise

    def _through_proxy(self, server: SplitResult, seconds: float) -> socket.socket:
        proxy = urlsplit(self.proxy)
        if proxy.scheme != "http":
            raise OSError(f"a proxy is reached over plain HTTP here, and {proxy.scheme}://{proxy.hostname} is not")
        plain = _dial(proxy, seconds)
        if self.tls is not None:
            try:
                _tunnel(plain, proxy, f"{server.hostname}:{_port(server)}")
            except BaseException:
                plain.close()
                raise
        return plain


def proxy_of(host: str, proxy: str, no_proxy: str) -> str:
    """The proxy through which a host is reached; empty for none. `no_proxy` is the list of those without."""
    if not proxy:
        return ""
    from urllib.request import (  # type: ignore[attr-defined] # noqa: PLC0415 - few have one
        proxy_bypass_environment,
    )

    return "" if proxy_bypass_environment(host, {"no": no_proxy}) else proxy


def proxy_of_environment(host: str, scheme: str = "https") -> str:
    """The proxy that the environment names for HTTPS, or for plain HTTP, to a host; empty for none."""
    names = (f"{scheme.upper()}_PROXY", f"{scheme}_proxy", "ALL_PROXY", "all_proxy")
    proxy = next((value for name in names if (value := os.environ.get(name))), "")
    return proxy_of(host, proxy, os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "")


def tls_context(authority: str | None, *, data: str = "", verify: bool = True) -> ssl.SSLContext:
    """Return how a server's certificate is judged: as strict as Go and no stricter.

    From Python 3.13 on certificates that RFC 5280 does not want (EKS has no Authority Key Identifier) would not be
    trusted. `authority` is a file and `data` the same in PEM; neither for those that the system trusts.

    Raises:
        OSError: the file cannot be read, or holds no certificate.
    """
    context = ssl.create_default_context(cafile=authority, cadata=data or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _port(url: SplitResult) -> int:
    return url.port or _PORTS[url.scheme]


def _dial(url: SplitResult, seconds: float) -> socket.socket:
    address = (_plain(url.hostname or ""), _port(url))
    return socket.create_connection(address, min(CONNECT_SECONDS, seconds))  # type: ignore[arg-type]


def _plain(host: str) -> str | bytes:
    """Return the host as bytes if it is ASCII: a text loads what international names need, 2 ms of a start."""
    return host.encode() if host.isascii() else host


def _tunnel(plain: socket.socket, proxy: SplitResult, target: str) -> None:
    """Have a proxy connect to `host:port`."""
    from dranode.driver.kube.http1 import BrokenError, Channel  # noqa: PLC0415 - few have one

    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.username is not None:
        from base64 import b64encode  # noqa: PLC0415 - few have one

        pair = f"{proxy.username}:{proxy.password or ''}"
        lines.append(f"Proxy-Authorization: Basic {b64encode(pair.encode()).decode()}")
    request = "\r\n".join((*lines, "", "")).encode()
    try:
        head = Channel(plain).request(request, CONNECT_SECONDS)
    except BrokenError as error:
        raise OSError(f"the proxy {proxy.hostname} does not answer: {error}") from error
    if head.status != 200:  # noqa: PLR2004 - the tunnel stands
        raise OSError(f"the proxy {proxy.hostname} answered {head.status} to a connection to {target}")
