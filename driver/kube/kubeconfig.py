"""The API server that a kubeconfig names, and our identity there.

The file is read here, because the `kubernetes` package takes half a second of CPU to load. Only that package can renew
the tokens of the providers `oidc` and `gcp` by OAuth 2.0, so it is used for these.
"""

import base64
import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

from dranode.api.errors import DocumentError, UsageError
from dranode.cdi.regular_file import read_given
from dranode.driver.kube.exec_credentials import ExecCredentials, PairInPEM
from dranode.driver.kube.kubeconfig_file import (
    ChosenContext,
    ConfigCluster,
    ConfigUser,
    chosen_context,
    decoded,
    exec_configuration,
)
from dranode.driver.kube.proxy import ProxyError, environment_proxy, parsed_proxy
from dranode.driver.kube.server import (
    CERTIFICATE,
    Server,
    TokenFile,
    UnreachableError,
    UnusableCredentialsError,
    tls_context,
)


def provider_headers(path: str, context: str, provider: str) -> Callable[[], Mapping[str, str]]:
    """Return the headers of authentication for a context whose user has an `auth-provider`.

    Raises:
        UnreachableError: the package is not installed, or does not know the provider.
    """
    try:
        from kubernetes.client import Configuration  # noqa: PLC0415 - an extra, which may be missing
        from kubernetes.config import kube_config  # noqa: PLC0415 - an extra, which may be missing
    except ModuleNotFoundError as error:
        raise UnreachableError(
            f'auth-provider "{provider}" needs the extra auth-provider, which is not installed: {error}; install '
            "dranode[auth-provider], or name a program with exec instead"
        ) from error
    settings = Configuration()
    try:
        load: Any = kube_config.load_kube_config
        load(path, context=context, client_configuration=settings, persist_config=False)
    except Exception as error:  # the package raises whatever its readers of YAML and JSON raise
        raise UnreachableError(f'auth-provider "{provider}" gives no token: {error}') from error

    def current_headers() -> Mapping[str, str]:
        try:
            given: Any = settings.auth_settings().values()
        except Exception as error:  # a token is renewed from time to time
            raise UnreachableError(f'auth-provider "{provider}" gives no token: {error}') from error
        headers = {
            setting["key"]: setting["value"].strip()
            for setting in given
            if setting["in"] == "header" and setting["value"]
        }
        if not headers:
            raise UnreachableError(
                f'auth-provider "{provider}" gives no token; log in again, or name a program with exec'
            )
        return headers

    return current_headers


Headers: TypeAlias = Callable[[], Mapping[str, str]]


def kubeconfig_context(path: str, context: str = "", flags: Mapping[str, Any] = MappingProxyType({})) -> ChosenContext:
    """Return the context with this name, or the current one for an empty name.

    Raises:
        UnreachableError: the file cannot be used, or has no such context.
    """
    try:
        return chosen_context(path, context, flags)
    except DocumentError as error:
        raise UnreachableError(_unusable("", path, error)) from error


def _unusable(what: str, path: str, error: Exception) -> str:
    """Return why a kubeconfig cannot be used; an error about its text names the file itself."""
    return str(error) if str(error).startswith(path) else f"{what}{path} cannot be used: {error}"


def check_kubeconfig(path: str) -> None:
    """Check that a kubeconfig can be read and names a server; the files and programs that it names may come later.

    Raises:
        UsageError: it cannot be read, or names no server.
    """
    try:
        _server_url(chosen_context(path).cluster.server)
    except (DocumentError, ValueError) as error:
        raise UsageError(_unusable("the kubeconfig ", path, error)) from error


def kubeconfig_server(
    path: str,
    context: str = "",
    program_seconds: float | None = None,
    flags: Mapping[str, Any] = MappingProxyType({}),
) -> Server:
    """Return the server of a context, or of the current one.

    Args:
        path: the file, or several as in `KUBECONFIG`.
        context: the context's name; empty for the current one.
        program_seconds: how long a program that provides credentials may take; None for no limit.
        flags: what replaces fields of the context's cluster and user (`chosen_context`).

    Raises:
        UnusableCredentialsError: the file cannot be used.
    """
    try:
        return _server(chosen_context(path, context, flags), path, program_seconds)
    except (DocumentError, UnreachableError, ProxyError, OSError, ValueError) as error:
        raise UnusableCredentialsError(_unusable("the credentials in ", path, error)) from error


def _server(chosen: ChosenContext, path: str, program_seconds: float | None) -> Server:
    cluster, user = chosen.cluster, chosen.user
    url = _server_url(cluster.server)
    secure = url.startswith("https:")
    tls = _tls(cluster, user) if secure else None

    def proxy_tls() -> ssl.SSLContext:
        # client-go verifies a proxy only with the cluster's authority. Most proxies have a certificate of a public one.
        return _trust(cluster, public=True)

    proxy = (
        parsed_proxy(cluster.proxy_url, "proxy-url", proxy_tls)
        if cluster.proxy_url
        else environment_proxy(url, proxy_tls)
    )
    headers = _authentication(chosen, path, tls, program_seconds)
    return Server(url, headers, tls, cluster.tls_server_name, proxy, tuple(_as_another(user)))


def _server_url(server: str) -> str:
    """Return the URL of a server, which may also be written as `host:port`, as in client-go."""
    if "@" in server:
        # The URL is shown in errors and logged, so it must not have a password.
        raise DocumentError("the server's URL has a user in it; write username and password of the user instead")
    parts = urlsplit(server)
    if not parts.scheme or not parts.netloc:
        # `kubernetes:6443` would be read as a URL with the scheme `kubernetes`.
        parts = urlsplit(f"https://{server}")
        if parts.path not in ("", "/"):
            raise DocumentError(f'the server "{server}" is neither a URL nor host:port')
    # An invalid port is a ValueError here.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise DocumentError(f'the server "{server}" is not an http or https URL')
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _trust(cluster: ConfigCluster, *, public: bool = False) -> ssl.SSLContext:
    authority: bytes | None = None
    # As in client-go, `*-data` fields take precedence over files.
    if cluster.certificate_authority_data:
        authority = decoded(cluster.certificate_authority_data, "certificate-authority-data")
    elif cluster.certificate_authority:
        authority = _content(cluster.certificate_authority, "certificate-authority")
    try:
        return tls_context(authority, verify=not cluster.insecure_skip_tls_verify, public=public)
    except OSError as error:
        raise DocumentError(f"certificate-authority cannot be used: {error}") from error


def _tls(cluster: ConfigCluster, user: ConfigUser) -> ssl.SSLContext:
    tls = _trust(cluster)
    if user.client_certificate or user.client_certificate_data:
        certificate = _pem(user.client_certificate_data, user.client_certificate, "client-certificate")
        _load_pair(tls, certificate, _pem(user.client_key_data, user.client_key, "client-key"))
    return tls


def _pem(data: str, file: str, name: str) -> bytes:
    if data:
        return decoded(data, f"{name}-data")
    if not file:
        raise DocumentError(f"neither {name}-data nor {name} is set, and a certificate needs its key")
    return _content(file, name)


def _content(file: str, name: str) -> bytes:
    try:
        return read_given(file)
    except OSError as error:
        raise DocumentError(f"{name} names {file}, which cannot be read: {error.strerror}") from error


def _load_pair(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key, both in PEM, to present them to servers.

    Raises:
        DocumentError: one of them is not what it should be, or they do not belong together.
    """
    if not CERTIFICATE.search(certificate):
        raise DocumentError("client-certificate has no certificate in PEM")
    try:
        # Python accepts only files. A pipe works if the disk is full or read-only, and keeps the key off the disk.
        with _piped(certificate) as first, _piped(key) as second:
            # With an empty password, an encrypted key is an error. Without one, OpenSSL would ask at the terminal.
            tls.load_cert_chain(first, second, password="")
    except OSError as error:
        # OpenSSL reads pipes as files and reports "Illegal seek" whatever is wrong.
        raise DocumentError("client-key is not the key of client-certificate, in PEM and without a password") from error


@contextlib.contextmanager
def _piped(content: bytes) -> Iterator[str]:
    """Yield the path of a pipe with this content.

    Raises:
        OSError: the content is larger than a pipe, usually 64 KiB.
    """
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with os.fdopen(writing, "wb") as file:
            file.write(content)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)


def _authentication(
    chosen: ChosenContext, path: str, tls: ssl.SSLContext | None, program_seconds: float | None
) -> Headers:
    """Return the headers of authentication. As for kubectl, what the file itself has wins over a program."""
    user = chosen.user
    if user.auth_provider is not None:
        return provider_headers(path, chosen.name, str(user.auth_provider.get("name", "")))
    # As in client-go, a token file takes precedence over `token`.
    if user.token_file:
        file = TokenFile(Path(user.token_file), "check what should renew it", user.token.strip())
        return file.headers
    if user.token:
        return lambda: {"Authorization": f"Bearer {user.token.strip()}"}
    if user.username or user.password:
        pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        return lambda: {"Authorization": f"Basic {pair}"}
    if user.exec is None or user.client_certificate or user.client_certificate_data:
        return dict
    credentials = ExecCredentials(user.exec, _cluster_information(chosen.cluster), seconds=program_seconds)
    return _ProgramUser(credentials, tls).headers


class _ProgramUser:
    """The identity that a program provides. Its certificate is presented with the next connection."""

    def __init__(self, credentials: ExecCredentials, tls: ssl.SSLContext | None) -> None:
        self._credentials = credentials
        self._tls = tls
        self._shown: PairInPEM | None = None

    def headers(self) -> Mapping[str, str]:
        headers, pair = self._credentials.headers(), self._credentials.pair()
        if self._tls is not None and pair is not None and pair != self._shown:
            try:
                _load_pair(self._tls, pair.certificate.encode(), pair.key.encode())
            except DocumentError as error:
                raise UnreachableError(f"what the program printed cannot be used: {error}") from error
            # Open connections keep the certificate with which they began.
            self._shown = pair
        return headers


def _cluster_information(cluster: ConfigCluster) -> dict[str, Any]:
    """Return the cluster's data for a program, in the form of `ExecCredential.spec.cluster`."""
    data = cluster.certificate_authority_data
    if not data and cluster.certificate_authority:
        data = base64.b64encode(read_given(cluster.certificate_authority)).decode()
    information = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": data,
        "proxy-url": cluster.proxy_url,
        "config": exec_configuration(cluster),
    }
    return {name: value for name, value in information.items() if value}


def _as_another(user: ConfigUser) -> Iterator[tuple[str, str]]:
    """Yield the headers of impersonation, if the file or an option asks for it.

    Raises:
        DocumentError: groups or a UID are given without a user, which client-go refuses, too.
    """
    if not user.as_:
        if user.as_uid or user.as_groups or user.as_user_extra:
            raise DocumentError("as-uid, as-groups and as-user-extra need as, the user to impersonate (--as)")
        return
    yield "Impersonate-User", user.as_
    if user.as_uid:
        yield "Impersonate-Uid", user.as_uid
    for group in user.as_groups:
        yield "Impersonate-Group", group
    for key, values in user.as_user_extra.items():
        # A key may have characters that are not allowed in a header's name. client-go escapes them in this way too.
        for value in values:
            yield f"Impersonate-Extra-{quote(key, safe='')}", value
