"""What happens before anybody counts is counted once somebody does."""

from __future__ import annotations

from dranode.driver.core.claims.record import Record
from dranode.driver.serve.counters import EarlyCounters


class Counted:
    """Counts, in the order in which it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def answered(self, call: str, succeeded: bool, seconds: float) -> None:  # noqa: FBT001 - see ServiceCounters
        self.calls.append((call, succeeded, seconds))

    def granted(self, record: Record) -> None:
        self.calls.append((record.uid,))

    def nri_answered(self, request: str, seconds: float) -> None:
        self.calls.append((request, seconds))


def test_what_came_before_is_counted_once_and_in_order() -> None:
    early, counted = EarlyCounters(), Counted()
    early.granted(Record(uid="a"))
    early.answered("prepare", True, 0.5)  # noqa: FBT003 - see ServiceCounters
    early.pass_on(counted)
    early.nri_answered("CreateContainer", 0.25)
    early.answered("unprepare", False, 1.5)  # noqa: FBT003 - see ServiceCounters
    assert counted.calls == [
        ("a",),
        ("prepare", True, 0.5),
        ("CreateContainer", 0.25),
        ("unprepare", False, 1.5),
    ]
