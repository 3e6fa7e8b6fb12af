"""The API server that credentials name: its address, our identity there, and how its certificate is verified."""

import contextlib
import logging
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from dranode.api.errors import DranodeError, UsageError
from dranode.cdi.regular_file import read_given
from dranode.driver.kube.http1 import Connected, seconds_left
from dranode.driver.kube.proxy import Proxy, TLSThroughTLS, tunnel
from dranode.driver.machine.presence import is_there

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0
CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----\s[^-]*-----END CERTIFICATE-----")
_PORTS: Final = {"http": 80, "https": 443}
# Family, type, protocol, canonical name and address, as `socket.getaddrinfo` returns them.
_AddressInfo: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


class UnreachableError(DranodeError):
    """No answer came: there is no connection, it took too long, or the server's certificate does not fit."""


class UnusableCredentialsError(UnreachableError):
    """No request was sent, and none can be sent before somebody changes the credentials."""


class TokenFile:
    """A token in a file that another program renews at any time."""

    def __init__(self, path: Path, remedy: str, token: str = "", *, seconds: float = 0.0) -> None:
        """Read nothing yet.

        Args:
            path: the file.
            remedy: what to do if it is empty, for the error.
            token: the token to use if the file was never readable; empty for none.
            seconds: how long a token is used before the file is read again.
        """
        self._path = path
        self._remedy = remedy
        self._token = token
        self._seconds = seconds
        self._until = 0.0
        self._problem = ""

    def headers(self) -> Mapping[str, str]:
        """Return the header with the token.

        Raises:
            UnreachableError: the file cannot be read, and no token is known.
        """
        if time.monotonic() >= self._until:
            try:
                self._token, self._problem = self._read(), ""
            except UnreachableError as error:
                # As in client-go, the last known token is used: it may still be valid.
                if not self._token:
                    raise
                if str(error) != self._problem:
                    log.warning("token=%s: %s; the last known token is used", self._path, error)
                self._problem = str(error)
            self._until = time.monotonic() + self._seconds
        return {"Authorization": f"Bearer {self._token}"}

    def _read(self) -> str:
        try:
            # It may end with a newline, which no header can carry.
            token = read_given(self._path).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UnreachableError(f"the token in {self._path} cannot be read: {reason}") from error
        if not token:
            raise UnreachableError(f"the token in {self._path} is empty; {self._remedy}")
        return token


class Server(msgspec.Struct, frozen=True):
    """An API server.

    Attributes:
        url: its address, `https://10.96.0.1:443`, which may have a path.
        headers: returns the headers of authentication; called for every request, because tokens are renewed.
        tls: how its certificate is verified; None for plain HTTP.
        name: the name in its certificate, if that is not the host of `url`.
        proxy: the proxy through which it is reached; None for none.
        always: names and values of the headers that every request has; a name may occur several times.
    """

    url: str
    headers: Callable[[], Mapping[str, str]]
    tls: ssl.SSLContext | None = None
    name: str = ""
    proxy: Proxy | None = None
    always: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"the API server at {self.url}"

    @property
    def host(self) -> str:
        """Return the value of the header `Host`."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def prefix(self) -> str:
        """Return what precedes every path: the URL's own path, or the whole URL if a proxy forwards plain HTTP."""
        return (self.url if self.proxy and self.tls is None else urlsplit(self.url).path).rstrip("/")

    @property
    def fixed_headers(self) -> Iterator[tuple[str, str]]:
        """Yield the headers that every request has, with those for a proxy that forwards plain HTTP."""
        yield from self.always
        if self.tls is None and self.proxy is not None and self.proxy.authorization:
            yield "Proxy-Authorization", self.proxy.authorization

    def connect(self, seconds: float) -> Connected:
        """Return a connection that is ready for a request, made within `seconds`.

        Raises:
            ssl.SSLError: the server's certificate does not fit.
            OSError: no connection could be made.
        """
        deadline = time.monotonic() + seconds
        server, proxy = urlsplit(self.url), self.proxy
        host, port = server.hostname or "", server.port or _PORTS[server.scheme]
        plain = _connect(host, port, deadline) if proxy is None else _connect_to_proxy(proxy, deadline)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(plain)
            if self.tls is None:
                return plain
            if proxy is not None:
                tunnel(plain, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", seconds_left(deadline))
            if isinstance(plain, ssl.SSLSocket):
                return TLSThroughTLS(plain, self.tls, self.name or _certified(host), seconds_left(deadline))
            return _wrapped(plain, self.tls, self.name or _certified(host), deadline)
        except BaseException:
            plain.close()
            raise


def tls_context(authority: bytes | None, *, verify: bool = True, public: bool = False) -> ssl.SSLContext:
    """Return the context that verifies a server's certificate, as strictly as Go and no more.

    Args:
        authority: the trusted certificates, in PEM; None for those of the system.
        verify: False to trust every server.
        public: whether to trust those of the system as well.

    Raises:
        OSError: there is no certificate.
    """
    # From Python 3.13 on, `ssl.create_default_context` refuses certificates that do not follow RFC 5280 strictly, such
    # as those of EKS, which have no Authority Key Identifier.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None or public:
        context.load_default_certs()
    if authority is not None:
        _trust(context, authority)
    # An authority need not be self-signed: some clusters hand out an intermediate one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def tls_problem(peer: object, error: ssl.SSLError) -> str:
    """Return why there is no TLS connection to a server or a proxy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {peer} is not trusted: {error.strerror}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return f"{peer} does not speak TLS; check its port, or whether its address should begin with http:"
    return f"TLS with {peer} fails: {error.strerror or error}"


def _trust(context: ssl.SSLContext, bundle: bytes) -> None:
    """Trust the certificates of a bundle; comments and other blocks are ignored, as Go ignores them.

    Raises:
        OSError: there is no certificate in it.
    """
    trusted = False
    for block in CERTIFICATE.findall(bundle):
        # A block that cannot be parsed does not spoil the others, as in Go's `AppendCertsFromPEM`.
        with contextlib.suppress(ValueError, ssl.SSLError):
            context.load_verify_locations(cadata=ssl.PEM_cert_to_DER_cert(block.decode()))
            trusted = True
    if not trusted:
        raise OSError("there is no certificate in PEM")


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first of a host's addresses that answers; each has its part of the time, as for Go's clients."""
    refused: OSError = OSError(f"{host} has no address")
    addresses = _resolve(host, port, deadline)
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(min(CONNECT_SECONDS, seconds_left(deadline) / (len(addresses) - tried)))
            connection.connect(address)
        except OSError as error:
            connection.close()
            refused = error
        else:
            return connection
    raise refused


def _resolve(host: str, port: int, deadline: float) -> Sequence[_AddressInfo]:
    """Return the addresses of a host, as `getaddrinfo` does, by the deadline.

    Raises:
        OSError: there are none, or no name server has answered by then.
    """
    with contextlib.suppress(socket.gaierror):
        # In a pod the API server is an address, for which nothing is asked.
        return socket.getaddrinfo(_plain(host), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    # resolv.conf alone limits how long this call waits for name servers: 10 seconds for one that is silent, more for
    # several. kubelet does not wait that long, so a thread waits instead; it ends with the call.
    answers: SimpleQueue[Sequence[_AddressInfo] | OSError] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(_plain(host), port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=ask, name="resolver", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds_left(deadline))
    except Empty:
        raise OSError(f"no name server has answered for {host} in time; check /etc/resolv.conf") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _connect_to_proxy(proxy: Proxy, deadline: float) -> socket.socket:
    try:
        plain = _connect(proxy.host, proxy.port, deadline)
        return plain if proxy.tls is None else _wrapped(plain, proxy.tls, _certified(proxy.host), deadline)
    except TimeoutError:
        raise
    except ssl.SSLError as error:
        # Reported as an error of the connection: the caller takes an SSLError for one of the API server's certificate.
        raise OSError(tls_problem(proxy, error)) from error
    except OSError as error:
        raise OSError(f"{proxy} does not answer: {error.strerror or error}") from error


def _wrapped(plain: socket.socket, tls: ssl.SSLContext, name: str, deadline: float) -> ssl.SSLSocket:
    plain.settimeout(seconds_left(deadline))
    return tls.wrap_socket(plain, server_hostname=_plain(name) or None)


def _keep_alive(connected: socket.socket) -> None:
    """Let the kernel probe an idle connection, so that it is kept alive, or found dead within a minute.

    Load balancers silently forget idle connections after some minutes. By default, the kernel's first probe comes after
    two hours.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        # Other systems, such as a laptop's macOS, lack some of these names.
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _certified(host: str) -> str:
    """Return how a certificate names a host, without the dot that keeps a resolver from its search list."""
    return host.removesuffix(".")


def _plain(host: str) -> str | bytes:
    """Return the host as bytes if it is ASCII: for a text, Python loads its tables of international names."""
    return host.encode() if host.isascii() else host


# Where the credentials are. They are read with the first request, because a driver has to listen on its sockets first.

# The folder in which kubelet mounts a pod's service account.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Credentials(NamedTuple):
    """Where the credentials are.

    Attributes:
        kubeconfig: a kubeconfig file, or several as in `KUBECONFIG`; empty for the service account of this pod.
        service_account: the folder with the pod's token and its certificate authority.
        context: the kubeconfig's context; empty for its current one.
        flags: what replaces fields of the context's cluster and user.
    """

    kubeconfig: str = ""
    service_account: Path = SERVICE_ACCOUNT
    context: str = ""
    flags: Mapping[str, Any] = MappingProxyType({})

    def check(self) -> None:
        """Check that there is a kubeconfig or a service account.

        Raises:
            UsageError: there is neither.
        """
        if self.kubeconfig:
            if not any(map(_is_there, self.kubeconfig.split(os.pathsep))):
                raise UsageError(f"there is no kubeconfig {self.kubeconfig}; name one with --kubeconfig")
        elif not os.environ.get("KUBERNETES_SERVICE_HOST"):
            raise UsageError(
                "this is not a pod (KUBERNETES_SERVICE_HOST is not set); name a cluster with --kubeconfig, "
                "or a folder of claims with --store"
            )


def _is_there(path: str) -> bool:
    try:
        return is_there(Path(path))
    except OSError as error:
        raise UsageError(
            f"the kubeconfig {path} cannot be accessed: {error.strerror}; run as a user who may read it, or name "
            "another one with --kubeconfig"
        ) from error
