"""The API server of the cluster that this pod runs in, and the pod's service account there.

Four facts make it: two variables that kubelet sets, the token that it renews in its file, and the authority's
certificate. The `kubernetes` package reads the same four at the price of 18 MiB and 100 ms.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dranode.driver.kube.proxy import ProxyError, environment_proxy
from dranode.driver.kube.server import Server, UnreachableError, tls_context

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
    authority = str(account / "ca.crt")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
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
            reason = getattr(error, "strerror", None) or "it is no text"
            raise UnreachableError(f"the pod's token {self._path} cannot be read: {reason}") from error
        if not token:
            raise UnreachableError(f"the pod's token {self._path} is empty; see that its service account exists")
        return token
