"""Named threads whose failures are never lost, and how to wake one that waits in poll."""

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
    """A daemon thread that reports an uncaught exception to `fatal`, which ends the process with the error."""

    def __init__(self, name: str, work: Callable[[], None], fatal: Fatal) -> None:
        """Name the thread; `start` will run `work`."""
        # A thread that hangs in a system call must not keep the process from ending.
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
    """Runs work on a fixed number of daemon threads, which do not keep the process from ending.

    At exit Python waits for the threads of a ThreadPoolExecutor, forever if one hangs in a system call. All threads are
    started at once, so that a limit on threads is noticed at start-up and not under load.
    """

    def __init__(self, name: str, size: int, fatal: Fatal) -> None:
        """Start `size` threads whose names begin with `name`."""
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [OwnedThread(f"{name}-{number}", self._run, fatal) for number in range(size)]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
        """Let a thread call `fn`; calls wait in order until a thread is free."""
        future: futures.Future[T] = futures.Future()

        def work() -> None:
            # False if the caller has cancelled the call while it waited.
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - the caller gets it with the result
                future.set_exception(error)

        self._work.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """End the threads after the work that is already queued."""
        del cancel_futures
        # Each thread takes one None from the queue and ends.
        for _ in self._threads:
            self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Wait for the work, but not after an error such as Ctrl-C: nobody wants the results then."""
        self.shutdown(wait=kind is None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class Wake:
    """An event that a thread can poll for and any thread can set, also after it was closed."""

    def __init__(self) -> None:
        """Open the eventfd."""
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the file descriptor to poll; -1 after `close`."""
        return self._file

    def set(self) -> None:
        """Wake the thread that polls, now or at its next poll."""
        # Under the lock, because the number of a closed file may already belong to another file.
        with self._lock:
            if self._file >= 0:
                os.eventfd_write(self._file, 1)

    def clear(self) -> None:
        """Clear the event, so that the next poll waits again."""
        # One read resets the counter to zero. If it is zero already, the read would block.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._file)

    def close(self) -> None:
        """Close the eventfd; it must not be polled after that."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
