"""Which pending item is sent next, and when."""

import pytest

from dranode.driver.kube.outbox import PendingItems


@pytest.fixture
def pending() -> PendingItems[str]:
    return PendingItems(idle=1.0, limit=3.0)


def test_an_item_waits_until_no_other_has_come_for_a_while(pending: PendingItems[str]) -> None:
    assert pending.wait(0.0) is None
    pending.put("a", "first", 10.0)
    assert pending.wait(10.25) == 0.75
    pending.put("b", "second", 10.5)
    assert pending.wait(10.5) == 1.0
    assert pending.wait(11.5) == 0.0
    assert pending.take() == ("a", "first")


def test_a_steady_flow_of_items_delays_none_beyond_the_limit(pending: PendingItems[str]) -> None:
    for tenths in range(0, 40, 5):
        pending.put(f"{tenths}", "item", tenths / 10)
    assert pending.wait(2.75) == 0.25
    assert pending.wait(3.5) == 0.0
    # A newer item replaces the older one, and keeps its time.
    pending.put("0", "newer", 3.5)
    assert (pending.wait(3.5), pending.take()) == (0.0, ("0", "newer"))


def test_an_item_that_was_not_sent_can_be_withdrawn(pending: PendingItems[str]) -> None:
    pending.put("a", "item", 0.0)
    assert pending.take_back("a", 0.5) == "item"
    assert (pending.take_back("a", 0.5), pending.wait(0.5), len(pending)) == (None, None, 0)


def test_an_item_that_may_have_been_sent_cannot_be_withdrawn(pending: PendingItems[str]) -> None:
    pending.put("a", "item", 0.0)
    assert not pending.is_taken("a")
    key, item = pending.take()
    pending.put("a", "newer", 1.0)
    assert pending.is_taken("a")
    assert pending.take_back("a", 1.0) is None
    pending.done(key, item)
    assert pending.take() == ("a", "newer")


def test_without_an_idle_moment_an_item_is_due_at_once() -> None:
    pending: PendingItems[str] = PendingItems()
    pending.put("a", "item", 5.0)
    assert pending.wait(5.0) == 0.0


def test_the_oldest_of_too_many_items_is_dropped(pending: PendingItems[str]) -> None:
    dropped = [pending.put(f"{number}", f"item-{number}", 0.0) for number in range(1001)]
    assert (dropped[999], dropped[1000], len(pending)) == (None, "item-0", 1000)
