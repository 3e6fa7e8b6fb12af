"""How faulty drivers are registered: each is the right one with one thing wrong, and the check that has to find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.fakes.sanity.driver import RightDriver

T = TypeVar("T", bound=type[RightDriver])


@dataclass(frozen=True)
class Fault:
    """A driver that is wrong.

    Attributes:
        check: the id of the check that has to find it.
        says: what stands in what the check has seen.
        publishes: whether it publishes slices at all.
    """

    check: str
    driver: type[RightDriver]
    says: str
    publishes: bool = True


FAULTS: list[Fault] = []


def fault(check: str, says: str, *, publishes: bool = True) -> Callable[[T], T]:
    def register(driver: T) -> T:
        FAULTS.append(Fault(check, driver, says, publishes))
        return driver

    return register
