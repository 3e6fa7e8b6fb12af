"""Compares our allocator with Go's of a release on random scenarios: `python -m tests.interop.random_allocations`.

Scenarios are numbered, and a number is all that one is made from: a run can be cut in parts that are compared side by
side, and a difference is found again by its number. A program that was built before is taken as it is: neither Go nor a
network is needed then.
"""

import argparse
import logging
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dranode.sim.allocator.releases import RELEASES, Release
from tests.interop.goallocator import Answer, Scenario, answers_of, as_its_module, batches, built, differs, running
from tests.interop.goallocator import scenarios as random_scenarios

log = logging.getLogger(__name__)

_EVERY: Final = 10.0  # seconds between two lines of progress


@dataclass
class Comparison:
    """What was compared so far.

    Attributes:
        compared: the scenarios that both answered.
        different: seeds of those that they answered differently.
        crashed: seeds of those that ended in a traceback of ours.
        unanswered: seeds of those that Go answered never within its time: of these nothing is known.
    """

    compared: int = 0
    different: list[int] = field(default_factory=list)
    crashed: list[int] = field(default_factory=list)
    unanswered: list[int] = field(default_factory=list)

    @property
    def seen(self) -> int:
        """All scenarios that were asked."""
        return self.compared + len(self.crashed) + len(self.unanswered)

    def add(self, release: Release, scenario: Scenario, theirs: Sequence[Answer | None]) -> str | None:
        """Compare one scenario; return what was wrong."""
        if all(answer is None for answer in theirs):
            self.unanswered.append(scenario.seed)
            return None
        try:
            wrong = differs(release, scenario, theirs)
        except Exception:  # noqa: BLE001 - whatever it is, the rest is compared
            self.crashed.append(scenario.seed)
            return f"seed {scenario.seed}: traceback\n{traceback.format_exc()}"
        self.compared += 1
        if not wrong:
            return None
        self.different.append(scenario.seed)
        off = sorted(name for name, on in scenario.gates.items() if not on)
        return f"seed {scenario.seed}: different; off: {', '.join(off) or 'nothing'}; Go: {_short(theirs)}"

    def summary(self, name: str) -> str:
        """One line of all."""
        told = [
            ("different", self.different),
            ("tracebacks", self.crashed),
            ("without an answer of Go", self.unanswered),
        ]
        parts = [f"{len(seeds)} {what}{f' {seeds[:20]}' if seeds else ''}" for what, seeds in told]
        return f"{name}: {self.compared} scenarios compared, {', '.join(parts)}"


def compare(name: str, seeds: range, program: Path | None = None, say: Callable[[str], None] = log.info) -> Comparison:
    """Compare the release's scenarios of these seeds; `program` is built where none is named."""
    release = as_its_module(RELEASES[name])
    comparison, shown = Comparison(), time.monotonic()
    with running(program or built(release)) as process:
        for batch in batches(random_scenarios(release, seeds)):
            for scenario, theirs in zip(batch, answers_of(process, batch), strict=True):
                wrong = comparison.add(release, scenario, theirs)
                if wrong is not None:
                    say(f"{name} {wrong}")
            if time.monotonic() - shown > _EVERY:
                shown = time.monotonic()
                say(f"{comparison.summary(name)}, of {len(seeds)}")
    return comparison


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is a command


def _short(theirs: Sequence[Answer | None]) -> str:
    return " | ".join(sorted({str(answer)[:300] for answer in theirs}))


def _seconds() -> tuple[float, float]:
    """CPU seconds of this process and of its children that ended."""
    ours, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return ours.ru_utime + ours.ru_stime, theirs.ru_utime + theirs.ru_stime


def main() -> int:
    """Compare as the command line says; 1 if anything was different or ended in a traceback."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", choices=list(RELEASES), required=True)
    parser.add_argument("--seed", type=int, default=0, help="the first scenario's number")
    parser.add_argument("--scenarios", type=int, default=1000)
    parser.add_argument("--binary", type=Path, help="the release's allocator, built before; it is built without")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.scenarios)
    comparison = compare(options.release, seeds, options.binary, _say)
    ours, theirs = _seconds()
    _say(
        f"{comparison.summary(options.release)}; seeds {seeds.start} to {seeds.stop - 1}; "
        f"{ours:.0f} s of CPU here, {theirs:.0f} s in Go, {comparison.seen / (ours + theirs):.0f} scenarios a second"
    )
    return 1 if comparison.different or comparison.crashed else 0


if __name__ == "__main__":
    sys.exit(main())
