"""Other orders of devices, on a trace of pods that come and go."""

from __future__ import annotations

from typing import Any

import pytest

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.errors import DocumentError, UsageError
from dranode.driver.core.api.resource import ResourceSlice
from dranode.sim.fit.demand import demand_of
from dranode.sim.fit.orders import OrderResult, read_trace, reordered, run_trace
from tests.fakes.clusters import (
    CLASS,
    DRIVER,
    Document,
    node_document,
    pod_document,
    questions_of,
    slice_document,
    template_document,
)


def device(name: str, numa: int, memory: str) -> Document:
    return {
        "name": name,
        "attributes": {"numa": {"int": numa}, "large": {"bool": memory == "80Gi"}},
        "capacity": {"memory": {"value": memory}},
    }


DEVICES = [device("a", 0, "80Gi"), device("b", 1, "40Gi"), device("c", 0, "40Gi")]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("published", "abc"),
        ("reversed", "cba"),
        ("smallest", "bca"),
        ("largest", "abc"),
        ("attribute:numa", "acb"),
        ("spread:numa", "abc"),
    ],
)
def test_an_order_is_of_the_devices_of_each_slice(order: str, names: str) -> None:
    (after,) = reordered([decode(ResourceSlice, slice_document("n", DEVICES))], order)
    assert "".join(each.name for each in after.spec.devices) == names


def test_an_order_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match='there is no order "best"'):
        reordered([], "best")


def results(order: str, *entries: dict[str, Any]) -> OrderResult:
    large = template_document("t-large")
    expression = f'device.attributes["{DRIVER}"].large'
    large["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    documents = [node_document("n"), slice_document("n", DEVICES), CLASS, template_document("t-any"), large]
    pods = [pod_document("any", claims=["t-any"]), pod_document("large", claims=["t-large"])]
    questions = questions_of(*documents, *pods)
    trace = read_trace({"trace": list(entries)})
    demands = [demand_of(questions.selected([entry.pod])[0], questions.dump, questions.features) for entry in trace]
    scheduler = questions.with_slices(reordered(questions.dump.slices, order))
    return run_trace(scheduler, questions.state, list(zip(trace, demands, strict=True)), order)


ANY = {"pod": "any", "for": 100}
LARGE = {"pod": "large", "at": 10, "for": 50}


def test_an_order_that_spares_the_large_device_keeps_nobody_waiting() -> None:
    assert results("published", ANY, LARGE) == OrderResult("published", 2, 1, 90, 0)
    assert results("smallest", ANY, LARGE) == OrderResult("smallest", 2, 0, 0, 0)


def test_a_pod_that_waits_is_tried_again_when_another_ends_and_counts_if_none_does() -> None:
    forever = {"pod": "any", "count": 3}
    assert results("published", forever, LARGE) == OrderResult("published", 4, 1, 0, 1)
    soon = {"pod": "any", "count": 3, "every": 5, "for": 20}
    # The first of the three holds the large device from 0 to 20.
    assert results("published", soon, LARGE) == OrderResult("published", 4, 1, 10, 0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"pod": "p", "count": 0}, r"trace\[0\].count: 0 pods are too few"),
        ({"pod": "p", "for": 0}, r"trace\[0\].for: 0 s are no time"),
        ({"pod": "p", "at": -1}, r"trace\[0\]: times are not below 0"),
        ({"pod": "p", "form": 3}, "form"),
        ({"count": 1}, "pod"),
    ],
)
def test_a_trace_with_a_mistake_says_where(entry: Document, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        read_trace({"trace": [entry]})


def test_a_trace_without_pods_is_an_error() -> None:
    with pytest.raises(DocumentError, match="trace: no pods come"):
        read_trace({"trace": []})
