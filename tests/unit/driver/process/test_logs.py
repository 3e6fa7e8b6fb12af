"""The log: one operation id in every line of a call, and keys for programs."""

import io
import json
import logging
import os
import re
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies

from dranode.driver.claims.held import ClaimRef
from dranode.driver.process import logs
from dranode.driver.process.logs import JSONFormatter, TextFormatter, operation
from tests.fakes.waiting import PATIENCE

log = logging.getLogger("dranode.test")


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JSONFormatter() if request.param == "json" else TextFormatter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield text
    log.removeHandler(handler)


@pytest.mark.parametrize("lines", ["text"], indirect=True)
def test_every_line_of_a_call_has_its_id_and_no_other_line_has_one(lines: io.StringIO) -> None:
    log.info("before")
    with operation() as first:
        log.info("one")
        log.info("two")
    with operation() as second:
        log.info("three")
    log.info("after")
    assert re.fullmatch("[0-9a-f]{8}", first)
    assert first != second
    found = [re.findall(r"op=(\w+) ", line) for line in lines.getvalue().splitlines()]
    assert found == [[], [first], [first], [second], []]


@pytest.mark.parametrize("lines", ["text"], indirect=True)
def test_calls_at_the_same_time_keep_their_ids_apart(lines: io.StringIO) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    def call() -> None:
        with operation() as current:
            both.wait()
            log.info("from %s", current)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first, of_first), (second, of_second) = re.findall(r"op=(\w+) from (\w+)", lines.getvalue())
    assert (first, second) == (of_first, of_second)
    assert first != second


@pytest.mark.parametrize("lines", ["json"], indirect=True)
def test_json_has_the_messages_keys(lines: io.StringIO) -> None:
    with operation() as current:
        log.info("at 100%% claim=%s took %.3f seconds=%.6f %s", ClaimRef("default", "a", "u"), 0.5, 0.25, "done")
    line = json.loads(lines.getvalue())
    assert line["message"] == "at 100% claim=default/a took 0.500 seconds=0.250000 done"
    assert (line["claim"], line["seconds"], line["op"], line["level"]) == ("default/a", 0.25, current, "info")


@pytest.mark.parametrize("lines", ["json"], indirect=True)
def test_a_message_cannot_replace_the_keys_of_every_line(lines: io.StringIO) -> None:
    log.info("level=%s logger=%s", "none", "somebody")
    line = json.loads(lines.getvalue())
    assert (line["level"], line["logger"]) == ("info", "dranode.test")


@given(strategies.text(), strategies.one_of(strategies.integers(), strategies.booleans(), strategies.text()))
def test_json_can_express_any_message(text: str, value: object) -> None:
    line = JSONFormatter().format(logging.makeLogRecord({"msg": "%s value=%s", "args": (text, value)}))
    assert line.isprintable()
    assert json.loads(line)["message"] == f"{text} value={value}"
    assert json.loads(line)["value"] == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_json_writes_numbers_that_it_lacks_as_text(value: float) -> None:
    line = JSONFormatter().format(logging.makeLogRecord({"msg": "value=%s", "args": (value,)}))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(line, parse_constant=refuse)["value"] == str(value)


def test_json_has_no_terminal_sequences_or_text_direction_marks() -> None:
    hostile = "a\x1b[2J\x7f\x85\x9b31m\u202eb\u2028c\u200d\U000e0001 \ud800 é 水 \U0001f600"
    # Without a logger, since pytest would keep the line for its report, which cannot contain half a surrogate pair.
    line = JSONFormatter().format(logging.makeLogRecord({"msg": "%s", "args": (hostile,)}))
    assert line.isprintable()
    assert "é 水 \U0001f600" in line
    assert json.loads(line)["message"] == hostile


def test_lines_are_dropped_and_counted_while_nobody_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.write(writing, b"x" * (1 << 20))  # as much as there is room for
    os.set_blocking(writing, True)
    monkeypatch.setattr(logs, "_READER_MILLISECONDS", 10)
    with os.fdopen(writing, "w") as stderr, os.fdopen(reading, "rb", buffering=0) as pipe:
        monkeypatch.setattr("sys.stderr", stderr)
        handler = logs._StandardError()
        handler.setFormatter(TextFormatter())
        read: list[str] = []
        # There is room for a part of the long line only. The last line does not continue it.
        for lines in (("0", "1", "2"), ("3", "4" * (1 << 20), "5"), ("6",)):
            for line in lines:
                handler.emit(logging.LogRecord("a", logging.INFO, "", 0, line, (), None))
            read += pipe.read(1 << 20).decode().splitlines()
    lost = [line.rpartition("WARNING ")[2].partition(" ")[0] for line in read if "are lost" in line]
    assert lost == ["lines=3", "lines=2"]
    assert [line[-6:] for line in read if "INFO" in line] == ["INFO 3", "444444", "INFO 6"]


def test_times_are_in_utc() -> None:
    record = logging.makeLogRecord({"created": 0.0, "msecs": 0.0, "levelname": "INFO", "msg": "m"})
    assert TextFormatter().format(record) == "1970-01-01T00:00:00.000Z INFO m"
