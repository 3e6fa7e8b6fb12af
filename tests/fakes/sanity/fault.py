"""Registers faulty drivers: each is the correct one with one fault, and names the check that must find it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.fakes.sanity.driver import RightDriver

T = TypeVar("T", bound=type[RightDriver])


@dataclass(frozen=True)
class Fault:
    """A faulty driver.

    Attributes:
        check: the id of the check that must find it.
        says: a part of what the check reports.
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
