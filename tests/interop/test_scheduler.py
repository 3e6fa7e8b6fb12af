"""The simulator beside a real kube-scheduler: random pods, whether each fits, why not, and on which node.

`make interop-scheduler` says which releases to build and run, and INTEROP_CASES how many clusters of about 19 pods.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.interop.api import PodWatch
from tests.interop.beside import Beside
from tests.interop.control_plane import TOKEN, VERSIONS, control_plane, why_no_control_plane

RELEASES = os.environ.get("INTEROP_SCHEDULER", "").split()
CASES = int(os.environ.get("INTEROP_CASES", "20"))
REASON = why_no_control_plane() if RELEASES else "make interop-scheduler builds and runs a real control plane"
pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(REASON), reason=REASON)]


@pytest.mark.parametrize("release", RELEASES or ["none"])
def test_pods_go_where_the_real_scheduler_puts_them(release: str, tmp_path: Path) -> None:
    with control_plane(release, tmp_path) as api, contextlib.closing(PodWatch(api, TOKEN)) as watch:
        beside = Beside(api, watch, VERSIONS[release])
        for seed in range(CASES):
            beside.case(seed)
    tally = beside.tally
    print(tally)  # noqa: T201 - how much was compared
    assert tally.differences == []
    # The comparison has compared something: pods that fit, pods that do not, and nodes that differ in score.
    assert tally.bound > CASES
    assert tally.pods - tally.bound > CASES
    assert tally.bound - tally.lotteries > CASES
