"""A machine's settings under any events: claims, edits by others, hot-plug, refusals, crashes, CPUs that go offline.

In any order of events, each setting ends with the value that somebody other than this driver gave it last.
"""

import contextlib
import errno
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dranode.api.cpuset import CPUSet
from dranode.api.errors import ClaimError
from dranode.cpu.isolation.settings import Kind, Machine, goal
from dranode.cpu.isolation.tuner import Tuner
from dranode.driver.claims.record import Record
from tests.fakes.settings import (
    DEFAULT,
    IRQ,
    ONLINE,
    RPS,
    SYSTEM,
    WORKQUEUE,
    Kernel,
    MemoryNotes,
    PowerCutError,
    interrupt,
    quiet_record,
)

CLAIMS = {name: quiet_record(name, cpus) for name, cpus in (("a", "2-3"), ("b", "5"), ("c", "1,6"))}
INTERRUPTS = (24, 25, 26, 40, 41)
LISTS = tuple(map(interrupt, INTERRUPTS))
MASKS = (DEFAULT, WORKQUEUE, RPS)
# Values that no setting has by itself, nor after the driver removed claims' CPUs from another value.
FOREIGN = ("2,5-6", "0,2-3,7")
REFUSALS = (errno.EIO, errno.EPERM, errno.ENOSPC, errno.EROFS, errno.EACCES)

Step = tuple[Callable[..., None], tuple[object, ...]]


class World:
    """A machine, and the values that others gave its settings."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.notes = MemoryNotes(self.kernel)
        self.tuner = Tuner(self.kernel)
        self.claims: dict[str, Record] = {}
        self.originals = {path: self.kernel.files[path] for path in (*LISTS[:3], *MASKS, SYSTEM)}
        self.later: set[str] = set()
        self.plugged = 0
        self.not_known: set[str] = set()

    def check(self) -> None:
        """What the driver does for each claim that comes or goes, and every ten seconds."""
        with contextlib.suppress(ClaimError):
            self.tuner.tune(tuple(self.claims.values()), self.notes)

    def restart(self) -> None:
        self.tuner = Tuner(self.kernel)

    def come(self, name: str) -> None:
        self.claims[name] = CLAIMS[name]
        self.check()

    def go(self, name: str) -> None:
        self.claims.pop(name, None)
        self.check()

    def die(self, name: str, lasts: int) -> None:
        """The process dies while a claim comes or goes."""
        self.kernel.lasts = lasts
        with contextlib.suppress(PowerCutError):
            (self.go if name in self.claims else self.come)(name)
        self.kernel.lasts = None
        self.restart()

    def meddle(self, path: str, cpus: str) -> None:
        """Somebody else changes a setting."""
        if path in self.kernel.files:
            # Without CPUs that claims took out it would be an edit of the present value.
            chosen = CPUSet.union((CPUSet.parse(cpus), *(each.held for each in CLAIMS.values() if path == DEFAULT)))
            text = cpus if path in LISTS else f"{chosen.mask:02x}"
            self.kernel.files[path] = self.originals[path] = text

    def plug(self, number: int) -> None:
        """Plug in a device; another one may have had its number before."""
        self.unplug(number)
        self.plugged += 1
        device = f"eth{self.plugged}-{number}"
        # It starts with the current default, and without claims would have started with the others' default.
        begins, without_claims = (str(_cpus(DEFAULT, of[DEFAULT])) for of in (self.kernel.files, self.originals))
        self.kernel.files |= {interrupt(number): begins, f"{IRQ}/{number}/{device}/.": ""}
        self.originals[interrupt(number)] = without_claims
        self.later.add(interrupt(number))
        self._doubt(interrupt(number))

    def unplug(self, number: int) -> None:
        self.kernel.remove(f"{IRQ}/{number}")
        self.originals.pop(interrupt(number), None)
        self.not_known.discard(interrupt(number))

    def refuse(self, path: str, error: int) -> None:
        self.kernel.refuses[path] = error
        self._doubt(path)

    def _doubt(self, path: str) -> None:
        # If a new interrupt cannot be moved or read, it is unknown whether it still has the default.
        refused = self.kernel.refuses.get(path) in (errno.EIO, errno.EPERM)
        if path in self.later and (refused or path in self.kernel.unread):
            self.not_known.add(path)

    def hide(self, path: str, error: int) -> None:
        self.kernel.unread[path] = error
        self._doubt(path)

    def heal(self) -> None:
        self.kernel.refuses.clear()
        self.kernel.unread.clear()

    def offline(self, cpus: str) -> None:
        self.kernel.files[ONLINE] = cpus

    def kept(self) -> set[str]:
        """The interrupts that the kernel refused to move; they are not tried again while their claims exist."""
        noted = (self.notes.document or {}).get("settings", {})
        return {path for path, known in noted.items() if "refused" in known}

    def read(self, path: str) -> CPUSet:
        return _cpus(path, self.kernel.files[path])


def _cpus(path: str, text: str) -> CPUSet:
    return CPUSet.parse_mask(text) if path in MASKS else CPUSet.parse(text)


def kind_of(path: str) -> Kind:
    kinds = {DEFAULT: Kind.NEW_INTERRUPTS, WORKQUEUE: Kind.WORKQUEUE, RPS: Kind.QUEUE, SYSTEM: Kind.SLICE}
    return kinds.get(path, Kind.INTERRUPT)


def steps() -> st.SearchStrategy[list[Step]]:
    names, paths = st.sampled_from(sorted(CLAIMS)), st.sampled_from((*LISTS, *MASKS))
    every = st.sampled_from((*LISTS, *MASKS, SYSTEM))
    numbers = st.sampled_from(INTERRUPTS)
    step = st.one_of(
        st.tuples(st.just(World.come), st.tuples(names)),
        st.tuples(st.just(World.go), st.tuples(names)),
        st.tuples(st.just(World.die), st.tuples(names, st.integers(0, 12))),
        st.tuples(st.just(World.check), st.just(())),
        st.tuples(st.just(World.restart), st.just(())),
        st.tuples(st.just(World.meddle), st.tuples(paths, st.sampled_from(FOREIGN))),
        st.tuples(st.just(World.plug), st.tuples(numbers)),
        st.tuples(st.just(World.unplug), st.tuples(numbers)),
        st.tuples(st.just(World.refuse), st.tuples(every, st.sampled_from(REFUSALS))),
        st.tuples(st.just(World.hide), st.tuples(every, st.sampled_from((errno.EIO, errno.EACCES)))),
        st.tuples(st.just(World.heal), st.just(())),
        st.tuples(st.just(World.offline), st.tuples(st.sampled_from(("0-7", "0-7", "0,2-7", "2-3,5")))),
    )
    return st.lists(step, max_size=14)


@given(done=steps())
def test_settings_follow_from_the_values_of_others_and_from_the_claims(done: list[Step]) -> None:
    world = World()
    for action, arguments in done:
        action(world, *arguments)
    world.heal()
    world.offline("0-7")
    world.restart()
    world.check()
    quiet = CPUSet.union(claim.held for claim in world.claims.values())
    machine = Machine(CPUSet(range(8)), quiet=quiet)
    for path, text in world.originals.items():
        aim = goal(kind_of(path), _cpus(path, text), machine)
        if path in world.kept() | world.not_known:
            continue
        # For a slice, all CPUs mean the same as none of its own.
        assert world.read(path) in ((aim, CPUSet(range(8))) if path == SYSTEM and not aim else (aim,)), path
    world.claims.clear()
    world.check()
    known = {path: text for path, text in world.originals.items() if path not in world.not_known}
    ends = {path: world.read(path) for path in known}
    assert ends == {
        path: CPUSet(range(8)) if path == SYSTEM and ends[path] else _cpus(path, text) for path, text in known.items()
    }
    assert world.notes.document is None
