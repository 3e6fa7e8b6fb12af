"""Every claim of a call is answered, whatever fails behind the service."""

import logging
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from dranode.driver.claims.answers import Conflict, Prepared, Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.prepare import Awaited, always
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.service import DRAService
from dranode.driver.kubelet.sockets import socket_paths
from dranode.tools.readers.node import unprepare
from tests.fakes.waiting import PATIENCE

REFS = (ClaimRef("default", "a", "uid-a"), ClaimRef("default", "b", "uid-b"))


class Broken:
    """A source of claims and a node, both defective."""

    def get(self, refs: Any) -> Any:
        return refs

    def prepare(self, asked: Any, awaited: Any = None) -> Any:
        raise KeyError(asked, awaited)

    def unprepare(self, refs: Any, awaited: Any = None) -> Any:
        raise RuntimeError(refs, awaited)


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
def test_an_internal_error_is_answered_for_every_claim(call: str, caplog: pytest.LogCaptureFixture) -> None:
    service = DRAService("dra.example")
    broken = Broken()
    service.answer_with(broken, broken)
    answers = getattr(service, call)(REFS)
    assert answers.keys() == {"uid-a", "uid-b"}
    assert all(isinstance(answer, Refused) for answer in answers.values())
    assert "internal error in dra.example; see the driver's log: " in str(answers["uid-a"])
    assert "Traceback" in caplog.text


class Choosy:
    """A source of claims, and a node that refuses claim b and keeps it."""

    def get(self, refs: Any) -> Any:
        return refs

    def prepare(self, *_: Any) -> Any:
        return {"uid-a": Prepared(()), "uid-b": Conflict("CPUs 0-3 are held by default/a")}

    def unprepare(self, *_: Any) -> Any:
        return {"uid-a": None, "uid-b": Refused("its files cannot be removed")}


@pytest.mark.parametrize(("call", "why"), [("prepare", "CPUs 0-3"), ("unprepare", "its files")])
def test_refusals_are_logged_as_warnings_and_successes_are_not(
    call: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = DRAService("dra.example")
    service.answer_with(Choosy(), Choosy())
    with caplog.at_level(logging.INFO):
        getattr(service, call)(REFS)
    done, refused = (record for record in caplog.records if record.message.startswith(f"{call} "))
    assert (done.levelname, refused.levelname) == ("INFO", "WARNING")
    assert "uid=uid-a" in done.message
    assert why in refused.message


def test_waiting_calls_are_answered_when_a_driver_fails_to_start(root: Path) -> None:
    """Calls that are cut off instead would block the process until they time out, and kubelet would get no reason."""
    sockets = socket_paths(root, "dra.example")
    listener = Listener("dra.example", "node", sockets, root / "plugins" / "dra.example", pytest.fail)
    arrived, wait = threading.Event(), listener.calls.unprepare

    def waiting(refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> Any:
        arrived.set()
        return wait(refs, awaited)

    listener.calls.unprepare = waiting  # type: ignore[method-assign]
    listener.start()
    with futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(unprepare, sockets.dra, REFS[:1])
        assert arrived.wait(PATIENCE)
        listener.close()
        assert "has not read its hardware and ledger yet" in str(asked.result()["uid-a"])
