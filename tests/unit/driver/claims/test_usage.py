"""How containers' counters are added up for their claims."""

from collections.abc import Mapping

import pytest

from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.usage import ClaimShare, ContainerReading, Figure, UsageBook

A, B = ClaimRef("ns", "a", "uid-a"), ClaimRef("ns", "b", "uid-b")


def reading(container: str, *shares: ClaimShare, **values: float) -> ContainerReading:
    return ContainerReading(
        container,
        shares or (ClaimShare(A, "p", 2),),
        {Figure[name]: {"cgroup": value} for name, value in values.items()},
    )


def total(book: UsageBook, figure: Figure = Figure.CPU) -> Mapping[tuple[str, str], float]:
    return {(each.claim.name, each.pod): each.values[figure] for each in book.usage().pods if figure in each.values}


def test_a_containers_usage_before_its_first_reading_counts() -> None:
    book = UsageBook()
    book.add(0, {A: 2}, [reading("c1", CPU=7.0)])
    assert total(book) == {("a", "p"): 7.0}
    book.add(10, {A: 2}, [reading("c1", CPU=9.5)])
    assert total(book) == {("a", "p"): 9.5}


def test_a_claims_counter_continues_when_its_container_restarts() -> None:
    book = UsageBook()
    book.add(0, {A: 2}, [reading("c1", CPU=7.0)])
    book.add(10, {A: 2}, [reading("c2", CPU=1.0)])
    assert total(book) == {("a", "p"): 8.0}
    # A lower counter of the same container has started again as well.
    book.add(20, {A: 2}, [reading("c2", CPU=0.25)])
    assert total(book) == {("a", "p"): 8.25}


def test_a_container_that_is_missed_once_does_not_count_twice() -> None:
    book = UsageBook()
    book.add(0, {A: 2}, [reading("c1", CPU=7.0)])
    book.add(10, {A: 2}, [])
    book.add(20, {A: 2}, [reading("c1")])
    book.add(30, {A: 2}, [reading("c1", CPU=8.0)])
    assert total(book) == {("a", "p"): 8.0}


def test_usage_of_ended_tasks_is_kept() -> None:
    book = UsageBook()
    for seconds in ({"task 1": 2.0, "task 2": 1.0}, {"task 2": 1.5}, {"task 2": 1.5, "task 1": 0.5}):
        book.add(0, {A: 2}, [ContainerReading("c1", (ClaimShare(A, "p", 2),), {Figure.WAIT: seconds})])
    assert total(book, Figure.WAIT) == {("a", "p"): 4.0}


def test_amounts_of_a_container_with_two_claims_are_divided_by_their_cpus() -> None:
    book = UsageBook()
    both = (ClaimShare(A, "p", 3), ClaimShare(B, "p", 1))
    values = {"CPU": 8.0, "MEMORY": 400.0, "PERIODS": 10.0, "WAITING": 4.0}
    book.add(0, {A: 3, B: 1}, [reading("c1", *both, **values), reading("c2", ClaimShare(B, "q", 1), CPU=1.0)])
    assert total(book) == {("a", "p"): 6.0, ("b", "p"): 2.0, ("b", "q"): 1.0}
    assert total(book, Figure.MEMORY) == {("a", "p"): 300.0, ("b", "p"): 100.0}
    assert total(book, Figure.PERIODS) == {("a", "p"): 10.0, ("b", "p"): 10.0}
    assert total(book, Figure.WAITING) == {("a", "p"): 4.0, ("b", "p"): 4.0}


def test_memory_is_the_current_value() -> None:
    book = UsageBook()
    book.add(0, {A: 2}, [reading("c1", MEMORY=100.0)])
    book.add(10, {A: 2}, [reading("c1", MEMORY=30.0)])
    assert total(book, Figure.MEMORY) == {("a", "p"): 30.0}
    book.add(20, {A: 2}, [])
    assert total(book, Figure.MEMORY) == {}


def test_a_figure_that_a_container_lacks_is_left_out_and_counted() -> None:
    book = UsageBook()
    book.add(0, {A: 2}, [reading("c1", CPU=7.0, WAIT=1.0), reading("c2", CPU=1.0)])
    assert total(book) == {("a", "p"): 8.0}
    assert total(book, Figure.WAIT) == {}
    unread = book.usage().unread
    assert (unread[Figure.CPU], unread[Figure.WAIT], unread[Figure.MEMORY]) == (0, 1, 2)


def test_a_claim_is_idle_after_a_minute_of_almost_no_use_and_not_after_a_burst() -> None:
    book = UsageBook()
    seen = []
    for now, used in ((0, 100.0), (30, 100.1), (59, 100.2), (60, 100.201), (3600, 110.0), (3605, 111.0), (3670, 111.0)):
        book.add(now, {A: 2}, [reading("c1", CPU=used)])
        seen.append(book.usage().idle.get(A))
    # 111 - 110 s in 5 s are 10 % of 2 CPUs, whatever the last hour was like.
    assert seen == [None, None, None, True, True, False, True]


def test_a_busy_claim_is_not_idle_between_readings() -> None:
    book = UsageBook()
    for now in (0, 10, 20):
        book.add(now, {A: 2}, [reading("c1", CPU=float(now))])
    book.add(21, {A: 2}, [reading("c1", CPU=20.0)])
    assert book.usage().idle == {A: False}


def test_a_claim_without_a_container_is_idle() -> None:
    book = UsageBook()
    book.add(0, {A: 2}, [])
    book.add(60, {A: 2}, [])
    assert book.usage().idle == {A: True}


@pytest.mark.parametrize("again", [0, 60, 119])
def test_a_claim_whose_cpu_time_was_not_read_is_not_idle(again: int) -> None:
    book = UsageBook()
    book.add(0, {A: 2}, [reading("c1", CPU=5.0)])
    book.add(60, {A: 2}, [reading("c1", MEMORY=1.0)])
    assert book.usage().idle == {}
    book.add(60 + again, {A: 2}, [reading("c1", CPU=5.0)])
    assert book.usage().idle == {}


def test_ended_claims_are_forgotten_at_once_and_pods_after_a_while() -> None:
    book = UsageBook()
    book.add(0, {A: 2, B: 1}, [reading("c1", CPU=7.0), reading("c2", ClaimShare(B, "q", 1), CPU=1.0)])
    book.add(10, {A: 2}, [])
    assert total(book) == {("a", "p"): 7.0}
    assert not book._counters.get("c2")
    # kubelet waits up to 5 minutes before it restarts a container.
    book.add(800, {A: 2}, [])
    assert total(book) == {("a", "p"): 7.0}
    book.add(901, {A: 2}, [])
    assert total(book) == {}


def test_a_container_that_is_read_once_an_hour_loses_nothing() -> None:
    book = UsageBook()
    for hour in range(3):
        book.add(3600.0 * hour, {A: 2}, [reading("c1", CPU=100.0 + hour)])
    assert total(book) == {("a", "p"): 102.0}
