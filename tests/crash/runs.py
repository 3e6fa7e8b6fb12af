"""Runs crash points from the command line: how many, and what is printed about them."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")
_TRIES: Final = 10
_REPORTED: Final = 20


@dataclass(frozen=True)
class Point:
    """The n-th call of a kind; `error` is the error that it fails with, or empty for SIGKILL."""

    call: str
    number: int
    error: str = ""

    def __str__(self) -> str:
        return f"{self.call}#{self.number} {self.error or 'SIGKILL'}"

    @property
    def injection(self) -> str:
        """The injection as strace expects it."""
        what = f"error={self.error}" if self.error else "signal=SIGKILL"
        return f"{self.call}:{what}:when={self.number}"


class Violation(Exception):  # noqa: N818 - a broken invariant
    """An invariant is broken after a crash."""


def asked_for(module: str, why_not: Callable[[], str], *, errors: bool = False) -> argparse.Namespace | None:
    """Parse the command line; None, with the reason printed, if no point can be run.

    Args:
        module: the module in `tests.crash`.
        why_not: why no point can be run here, or empty.
        errors: whether calls can fail there instead of killing.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.crash.{module}")
    parser.add_argument("--every", type=int, default=1, help="run each n-th point alone")
    if errors:
        parser.add_argument("--errors", action="store_true", help="errors too: ENOSPC, EIO, EROFS, EMFILE")
    options = parser.parse_args()
    if reason := why_not():
        print(f"not run: {reason}")  # noqa: T201
        return None
    return options


def report(what: str, points: Sequence[Point], chosen: Sequence[T], survive_one: Callable[[T], bool]) -> int:
    """Run the chosen points; print points, survivors and violations. Return 1 if there was a violation.

    Each thread's calls are counted separately, and the driver's threads do not always share the work alike, so a point
    that was not reached is tried again.
    """
    survived, missed = 0, []
    for number, each in enumerate(chosen):
        if number and number % _REPORTED == 0:
            print(f"{number} of {len(chosen)} run, {survived} survived", file=sys.stderr, flush=True)  # noqa: T201
        try:
            if not any(survive_one(each) for _ in range(_TRIES)):
                missed.append(each)
            survived += 1
        except Violation as violation:
            print(violation, flush=True)  # noqa: T201
    reached = len(chosen) - len(missed)
    by_call = ", ".join(f"{call} {number}" for call, number in Counter(point.call for point in points).items())
    print(f"{what}: {len(points)} points: {by_call}")  # noqa: T201
    if missed:
        named = ", ".join(map(str, missed))
        print(f"not reached in {_TRIES} runs, in which no thread made so many such calls: {named}")  # noqa: T201
    print(f"{len(chosen)} run, {reached} reached, {survived} survived", flush=True)  # noqa: T201
    return int(survived < len(chosen))
