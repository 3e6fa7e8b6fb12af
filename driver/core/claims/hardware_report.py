"""The words of a driver about its hardware beside its devices: what is wrong, and what it says at the moment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class HardwareProblem(msgspec.Struct, frozen=True):
    """A problem of the node, which keeps a driver from working or from working well, as `dranode doctor` reports it.

    Attributes:
        code: a stable name for it, in lower case with dashes.
        what: what is wrong, with value and place, in one sentence without a full stop.
        fix: what to do, likewise.
        stops: whether claims fail by it; else it is a warning.
    """

    code: str
    what: str
    fix: str
    stops: bool = False


class HardwareReadings(msgspec.Struct, frozen=True):
    """A table of what the hardware says at the moment, as `dranode topology` shows it.

    Attributes:
        title: what it is about, in a few words.
        rows: each with the same names, in the order of the columns; None is what could not be read.
        remarks: a sentence for each thing that the table does not say.
    """

    title: str
    rows: tuple[Mapping[str, str | int | None], ...]
    remarks: tuple[str, ...] = ()
