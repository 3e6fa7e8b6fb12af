"""The address of probes and metrics. It is bound before anything else, so that a taken port is known at once."""

from __future__ import annotations

import os
import re
import socket
from typing import Final

from dranode.driver.core.api.errors import DranodeError, UsageError

NONE: Final = "none"
_ADDRESS: Final = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*)):([0-9]{1,5})", re.ASCII)
_MAX_PORT: Final = 65535
# Who finds this queue full tries again after a second, which is as long as a probe may take.
_QUEUE: Final = 1024


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPv6]:PORT` or `:PORT` (every address), the value of that option.

    Raises:
        UsageError: it is none of these.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > _MAX_PORT:
        raise UsageError(f'{option} is HOST:PORT, [IPv6]:PORT or {NONE}, not "{text}"')
    return match[1] or match[2] or "", int(match[3])


def bind_address(text: str, option: str = "--http-address") -> socket.socket | None:
    """A socket that listens on the address that an option says; None for `none`. Port 0 takes any that is free.

    Raises:
        UsageError: it is not an address.
        DranodeError: the address cannot be bound; says why.
    """
    if text == NONE:
        return None
    host, port = parse_address(text, option)
    try:
        # As bytes, which need no codec for other alphabets: that takes 3 ms to load.
        asked = host.encode() if host.isascii() else host
        family = socket.getaddrinfo(asked or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        everywhere = not host and socket.has_dualstack_ipv6()
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if everywhere else family,
            backlog=_QUEUE,
            dualstack_ipv6=everywhere,
        )
    except (OSError, UnicodeError) as error:
        # The error's own text names the address once more; that of a name that does not resolve has no number, and a
        # name that cannot be one (`a..b`) never comes to the resolver.
        reason: str | None = "this is no host name"
        if isinstance(error, OSError):
            reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise DranodeError(
            f"nobody can listen on the HTTP address {text}: {reason}; "
            f"choose another with {option}, or {NONE} to do without"
        ) from error
