"""Runs of crash points from the command line: how many of them, and what is printed of them."""

from __future__ import annotations

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
    """The n-th call of a kind; `error` is what it fails with, or empty for SIGKILL."""

    call: str
    number: int
    error: str = ""

    def __str__(self) -> str:
        return f"{self.call}#{self.number} {self.error or 'SIGKILL'}"

    @property
    def injection(self) -> str:
        """What strace is told."""
        what = f"error={self.error}" if self.error else "signal=SIGKILL"
        return f"{self.call}:{what}:when={self.number}"


class Violation(Exception):  # noqa: N818 - what an invariant says
    """What must not be after a crash."""


def asked_for(module: str, why_not: Callable[[], str], *, errors: bool = False) -> argparse.Namespace | None:
    """Return what the command line says of the points; None, with the reason printed, where none can be run.

    Args:
        module: of `tests.crash`.
        why_not: why no point can be run here, or empty.
        errors: whether calls can be made to fail there.
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
    """Run what was chosen, and print points, survivors and violations; 1 if one is not survived.

    Calls are counted for each thread by itself, and the driver's threads do not always share the work alike: a point
    which was not reached is tried again.
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
