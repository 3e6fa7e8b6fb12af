"""Takes hostile steps against real processes: `python -m tests.hostile.run --steps 10000 --seed 1`.

The seed is printed first. It decides the steps, but not when the driver's threads run, so it may take several runs with
one seed to reproduce a violation.
"""

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.hostile import faults, settling
from tests.hostile.node import Node
from tests.hostile.runtime import Violation
from tests.hostile.steps import Steps
from tests.hostile.zygote import zygote

_PRINTED: Final = 60
_REPORTED: Final = 5_000
# Socket paths must be short. Writes that reach no disk are tested by `tests.crash.unsynced`.
_FOLDERS: Final = ("/dev/shm", "/tmp")
# The weight of each step.
STEPS: Final[dict[Callable[[Steps], None], int]] = {
    Steps.prepare: 240,
    Steps.prepare_pod: 30,
    Steps.prepare_again: 100,
    Steps.unprepare: 190,
    Steps.unprepare_unknown: 10,
    Steps.give_up: 10,
    Steps.change_mood: 10,
    Steps.run_with_claim: 120,
    Steps.run_shared: 50,
    Steps.stop_container: 80,
    Steps.update_container: 30,
    Steps.restart_runtime: 6,
    Steps.open_runtime: 12,
    Steps.refuse_updates: 4,
    Steps.start: 8,
    Steps.start_if_none: 40,
    Steps.kill: 8,
    Steps.kill_during_prepare: 4,
    Steps.kill_during_unprepare: 4,
    Steps.terminate: 5,
    Steps.wait: 3,
    faults.take_cpus_offline: 5,
    faults.bring_cpus_back: 8,
    faults.set_clock: 5,
    faults.remove_spec: 5,
    faults.empty_spec: 3,
    faults.alter_spec: 3,
    faults.remove_ledger: 4,
    faults.spoil_copy: 4,
    faults.flip_ledger: 4,
    faults.keep_ledger: 4,
    faults.put_older_ledger_back: 4,
    faults.write_by_newer_version: 3,
    settling.settle: 25,
}


def take(steps: Steps) -> None:
    """Take one random step.

    Raises:
        Violation: an invariant is broken.
    """
    (act,) = steps.dice.choices(tuple(STEPS), tuple(STEPS.values()))
    steps.past.append(act.__name__)
    steps.counts[act.__name__] = steps.counts.get(act.__name__, 0) + 1
    act(steps)
    steps.node.runtime.attend()
    steps.node.check()


def run(steps: int, seed: int, *, keep: bool = False, stop: threading.Event | None = None) -> Steps:
    """Take `count` steps, or fewer if `stop` is set meanwhile.

    Raises:
        Violation: an invariant is broken; the message has the last steps and the end of the driver's log.
    """
    node = Node(Path(tempfile.mkdtemp(prefix="hostile-", dir=next(filter(os.path.isdir, _FOLDERS)))))
    taken = Steps(node, random.Random(seed))
    began = time.monotonic()
    try:
        for number in range(1, steps + 1):
            if stop is not None and stop.is_set():
                break
            take(taken)
            del taken.past[:-_PRINTED]
            if number % _REPORTED == 0:
                node.shorten_log()
                print(f"seed {seed}: {number} steps in {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
        taken.past.append("settle")
        settling.settle(taken)
    except Violation as violation:
        last = "\n  ".join(taken.past)
        done = sum(taken.counts.values())
        raise Violation(f"seed {seed}, step {done}: {violation}\n  {last}\nthe log ends:\n{node.log}") from violation
    finally:
        if keep:
            for name in tuple(node.instances):
                node.kill(name)
        else:
            node.close()
    return taken


def main() -> int:
    """Take the steps and print the result; the exit status is 1 after a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.run")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the folder after a violation")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.steps} steps", flush=True)  # noqa: T201
    began = time.monotonic()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        taken = run(options.steps, options.seed, keep=options.keep, stop=stop)
    except Violation as violation:
        print(violation)  # noqa: T201
        return 1
    for name, count in sorted(taken.counts.items()):
        print(f"{count:8} {name}")  # noqa: T201
    for reason, count in sorted(taken.node.refusals.items(), key=lambda each: -each[1])[:20]:
        print(f"{count:8} refused {reason}")  # noqa: T201
    # The usage of a child counts once it has been waited for.
    zygote().close()
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    steps, starts = sum(taken.counts.values()), taken.node.starts
    seconds = f"{time.monotonic() - began:.0f} s, {used:.0f} s of CPU"
    print(f"{steps} steps and {starts} starts in {seconds}, no violation")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
