"""What waits for the end of a call."""

from __future__ import annotations

import threading

import pytest

from dranode.driver.process.answering import Answering, once_answered


class Work:
    def __init__(self, done: list[str], name: str) -> None:
        self.done, self.name = done, name

    def wake(self) -> None:
        self.done.append(self.name)


def test_work_of_a_thread_that_answers_none_is_done_at_once() -> None:
    done: list[str] = []
    once_answered(Work(done, "a").wake)
    assert done == ["a"]


def test_work_waits_for_the_answer_and_is_done_once_in_order() -> None:
    done: list[str] = []
    first, second = Work(done, "first"), Work(done, "second")
    with Answering():
        for work in (first, second, first):
            once_answered(work.wake)
        done.append("answered")
    assert done == ["answered", "first", "second"]
    once_answered(first.wake)
    assert done[3:] == ["first"]


def test_a_call_that_fails_puts_nothing_off_for_good() -> None:
    done: list[str] = []

    def call() -> None:
        with Answering():
            once_answered(Work(done, "a").wake)
            raise KeyError

    with pytest.raises(KeyError):
        call()
    assert done == ["a"]


def test_work_of_other_threads_does_not_wait_for_this_ones_call() -> None:
    done: list[str] = []
    with Answering():
        thread = threading.Thread(target=once_answered, args=(Work(done, "other").wake,))
        thread.start()
        thread.join()
        assert done == ["other"]


def test_work_that_fails_keeps_no_other_from_being_done(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    done: list[str] = []
    with Answering():
        once_answered(fail)
        once_answered(Work(done, "a").wake)
    assert done == ["a"]
    assert "can't start new thread" in caplog.text
