"""The simulator beside a real kube-scheduler: whether random pods fit, why not, and on which node.

`make interop-scheduler` says which releases to build and run, and INTEROP_CASES how many clusters of about 19 pods.
"""

import os
from pathlib import Path

import pytest

from tests.interop.beside import Beside
from tests.interop.control_plane import VERSIONS, control_plane, why_no_control_plane

RELEASES = os.environ.get("INTEROP_SCHEDULER", "").split()
CASES = int(os.environ.get("INTEROP_CASES", "20"))
REASON = why_no_control_plane() if RELEASES else "make interop-scheduler builds and runs a real control plane"
pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(REASON), reason=REASON)]


MAPPINGS = "DRANodeAllocatableResources=true"
ALPHA = "DRAListTypeAttributes=true,DRADerivedAttributes=true,DRADeviceCompatibilityGroups=true"


@pytest.mark.parametrize("release", RELEASES or ["none"])
def test_pods_go_where_the_real_scheduler_puts_them(release: str, tmp_path: Path) -> None:
    compare(release, tmp_path, "")


@pytest.mark.parametrize("release", [release for release in RELEASES if release != "1.36"] or ["none"])
def test_devices_that_stand_for_resources_of_their_node_count_as_these(release: str, tmp_path: Path) -> None:
    compare(release, tmp_path, MAPPINGS)


@pytest.mark.parametrize("release", [release for release in RELEASES if release != "1.36"] or ["none"])
def test_alpha_features_of_devices_decide_as_in_the_real_scheduler(release: str, tmp_path: Path) -> None:
    compare(release, tmp_path, ALPHA)


def compare(release: str, folder: Path, gates: str) -> None:
    with control_plane(release, folder, gates) as api, Beside.running(api, VERSIONS[release], gates) as beside:
        for seed in range(CASES):
            beside.case(seed)
    tally = beside.tally
    print(tally)  # noqa: T201 - how much was compared
    assert tally.differences == []
    # The comparison covered pods that fit, pods that do not, and nodes that differ in score.
    assert tally.bound > CASES
    assert tally.pods - tally.bound > CASES
    assert tally.bound - tally.lotteries > CASES
