"""The API server that a kubeconfig names, as the `kubernetes` package reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dranode.driver.kube.server import Server, UnreachableError, proxy_of, tls_context


def kubeconfig_namespace(path: str, context: str = "") -> str:
    """The namespace of a context, or of the current one; `default` if it names none, as for kubectl.

    Raises:
        UnreachableError: the file cannot be used, or has no such context.
    """
    from kubernetes.config import kube_config  # noqa: PLC0415 - a pod does without the package

    try:
        listed: Any = kube_config.list_kube_config_contexts
        contexts, current = listed(path)
    except Exception as error:  # the package raises whatever its reader of YAML raises
        raise UnreachableError(f"the contexts in {path} cannot be read: {error}") from error
    named = {str(each["name"]): each for each in contexts}
    if context and context not in named:
        raise UnreachableError(f'{path} has no context "{context}"; there are {", ".join(sorted(named)) or "none"}')
    chosen: Any = named[context] if context else current
    return str(chosen.get("context", {}).get("namespace") or "default")


def kubeconfig_server(path: str, context: str = "") -> Server:
    """The server of a context, or of the current one.

    Raises:
        UnreachableError: the file cannot be used.
    """
    from kubernetes.client import Configuration  # noqa: PLC0415 - a pod does without the package
    from kubernetes.config import kube_config  # noqa: PLC0415 - likewise

    settings = Configuration()
    try:
        load: Any = kube_config.load_kube_config
        load(path, context=context or None, client_configuration=settings, persist_config=False)
        url = settings.host.rstrip("/")
        host = urlsplit(url).hostname or ""
        tls = None
        if url.startswith("https:"):
            tls = tls_context(settings.ssl_ca_cert, verify=settings.verify_ssl)
            if settings.ca_cert_data:
                tls.load_verify_locations(cadata=settings.ca_cert_data)
            if settings.cert_file:
                tls.load_cert_chain(settings.cert_file, settings.key_file)
        proxy = proxy_of(host, settings.proxy or "", settings.no_proxy or "")
    except Exception as error:  # the package raises whatever its readers of YAML, base64 and certificates raise
        raise UnreachableError(f"the credentials in {path} cannot be used: {error}") from error

    def headers() -> Mapping[str, str]:
        return _authorization(settings, url)

    return Server(url, headers, tls, settings.tls_server_name or "", proxy)


def _authorization(settings: Any, url: str) -> Mapping[str, str]:
    try:
        found = settings.auth_settings().values()
    except Exception as error:  # a token is read again from time to time, by whatever means a kubeconfig names
        raise UnreachableError(f"the credentials for the API server at {url} cannot be read: {error}") from error
    # A token file may end with a newline, which no header can carry.
    return {one["key"]: one["value"].strip() for one in found if one["in"] == "header" and one["value"]}
