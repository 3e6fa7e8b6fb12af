"""Named threads whose failures are never lost."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from concurrent import futures
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from dranode.api.errors import in_words

log = logging.getLogger(__name__)


P = ParamSpec("P")
T = TypeVar("T")

Fatal = Callable[[str], None]


class OwnedThread(threading.Thread):
    """A daemon thread that reports its unexpected end to `fatal`, which ends the process with the error."""

    def __init__(self, name: str, work: Callable[[], None], fatal: Fatal) -> None:
        """Name the thread; `start` will run `work`."""
        super().__init__(name=name, daemon=True)
        self._work = work
        self._fatal = fatal

    def run(self) -> None:
        """Run the work; an exception from it is fatal."""
        try:
            self._work()
        except Exception as error:
            log.exception("thread=%s died", self.name)
            self._fatal(f"the thread {self.name} died: {in_words(error)}")


class DaemonPool(futures.Executor):
    """Runs work on a fixed number of daemon threads, which keep no process from ending.

    Python waits at its exit for the threads of a ThreadPoolExecutor, forever if one of them hangs in a system call. All
    threads are there from the start, so that no load can find none.
    """

    def __init__(self, name: str, size: int, fatal: Fatal) -> None:
        """Start `size` threads whose names begin with `name`."""
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [OwnedThread(f"{name}-{number}", self._run, fatal) for number in range(size)]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
        """Have a thread call `fn`; calls wait in their order until one is free."""
        future: futures.Future[T] = futures.Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - it goes to whoever asks for the result
                future.set_exception(error)

        self._work.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """End the threads once the work that waits is done."""
        del cancel_futures
        for _ in self._threads:
            self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


# Wakes a thread that waits in poll.


class Wake:
    """Something to poll for that any thread can set off, also after it was closed."""

    def __init__(self) -> None:
        """Open it."""
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return what to poll; -1 once it is closed."""
        return self._file

    def up(self) -> None:
        """Wake the thread that polls, now or at its next poll."""
        with self._lock:
            if self._file >= 0:
                os.eventfd_write(self._file, 1)

    def heard(self) -> None:
        """Sleep again: take note of every `up` so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._file)

    def close(self) -> None:
        """Close it; it may not be polled after that."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
