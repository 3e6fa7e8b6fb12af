"""Tokens of the providers that a kubeconfig may name in place of a program: OpenID Connect, and Google's.

The `kubernetes` package renews them. It takes half a second of CPU to load, so nothing else asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dranode.driver.kube.server import UnreachableError


def provider_headers(path: str, context: str, provider: str) -> Callable[[], Mapping[str, str]]:
    """Return how requests say who they come from, for a context whose user has an `auth-provider`.

    Raises:
        UnreachableError: the package is not installed, or does not know the provider.
    """
    try:
        from kubernetes.client import Configuration  # noqa: PLC0415 - half a second
        from kubernetes.config import kube_config  # noqa: PLC0415 - likewise
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

    def headers() -> Mapping[str, str]:
        try:
            given: Any = settings.auth_settings().values()
        except Exception as error:  # a token is renewed from time to time
            raise UnreachableError(f'auth-provider "{provider}" gives no token: {error}') from error
        named = {each["key"]: each["value"].strip() for each in given if each["in"] == "header" and each["value"]}
        if not named:
            raise UnreachableError(
                f'auth-provider "{provider}" gives no token; log in again, or name a program with exec'
            )
        return named

    return headers
