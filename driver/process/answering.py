"""Puts off what wakes other threads until the call that this thread answers has been answered.

A thread that is woken meanwhile takes the interpreter's lock from the one that answers, with another processor's cold
caches: up to a millisecond in which kubelet waits for a pod, and nobody for what the other thread does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

log = logging.getLogger(__name__)

Wakes = Callable[[], None]


class _Calls(threading.local):
    """The call that this thread answers, if it answers one."""

    current: Answering | None = None


_calls = _Calls()


class Answering:
    """The time in which this thread answers a call; at its end comes what was put off, each work once."""

    def __init__(self) -> None:
        self.after: dict[Wakes, None] = {}

    def __enter__(self) -> Self:
        _calls.current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _calls.current = None
        for work in self.after:
            try:
                work()
            except Exception:  # such as no room for a thread: the call is answered, and others are still to be woken
                log.exception(
                    "thread=%s: what was put off until its call was answered failed", threading.current_thread().name
                )


def once_answered(work: Wakes) -> None:
    """Do this once the call that this thread answers has been answered; at once if it answers none."""
    current = _calls.current
    if current is None:
        work()
    else:
        current.after[work] = None
