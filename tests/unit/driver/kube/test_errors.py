import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranode.driver.kube.errors import Backoff, error_of
from dranode.driver.kube.slice_loop import Pace

BACKOFF = Backoff(first=0.1, most=5.0)


def test_delays_double_up_to_the_maximum() -> None:
    assert [round(BACKOFF.delay(attempt, 0.5), 3) for attempt in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 60))
def test_a_delay_respects_retry_after_and_hardly_exceeds_the_maximum(attempt: int, dice: float, wish: float) -> None:
    delay = BACKOFF.delay(attempt, dice, wish)
    assert delay >= wish
    assert delay <= max(5.0, wish) * 1.25


def test_nodes_do_not_retry_in_step() -> None:
    assert BACKOFF.delay(3, 0.0) == pytest.approx(0.6)
    assert BACKOFF.delay(3, 0.99) == pytest.approx(0.996)
    assert BACKOFF.delay(0, 0.99, 10) > 12


def test_repairs_begin_within_five_seconds_and_slow_down_to_thirty() -> None:
    pace, now, delays = Pace(), 1000.0, []
    for _ in range(8):
        delays.append(pace.delay(now))
        now += delays[-1]
        pace = pace.repaired(now)
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]


def test_after_five_quiet_minutes_a_repair_is_quick_again() -> None:
    pace = Pace().repaired(0).repaired(2).repaired(6)
    assert pace.delay(100) == 8
    assert pace.delay(306) == 1
    assert pace.repaired(306).delay(306) == 2


@pytest.mark.parametrize(
    ("header", "body", "seconds"),
    [
        ("30", b"", 30),
        ("", b'{"details": {"retryAfterSeconds": 7}}', 7),
        ("-1", b"", 0),
        ("nan", b"", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", b"", 0),
        ("", b'{"details": {"retryAfterSeconds": [7]}}', 0),
        ("", b'{"details": {"retryAfterSeconds": 1%s}}' % (b"0" * 400), 0),
        ("inf", b"", 3600),
        ("99999999999", b"", 3600),
    ],
    ids=["header", "body", "negative", "nan", "date", "list", "no float", "for ever", "three thousand years"],
)
def test_retry_after_can_be_waited_for(header: str, body: bytes, seconds: float) -> None:
    error = error_of("get nodes", 429, {"retry-after": header}, body)
    assert error.retry_after == seconds
    assert BACKOFF.delay(0, 0.99, error.retry_after) < threading.TIMEOUT_MAX
