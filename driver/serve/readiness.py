"""The things that a serving instance has to hear before it may be active, besides its own ledger and hardware."""

from __future__ import annotations

from collections.abc import Iterator

from dranode.driver.kubelet.listener import Listener
from dranode.driver.serve.pinning import Pinning


def unmet_needs(listener: Listener, pinning: Pinning | None, impediment: str | None) -> Iterator[str]:
    """Yield what an instance has not got that it needs, one sentence each.

    What blocks new claims alone blocks them for both of two instances, so it keeps neither from becoming active: who
    pins has to be settled whatever is handed out. Therefore the caller says what counts.

    Args:
        listener: its sockets, and what kubelet has asked there.
        pinning: its connection to the container runtime; None if it pins no containers.
        impediment: what is in the way of its node's claims; None if nothing is, or if it does not count.
    """
    if not listener.calls.ready.is_set():
        yield "hardware and ledger have not been read yet"
    elif impediment is not None:
        yield impediment
    registration = listener.registration
    if not registration.asked.is_set():
        yield f"kubelet has not asked for the driver at {listener.sockets.registration}"
    elif not registration.registered:
        yield "kubelet has asked for the driver and not registered it"
    # An impediment that says so is this one, after a while.
    if pinning is not None and not pinning.synchronized and (impediment is None or not pinning.not_enforced()):
        yield f"the container runtime has not told of its containers over NRI at {pinning.socket}"
