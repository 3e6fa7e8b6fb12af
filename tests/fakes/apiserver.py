"""The sanity suite's API server, as tests start it: with the TLS certificate of `tests/vectors`."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dranode.sanity.apiserver import ApiServer
from dranode.sanity.apiserver import RequestFault as Fault

__all__ = ["CERTIFICATES", "TLS", "ApiServer", "Fault", "api_server"]

CERTIFICATES: Final = Path(__file__).parents[1] / "vectors" / "apiserver"
TLS: Final[Mapping[str, Any]] = {
    "certificate": (CERTIFICATES / "server.crt", CERTIFICATES / "server.key"),
    "authority": CERTIFICATES / "ca.crt",
}


@contextlib.contextmanager
def api_server(*, tls: bool = False, **attributes: Any) -> Iterator[ApiServer]:
    """A running API server."""
    with ApiServer(**attributes, **(TLS if tls else {})) as server:
        yield server
