"""Amounts of resources that a real API server accepts or refuses, compared with ours, by dry runs of random objects.

`make interop-scheduler` says which releases to build and run, and INTEROP_AMOUNTS how many objects are tried.
"""

import os
from pathlib import Path

import pytest

from dranode.api.documents import decode
from dranode.sim.scheduler.amounts import node_amount_errors, pod_scheduling_errors
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod
from tests.interop.api import Api, RefusedError
from tests.interop.control_plane import control_plane, why_no_control_plane
from tests.interop.random_amounts import Document, RandomAmounts

RELEASES = os.environ.get("INTEROP_SCHEDULER", "").split()
OBJECTS = int(os.environ.get("INTEROP_AMOUNTS", "1000"))
REASON = why_no_control_plane() if RELEASES else "make interop-scheduler builds and runs a real control plane"
pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(REASON), reason=REASON)]


@pytest.mark.parametrize("release", RELEASES or ["none"])
def test_amounts_are_refused_where_the_real_api_server_refuses_them(release: str, tmp_path: Path) -> None:
    with control_plane(release, tmp_path, schedules=False) as api:
        verdicts = [verdicts_on(document, api) for document in objects(0, OBJECTS)]
    assert [each for each in verdicts if each[0] != bool(each[1])] == []
    assert {refused for refused, *_ in verdicts} == {True, False}


def objects(seed: int, count: int) -> list[Document]:
    made = RandomAmounts(seed)
    return [made.node() if number % 8 == 0 else made.pod() for number in range(count)]


def verdicts_on(document: Document, api: Api) -> tuple[bool, list[str], Document]:
    """Yield whether the server refuses the object, our refusal, and the object."""
    path = "/api/v1/nodes" if document["kind"] == "Node" else "/api/v1/namespaces/default/pods"
    try:
        api.create(f"{path}?dryRun=All", document)
        refused = False
    except RefusedError as error:
        if "is invalid" not in str(error):
            raise
        refused = True
    if document["kind"] == "Node":
        found = [*node_amount_errors(decode(SchedulingNode, document))]
    else:
        found = [*pod_scheduling_errors(decode(SchedulingPod, document))]
    return refused, [f"{each.path}: {each.message}" for each in found], document
