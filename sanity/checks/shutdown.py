"""SIGTERM: the sockets go, what pods use stays."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable, expect
from dranode.sanity.check import must, should

_GRACE: Final = 30.0
_HELPER: Final = "kubeletplugin helper, Stop"


def _terminated(bench: Bench) -> int | None:
    """End the driver as the end of its pod does; its exit status, or None if it did not end in time."""
    process = bench.started()
    # One that is still starting may end in another way.
    with contextlib.suppress(Unable):
        bench.offers()
    bench.disconnect()
    return process.terminate(min(_GRACE, bench.patience))


@should(
    "shutdown-ends",
    "SIGTERM ends the driver within a pod's 30 s.",
    "Kubernetes, pod lifecycle: termination grace period",
)
def sigterm_ends_it(bench: Bench) -> None:
    """However long it takes, SIGKILL is not needed."""
    status = _terminated(bench)
    expect(status is not None, f"it still runs after {min(_GRACE, bench.patience):g} s", "handle SIGTERM")


@should(
    "shutdown-status",
    "A driver that SIGTERM ends has the exit status 0.",
    "Kubernetes, pod lifecycle: other statuses are failures",
)
def sigterm_is_no_failure(bench: Bench) -> None:
    """Neither a failure nor a death by the signal."""
    status = _terminated(bench)
    expect(status in (0, None), f"the status is {status}", "end in order when SIGTERM comes")


@should(
    "shutdown-registration-socket",
    "The registration socket is gone after SIGTERM, so that kubelet takes the driver off its list.",
    f"{_HELPER}; kubelet deregisters when the socket is removed, and nobody else removes a stale one",
)
def registration_sockets_go(bench: Bench) -> None:
    """The socket's file."""
    sockets = bench.registration_sockets()
    _terminated(bench)
    left = [str(path) for path in sockets if path.exists()]
    expect(not left, f"{left} is left", "unlink the socket when stopping")


@should(
    "shutdown-service-socket", "The service's socket is gone after SIGTERM.", f"{_HELPER}: both sockets are unlinked"
)
def service_sockets_go(bench: Bench) -> None:
    """The socket's file."""
    endpoint = Path(bench.endpoint())
    _terminated(bench)
    expect(not endpoint.exists(), f"{endpoint} is left", "unlink the socket when stopping")


@must(
    "shutdown-keeps-claims",
    "Claims stay prepared after SIGTERM: pods run on, and their containers may be restarted.",
    f"{_HELPER}: in-flight state is kept; Unprepare comes from kubelet alone",
)
def claims_stay(bench: Bench) -> None:
    """The CDI ids still resolve."""
    bench.started()
    claim = bench.claim()
    (answer,) = bench.prepared(claim)
    if not answer.cdi:
        raise Unable("the driver answers no CDI ids")
    before = bench.specs.edits(answer.cdi)
    _terminated(bench)
    after = bench.specs.edits(answer.cdi)
    expect(after == before, f"the edits are {after}, and were {before}", "leave specs where they are when stopping")


@should(
    "shutdown-keeps-slices",
    "Slices stay after SIGTERM: kubelet removes them 30 s after the driver has gone for good.",
    f"{_HELPER}: slices are not deleted on stop",
)
def slices_stay(bench: Bench) -> None:
    """The slices before and after."""
    bench.started()
    bench.offers()
    before = len(bench.slices())
    _terminated(bench)
    after = len(bench.slices())
    expect(after == before, f"{after} of {before} slices are left", "leave slices to kubelet")
