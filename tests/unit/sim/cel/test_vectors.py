"""Selectors and what the CEL environment of Kubernetes answered: the vectors' `about` say which and how it was had."""

import json
from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import Device
from dranode.sim.allocator.releases import RELEASES
from dranode.sim.cel.declarations import WITH_LISTS, KnownToCEL
from dranode.sim.cel.expression import Selector
from dranode.sim.cel.syntax import CELCompileError, CELRuntimeError
from tests.interop.gocel import ours

FOLDER = Path(__file__).parents[3] / "vectors"
VECTORS: dict[str, Any] = json.loads((FOLDER / "cel.json").read_text(encoding="utf-8"))
RECORDED: dict[str, Any] = json.loads((FOLDER / "cel-expressions.json").read_text(encoding="utf-8"))


def answer(case: dict[str, Any]) -> str:
    lists = case.get("device") == "lists"
    device = decode(Device, VECTORS["lists" if lists else "device"])
    declared = WITH_LISTS if lists else KnownToCEL()
    try:
        return str(Selector(case["expression"], declared).matches(VECTORS["driver"], device)).lower()
    except CELCompileError:
        return "compile-error"
    except CELRuntimeError:
        return "runtime-error"


@pytest.mark.parametrize("case", VECTORS["cases"], ids=[case["expression"][:80] for case in VECTORS["cases"]])
def test_a_selector_gets_the_answer_of_kubernetes(case: dict[str, Any]) -> None:
    assert answer(case) == case["result"]


@pytest.mark.parametrize("name", ["1.34", "1.36", "1.37"])
def test_expressions_compile_cost_and_evaluate_as_in_the_release(name: str) -> None:
    # Most answers are the same in all releases: the others are asked for every fourth of these.
    cases = [case for index, case in enumerate(RECORDED["cases"]) if name == "1.37" or name in case or index % 4 == 0]
    for case in cases:
        common = {key: value for key, value in case.items() if key != "expression" and not key.startswith("1.")}
        assert ours(RELEASES[name], case["expression"]) == case.get(name, common), case["expression"]
