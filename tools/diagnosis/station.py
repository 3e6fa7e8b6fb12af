"""The stations of a way: how each was passed, in one sentence, and what to do about the one where it stopped."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dranode.tools.diagnosis.causes import StopCause


class Passed(StrEnum):
    """A station that was passed; `unseen` means that it could not be checked, which does not stop anything."""

    YES = "passed"
    STOPPED = "stopped"
    UNSEEN = "unseen"


class Station(msgspec.Struct, frozen=True):
    """One station of the way.

    Attributes:
        name: which.
        passed: how.
        what: the facts, in one sentence without a full stop.
        fix: what to do if it stopped, the command that shows it if it is unseen; else empty.
        cause: why it stopped; None if it did not.
        details: more facts, a line each: the other nodes, and who holds what, where no node takes a pod.
    """

    name: str
    passed: Passed
    what: str
    fix: str = ""
    cause: StopCause | None = None
    details: tuple[str, ...] = ()


class Way(msgspec.Struct, frozen=True):
    """The way of one thing.

    Attributes:
        about: what it is the way of: `pod default/a`, `claim default/b`, `claim default/b on node w`.
        driver: the driver whose part it is; empty for none.
        claim: `<namespace>/<name>` of the claim; empty for a pod's way.
        stations: up to the first one that stopped.
        unknown: whether nothing is known of what was asked about.
    """

    about: str
    stations: tuple[Station, ...]
    driver: str = ""
    claim: str = ""
    unknown: bool = False

    @property
    def stopped(self) -> Station | None:
        """Return the station where it stopped; None if it did not."""
        return next((station for station in self.stations if station.passed is Passed.STOPPED), None)


def as_root(command: str, *, root: bool) -> str:
    """Return where to give a command that sees more: as root, or, where this is root already, on the node itself."""
    return f"{command}, {'on the node itself' if root else 'as root'}"


def went(name: str, what: str) -> Station:
    """Return a station that was passed."""
    return Station(name, Passed.YES, what)


def stopped(name: str, cause: StopCause, what: str, fix: str) -> Station:
    """Return the station where it stopped."""
    return Station(name, Passed.STOPPED, what, fix, cause)


def unseen(name: str, what: str, command: str = "") -> Station:
    """Return a station that could not be looked at; `command` shows it to those who may."""
    return Station(name, Passed.UNSEEN, what, command)
