"""Quotas in a tree of cohorts."""

import pytest

from dranode.api.quantity import Quantity
from dranode.sim.queues.quota import Usage, unused_quota
from dranode.sim.queues.values import (
    ClusterQueue,
    Cohort,
    FlavorFungibility,
    FlavorResource,
    Preemption,
    Queues,
    Quota,
    amount,
    amount_text,
)

OF = FlavorResource("f", "gpu")


def _usage(cohorts: dict[str, tuple[str, Quota | None]], queues: dict[str, tuple[str, Quota]]) -> Usage:
    return unused_quota(
        Queues(
            {
                name: ClusterQueue(name, above, (), {OF: quota}, FlavorFungibility(), Preemption(), strict_fifo=False)
                for name, (above, quota) in queues.items()
            },
            {name: Cohort(name, above, {OF: quota} if quota else {}) for name, (above, quota) in cohorts.items()},
            {},
        )
    )


TREE = _usage(
    {"top": ("", Quota(3)), "left": ("top", Quota(0, lending_limit=4)), "right": ("top", Quota(0, borrowing_limit=2))},
    {
        "a": ("left", Quota(5)),
        "b": ("left", Quota(5, lending_limit=1)),
        "c": ("right", Quota(2)),
    },
)


def test_a_cohort_has_what_its_members_lend_and_its_own_quota() -> None:
    nodes = {node.name: node for queue in ("a", "c") for node in TREE.cohorts(queue)}
    assert {name: node.subtree[OF] for name, node in nodes.items()} == {"left": 6, "right": 2, "top": 3 + 4 + 2}
    assert {name: node.height for name, node in nodes.items()} == {"left": 1, "right": 1, "top": 2}


@pytest.mark.parametrize(
    ("queue", "capacity"),
    [
        ("a", 2 + 9),  # what left keeps for itself, and all of top
        ("b", 4 + 2 + 9),  # its own guaranteed quota as well
        ("c", 2 + 2),  # right may borrow 2
    ],
)
def test_capacity_is_what_the_limits_allow(queue: str, capacity: int) -> None:
    assert TREE.capacity(queue, OF) == TREE.available(queue, OF) == capacity


def test_usage_counts_at_a_parent_only_above_the_guaranteed_quota() -> None:
    used = TREE.charge("b", {OF: 7})
    at = {node.name: used.at(node, OF) for node in (used.nodes["b"], *used.cohorts("b"))}
    assert at == {"b": 7, "left": 3, "top": 1}
    assert used.available("a", OF) == 0 + 8
    assert used.available("c", OF) == 4


def test_charging_returns_a_new_usage_and_can_be_undone() -> None:
    used = TREE.charge("a", {OF: 9}).charge("b", {OF: 3})
    assert TREE.available("a", OF) == 11
    undone = used.charge("a", {OF: -9}).charge("b", {OF: -3})
    assert [undone.available(queue, OF) for queue in "abc"] == [TREE.available(queue, OF) for queue in "abc"]


@pytest.mark.parametrize(
    ("queue", "extra", "level", "below_root"),
    [
        ("a", 5, 0, True),
        ("a", 6, 1, True),
        ("a", 7, 2, False),
        ("b", 9, 1, True),  # 4 of them are guaranteed to it
        ("c", 3, 2, False),
        ("c", 99, 2, False),
    ],
)
def test_the_borrow_level_is_the_height_of_the_smallest_subtree(
    queue: str,
    extra: int,
    level: int,
    below_root: bool,  # noqa: FBT001 - a case
) -> None:
    assert TREE.borrow_level(queue, OF, extra) == (level, below_root)


@pytest.mark.parametrize(("used", "available"), [(0, 5), (3, 2), (5, 0)])
def test_a_guaranteed_quota_does_not_raise_the_borrowing_limit(used: int, available: int) -> None:
    own = Quota(5, borrowing_limit=0, lending_limit=1)
    usage = _usage({}, {"q": ("c", own), "rich": ("c", Quota(10))}).charge("q", {OF: used})
    assert usage.available("q", OF) == available


def test_usage_above_quota_is_a_negative_balance_with_nothing_available() -> None:
    used = _usage({}, {"q": ("", Quota(2))}).charge("q", {OF: 5})
    assert used.balance("q", OF) == -3
    assert used.available("q", OF) == 0


def test_a_cohort_exists_if_only_its_members_name_it() -> None:
    usage = _usage({}, {"a": ("c", Quota(1)), "b": ("c", Quota(2))})
    assert usage.capacity("a", OF) == 3
    assert usage.root("a") is usage.root("b")


@pytest.mark.parametrize(
    ("resource", "written", "number", "printed"),
    [
        ("cpu", "2", 2000, "2"),
        ("cpu", "2500m", 2500, "2500m"),
        ("cpu", "0.0001", 1, "1m"),
        ("memory", "16Gi", 16 * 2**30, "16Gi"),
        ("memory", "1500Mi", 1500 * 2**20, "1500Mi"),
        ("memory", "1G", 10**9, "1000000000"),
        ("gpus", "3", 3, "3"),
        ("gpus", "1500m", 2, "2"),
        ("memory", "0", 0, "0"),
    ],
)
def test_amounts_are_whole_numbers_rounded_up(resource: str, written: str, number: int, printed: str) -> None:
    assert amount(resource, Quantity(written)) == number
    assert amount_text(resource, number) == printed
