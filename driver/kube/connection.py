"""The connection to an API server: where it is, who we are there, TLS; all of it as the `kubernetes` package reads it.

In a pod that is the service account, whose token kubelet renews in its file; elsewhere a kubeconfig. Requests go
through the connection pool of the package's REST layer and carry the headers of its authentication settings. Bodies are
bytes, so none of the ways in which the layer above re-labels or re-encodes them applies, and an answer comes back
whatever its status.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.kube.package import submodules
from dranode.driver.kube.source import Credentials

log = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 3.0
_UNAUTHORIZED: Final = 401
# Claims that are fetched at a time, slices being watched, events, and some to spare.
_POOL: Final = 16


class UnreachableError(DranodeError):
    """No answer came: no connection, none in time, or the server is not the one that it should be."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request on its way.

    Attributes:
        method: the HTTP method.
        path: path and query.
        headers: beside those of authentication.
        seconds: how long to wait for each part of the answer.
        body: what is sent.
        stream: leave the answer's body to the caller.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    seconds: float
    body: bytes | None = None
    stream: bool = False


class Connection:
    """One API server. The `kubernetes` package is loaded with the first request; any thread may send."""

    def __init__(self, source: Credentials) -> None:
        """Name the credentials; nothing is read yet."""
        self._source = source
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    def send(self, outgoing: Outgoing) -> Any:
        """Send a request; the answer is urllib3's response, read whole unless it is a stream.

        Credentials that the server turns down, and certificates that do not fit, are read again once.

        Raises:
            UnreachableError: there is no answer.
        """
        opened = self._open()
        try:
            answer = opened.send(outgoing)
            if answer.status != _UNAUTHORIZED:
                return answer
            answer.drain_conn()
            answer.release_conn()
        except _TLSError as error:
            log.warning("%s is not to be trusted: %s", opened, error)
        opened = self._reopen(opened)
        try:
            return opened.send(outgoing)
        except _TLSError as error:
            raise UnreachableError(f"{opened} is not to be trusted: {error}") from error

    def close(self) -> None:
        """Drop the connections that are at rest."""
        with self._lock:
            if self._opened is not None:
                self._opened.pool.close()

    def _open(self) -> _Opened:
        with self._lock:
            if self._opened is None:
                self._opened = _read(self._source)
            return self._opened

    def _reopen(self, stale: _Opened) -> _Opened:
        with self._lock:
            if self._opened is None or self._opened is stale:
                log.info("reading the API server's credentials again")
                # Requests that are on their way keep the old pool alive; its connections close with it.
                self._opened = _read(self._source)
            return self._opened


class _TLSError(Exception):
    """The server's certificate or ours does not fit."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """What the credentials came to when they were read.

    Attributes:
        configuration: the package's Configuration.
        pool: urllib3's connection pool for the one server there is.
        prefix: what goes before every path: the server's own path, if it has one, or all of it for a plain proxy.
    """

    configuration: Any
    pool: Any
    prefix: str

    def __str__(self) -> str:
        return f"the API server at {self.configuration.host}"

    def send(self, outgoing: Outgoing) -> Any:
        import urllib3  # noqa: PLC0415 - a driver listens before it loads what it does not listen with

        errors = urllib3.exceptions
        try:
            return self.pool.urlopen(
                outgoing.method,
                self.prefix + outgoing.path,
                body=outgoing.body,
                headers={**outgoing.headers, **self._authorization()},
                timeout=urllib3.Timeout(connect=min(_CONNECT_SECONDS, outgoing.seconds), read=outgoing.seconds),
                retries=False,
                redirect=False,
                preload_content=not outgoing.stream,
            )
        except errors.SSLError as error:
            raise _TLSError(_root(error)) from error
        except errors.NewConnectionError as error:  # for the package a kind of timeout
            raise UnreachableError(f"{self} does not answer: {_root(error)}") from error
        except errors.TimeoutError as error:
            # Without a number: what is said again and again should be the same.
            raise UnreachableError(f"{self} did not answer in time") from error
        except (errors.HTTPError, OSError) as error:
            raise UnreachableError(f"{self} does not answer: {_root(error)}") from error
        except ValueError:
            # http.client quotes a header that it cannot send, and one of them is the token.
            raise UnreachableError(f"a header for {self} cannot be sent; look at the token's characters") from None

    def _authorization(self) -> dict[str, str]:
        try:
            settings = self.configuration.auth_settings().values()
        except Exception as error:  # a token is read again from time to time, by whatever means a kubeconfig names
            raise UnreachableError(f"the credentials for {self} cannot be read: {error}") from error
        # A token file may end with a newline, which no header can carry; the error would show the token.
        return {one["key"]: one["value"].strip() for one in settings if one["in"] == "header" and one["value"]}


def _read(source: Credentials) -> _Opened:
    loader = "config.kube_config" if source.kubeconfig else "config.incluster_config"
    settings, rest, loading = submodules("client.configuration", "client.rest", loader)
    configuration = settings.Configuration()
    configuration.connection_pool_maxsize = _POOL
    configuration.keep_alive = True
    try:
        if source.kubeconfig:
            loading.load_kube_config(source.kubeconfig, client_configuration=configuration, persist_config=False)
        else:
            token, authority = (source.service_account / name for name in ("token", "ca.crt"))
            loading.InClusterConfigLoader(str(token), str(authority)).load_and_set(configuration)
        pools = rest.RESTClientObject(configuration).pool_manager
        pools.connection_pool_kw["ssl_context"] = _tls(verify=configuration.verify_ssl)
        host = urlsplit(configuration.host)
        prefix = configuration.host if pools.proxy is not None and host.scheme == "http" else host.path
        return _Opened(configuration, pools.connection_from_url(configuration.host), prefix.rstrip("/"))
    except Exception as error:  # the package raises whatever its readers of YAML, base64 and certificates raise
        origin = source.kubeconfig or source.service_account
        raise UnreachableError(f"the credentials in {origin} cannot be used: {error}") from error


def _tls(*, verify: bool) -> ssl.SSLContext:
    """What urllib3 would make, as strict as Go and no stricter: clusters have certificates that RFC 5280 does not want.

    From Python 3.13 on such a certificate (EKS has no Authority Key Identifier) would not be trusted.
    """
    from urllib3.util.ssl_ import create_urllib3_context  # noqa: PLC0415 - loaded with the first request

    context: ssl.SSLContext = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED if verify else ssl.CERT_NONE)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _root(error: BaseException) -> str:
    """The innermost cause, which is the one that says something."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return getattr(error, "strerror", None) or str(error)
