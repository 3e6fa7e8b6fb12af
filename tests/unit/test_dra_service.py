"""Every claim of a call is answered, whatever happens behind the service."""

from __future__ import annotations

from typing import Any

import pytest

from dranode.driver.core.errors import DranodeError
from dranode.driver.core.held import ClaimRef
from dranode.driver.kubelet.service import DRAService

REFS = (ClaimRef("default", "a", "uid-a"), ClaimRef("default", "b", "uid-b"))


class Broken:
    """Claims and a node, both with a defect."""

    def get(self, refs: Any) -> Any:
        return refs

    def prepare(self, asked: Any) -> Any:
        raise KeyError(asked)

    def unprepare(self, refs: Any) -> Any:
        raise RuntimeError(refs)


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
def test_an_error_inside_the_driver_is_an_answer_for_every_claim(call: str, caplog: pytest.LogCaptureFixture) -> None:
    service = DRAService("dra.example")
    broken = Broken()
    service.answer_with(broken, broken)
    answers = getattr(service, call)(REFS)
    assert answers.keys() == {"uid-a", "uid-b"}
    assert all(isinstance(answer, DranodeError) for answer in answers.values())
    assert "dra.example met an error inside it" in str(answers["uid-a"])
    assert "Traceback" in caplog.text
