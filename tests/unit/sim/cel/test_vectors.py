"""The selectors of tests/vectors/cel.json: what the CEL environment of Kubernetes 1.36.3 answered (see its `about`)."""

import json
from pathlib import Path
from typing import Any

import pytest

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.resource import Device
from dranode.sim.cel.errors import CELCompileError, CELRuntimeError, CELUnsupportedError
from dranode.sim.cel.expression import Selector
from dranode.sim.cel.known import WITH_LISTS, KnownToCEL

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "cel.json").read_text(encoding="utf-8"))


def answer(case: dict[str, Any]) -> str:
    lists = case.get("device") == "lists"
    device = decode(Device, VECTORS["lists" if lists else "device"])
    declared = WITH_LISTS if lists else KnownToCEL()
    try:
        return str(Selector(case["expression"], declared).matches(VECTORS["driver"], device)).lower()
    except CELUnsupportedError:
        return "unsupported"
    except CELCompileError:
        return "compile-error"
    except CELRuntimeError:
        return "runtime-error"


@pytest.mark.parametrize("case", VECTORS["cases"], ids=[case["expression"][:80] for case in VECTORS["cases"]])
def test_a_selector_is_answered_as_kubernetes_does(case: dict[str, Any]) -> None:
    assert answer(case) == case["result"]
