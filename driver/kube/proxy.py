"""Proxies for connections to an API server: which proxy is used, by the rules of Go's clients, and how to connect.

The rules for the environment are those of golang.org/x/net/http/httpproxy (v0.62.0), because kubectl and the other
components of a cluster follow them. A setting that cannot be read is an error here, while Go ignores it.
"""

import base64
import ipaddress
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from dranode.api.errors import DranodeError
from dranode.driver.kube.http1 import BrokenError, Channel, seconds_left

T = TypeVar("T")

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
# Go's net.SplitHostPort: a host, in brackets if it has colons, and a port, perhaps empty.
_HOST_AND_PORT: Final = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*)):([^\[\]:]*)")
_PORTS: Final = {"http": 80, "https": 443}
_RECORD: Final = 32 << 10
_OK: Final = 200


class ProxyError(DranodeError):
    """A configured proxy cannot be used."""


class ProxySettings(msgspec.Struct, frozen=True):
    """The proxies in the environment.

    Attributes:
        http: the proxy for plain HTTP.
        https: the proxy for HTTPS.
        no_proxy: the hosts that are reached without a proxy, separated by commas.
        cgi: whether this process answers a CGI request. Its sender can set `HTTP_PROXY` with a header `Proxy`.
    """

    http: str = ""
    https: str = ""
    no_proxy: str = ""
    cgi: bool = False


def settings_of(environment: Mapping[str, str]) -> ProxySettings:
    """Return the proxies in the environment; a name in lower case wins over the same name in upper case."""

    # Lower case goes first since golang.org/x/net v0.62; in older clients upper case did.
    def value(name: str) -> str:
        return environment.get(name) or environment.get(name.upper()) or ""

    cgi = bool(environment.get("REQUEST_METHOD"))
    return ProxySettings(value("http_proxy"), value("https_proxy"), value("no_proxy"), cgi)


def proxy_for(url: str, settings: ProxySettings) -> str:
    """Return the URL of the proxy through which a URL is reached; empty for none.

    Raises:
        ProxyError: `HTTP_PROXY` applies in a CGI environment, where the sender of a request may have set it.
    """
    parts = urlsplit(url)
    named = {"http": settings.http, "https": settings.https}.get(parts.scheme, "")
    if named and parts.scheme == "http" and settings.cgi:
        raise ProxyError("HTTP_PROXY is not used in a CGI environment; see https://go.dev/s/cgihttpproxy")
    if not named or not _is_proxied(_host(parts), _port_text(parts), settings.no_proxy):
        return ""
    try:
        proxy = urlsplit(named)
    except ValueError:
        return f"http://{named}"
    # `localhost:3128` would be read as a URL with the scheme `localhost`.
    return named if proxy.scheme and proxy.netloc else f"http://{named}"


def _is_proxied(host: str, port: str, no_proxy: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return False
    name = _in_ascii(host.strip()).lower()
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return "*" not in entries and not any(_matches(entry, name, port, address) for entry in entries if entry)


def _matches(entry: str, name: str, port: str, address: _Address | None) -> bool:
    """Return whether an entry of `NO_PROXY` matches a host, by name or by address."""
    # An entry with a slash is a network. It never matches a name, because Go does not resolve names for NO_PROXY.
    network = _network(entry)
    if network is not None:
        return address is not None and address in network
    split = _HOST_AND_PORT.fullmatch(entry)
    host, wanted = (split[1] or split[2] or "", split[3]) if split else (entry, "")
    if not host or (wanted and wanted != port):
        return False
    named = _address(host) if "%" not in host else None
    if named is not None or address is not None:
        return named == address
    # `example.com` matches the host and all below it; `.example.com` and `*.example.com` match only what is below.
    host = _in_ascii(host.removeprefix("*") if host.startswith("*.") else host)
    return name.endswith(host) if host.startswith(".") else name == host or name.endswith(f".{host}")


def _address(text: str) -> _Address | None:
    """Return the address that a text is, None if it is not one; IPv4 in the form of IPv6 becomes IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network that `address/bits` is, None if it is not one; Go accepts neither a dotted mask nor a zone."""
    bits = text.partition("/")[2]
    if not (bits.isascii() and bits.isdigit()) or "%" in text:
        return None
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    return network if mapped is None else ipaddress.ip_network((mapped, network.prefixlen - 96))


def _in_ascii(name: str) -> str:
    if name.isascii():
        return name
    try:
        # Label by label, because an entry of NO_PROXY may begin with a dot.
        return ".".join(label.encode("idna").decode() for label in name.split("."))
    except UnicodeError:
        return name


def _host(parts: SplitResult) -> str:
    """Return the host as written: `SplitResult.hostname` is in lower case, but for Go only `localhost` is local."""
    netloc = parts.netloc.rpartition("@")[2]
    host = netloc[1:].partition("]")[0] if netloc.startswith("[") else netloc.partition(":")[0]
    return unquote(host)


def _port_text(parts: SplitResult) -> str:
    after = parts.netloc.rpartition("@")[2].rpartition("]")[2].rpartition(":")
    return after[2] if after[1] and after[2] else str(_PORTS.get(parts.scheme, ""))


# --- connecting through a proxy ---


class Proxy(msgspec.Struct, frozen=True):
    """A proxy for HTTP.

    Attributes:
        host: its name or address.
        port: its port.
        authorization: the value of `Proxy-Authorization`; empty for none.
        tls: how its certificate is verified; None for plain HTTP.
    """

    host: str
    port: int
    authorization: str = ""
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"the proxy {self.host}:{self.port}"


def parsed_proxy(url: str, place: str, tls: Callable[[], ssl.SSLContext]) -> Proxy:
    """Return the proxy that a URL names.

    Args:
        url: the URL, which may have a user and a password.
        place: where it is configured, for messages: `proxy-url`, `HTTPS_PROXY`.
        tls: makes the context that verifies the certificate of an HTTPS proxy.

    Raises:
        ProxyError: the URL is not valid, or its scheme is not supported.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ProxyError(f"the address of the proxy in {place} cannot be read: {error}") from error
    if parts.scheme in ("socks5", "socks5h", "socks4"):
        raise ProxyError(
            f"the proxy in {place} uses {parts.scheme}, which is not supported; use an http or https proxy"
        )
    if parts.scheme not in _PORTS or not host:
        raise ProxyError(f"the proxy in {place} is not an http or https URL, such as http://proxy.example.com:3128")
    # User and password are percent-encoded in a URL, and sent decoded.
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    secure = parts.scheme == "https"
    return Proxy(host, port or _PORTS[parts.scheme], authorization, tls() if secure else None)


def environment_proxy(url: str, tls: Callable[[], ssl.SSLContext]) -> Proxy | None:
    """Return the proxy that the environment names for a URL; None if it names none.

    Raises:
        ProxyError: the proxy cannot be used.
    """
    proxy = proxy_for(url, settings_of(os.environ))
    return parsed_proxy(proxy, f"{urlsplit(url).scheme.upper()}_PROXY", tls) if proxy else None


def tunnel(connected: socket.socket, proxy: Proxy, target: str, seconds: float) -> None:
    """Let a proxy connect to `host:port`.

    Raises:
        OSError: the proxy did not connect.
    """
    # Some proxies refuse clients without a user agent.
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", "User-Agent: dranode"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    try:
        # The answer to CONNECT has no body. What follows its head is the tunnel, in which the server waits for us to
        # begin TLS.
        head = Channel(connected).request("\r\n".join((*lines, "", "")).encode(), seconds)
    except BrokenError as error:
        raise OSError(f"{proxy} does not answer: {error}") from error
    if head.status != _OK:
        raise OSError(f"{proxy} answered {head.status} to a connection to {target}")


class TLSThroughTLS:
    """A TLS connection through an HTTPS proxy, with the methods of a socket that `Channel` needs."""

    def __init__(self, outer: ssl.SSLSocket, tls: ssl.SSLContext, name: str, seconds: float) -> None:
        """Shake hands with the server of that name behind the proxy within `seconds`.

        Raises:
            ssl.SSLError: its certificate does not fit.
            OSError: the connection ended, or took too long.
        """
        self._outer = outer
        # `wrap_socket` works on the file descriptor of a plain connection, so it cannot be used within TLS.
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._coming, self._going, server_hostname=name or None)
        self._deadline = 0.0
        self.settimeout(seconds)
        self._carried(self._tls.do_handshake)

    def settimeout(self, seconds: float) -> None:
        """Set how long each of `send` and `recv` may take."""
        self._deadline = time.monotonic() + seconds

    def send(self, data: Any) -> int:
        """Send data; how much of it was sent."""
        return self._carried(lambda: self._tls.write(data))

    def recv(self, most: int) -> bytes:
        """Return what came, empty at the end."""
        try:
            return self._carried(lambda: self._tls.read(most))
        except ssl.SSLZeroReturnError:
            return b""

    def fileno(self) -> int:
        """Return the number of the connection's file."""
        return self._outer.fileno()

    def shutdown(self, how: int) -> None:
        """End the connection for its reader, from any thread."""
        self._outer.shutdown(how)

    def close(self) -> None:
        """Close the connection."""
        self._outer.close()

    def _carried(self, step: Callable[[], T]) -> T:
        """Carry out a step of the inner TLS; send to the proxy what it writes, and receive what it waits for."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self._flush()
                self._outer.settimeout(seconds_left(self._deadline))
                came = self._outer.recv(_RECORD)
                if came:
                    self._coming.write(came)
                else:
                    self._coming.write_eof()
            else:
                self._flush()
                return done

    def _flush(self) -> None:
        sending = memoryview(self._going.read())
        while sending:
            self._outer.settimeout(seconds_left(self._deadline))
            sending = sending[self._outer.send(sending) :]
