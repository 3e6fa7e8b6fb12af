"""A check: a rule with its source, and a function that tests whether a driver follows it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from dranode.sanity.bench import Bench


class Level(StrEnum):
    """The strength of a rule (RFC 2119)."""

    MUST = "MUST"
    SHOULD = "SHOULD"


class CheckGroup(StrEnum):
    """The subject of a check; the first part of its id."""

    REGISTRATION = "registration"
    PREPARE = "prepare"
    CONFIGURATION = "configuration"
    UNPREPARE = "unprepare"
    CDI = "cdi"
    SLICES = "slices"
    HEALTH = "health"
    METADATA = "metadata"
    RESTART = "restart"
    CONCURRENCY = "concurrency"
    RESOURCES = "resources"
    SHUTDOWN = "shutdown"
    ROLLING = "rolling"


Run: TypeAlias = Callable[[Bench], None]


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        id: `<group>-<rule>`; never changes its meaning.
        rule: one sentence that says what a driver has to do.
        source: where that is written.
        run: raises Breach if a driver breaks the rule, Unable if that cannot be tested.
    """

    id: str
    group: CheckGroup
    level: Level
    rule: str
    source: str
    run: Run


_CHECKS: Final[dict[str, Check]] = {}


def must(id: str, source: str) -> Callable[[Run], Run]:  # noqa: A002 - what it is
    """Register a check of something that the API, the protocol or kubelet requires.

    The first line of the function's docstring is the rule. The rest says how the check tests it.
    """
    return _registering(Level.MUST, id, source)


def should(id: str, source: str) -> Callable[[Run], Run]:  # noqa: A002 - what it is
    """Register a check of something that is recommended; it does not fail a run."""
    return _registering(Level.SHOULD, id, source)


def _registering(level: Level, name: str, source: str) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        if name in _CHECKS:
            raise ValueError(f"two checks are called {name}")
        rule = (run.__doc__ or "").partition("\n")[0]
        _CHECKS[name] = Check(name, CheckGroup(name.partition("-")[0]), level, rule, source, run)
        return run

    return register


def registered() -> tuple[Check, ...]:
    """Return all registered checks, group by group, in the order of the source."""
    order = list(CheckGroup)
    return tuple(sorted(_CHECKS.values(), key=lambda check: order.index(check.group)))
