"""The API server's clock, by the header that every HTTP answer has (RFC 9110, section 6.6.1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from dranode.driver.kube.http1 import Outgoing, Wire
from dranode.driver.kube.server import UnreachableError


def clock_skew(wire: Wire, clock: Callable[[], float] = time.time) -> int | None:
    """By how many seconds the server's clock is ahead of this one; None if it does not say."""
    before = clock()
    try:
        answer = wire.send(Outgoing("GET", "/version", {"Accept": "application/json"}, 5.0))
    except UnreachableError:
        return None
    after = clock()
    try:
        there = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None
    # The header has whole seconds, of some moment between sending and receiving.
    if before - 1 <= there <= after:
        return 0
    return round(there - before) if there < before else round(there - after)
