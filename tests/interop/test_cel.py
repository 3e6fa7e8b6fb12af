"""Our CEL beside each release's Kubernetes CEL, on recorded and random expressions; ALLOCATOR_SCENARIOS is how many."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import RELEASES
from dranode.sim.cel.declarations import functions
from tests.interop.expressions import ExpressionMaker
from tests.interop.gocel import built, ours, theirs

pytestmark = pytest.mark.interop

COUNT = int(os.environ.get("ALLOCATOR_SCENARIOS", "0"))
RECORDED = json.loads((Path(__file__).parents[1] / "vectors" / "cel-expressions.json").read_text(encoding="utf-8"))
# Go visits the entries of a map in random order, so the cost of loops over them varies.
UNORDERED = re.compile(r"device\.attributes\.(all|exists)|\]\.exists\(k|\{.*\}\.(all|exists|map|filter|transform)")


@pytest.fixture(autouse=True)
def _where_it_can_run() -> None:
    if not COUNT:
        pytest.skip("make interop-allocator builds Kubernetes' environments, which takes minutes")
    if shutil.which("go") is None:
        pytest.skip("there is no Go to build the environments with")


@pytest.mark.parametrize("name", RELEASES)
def test_random_expressions_are_answered_as_the_release_answers(name: str) -> None:
    expressions = [ExpressionMaker(seed, mistakes=0.1 if seed % 4 == 0 else 0.02).make() for seed in range(COUNT)]
    expressions += [case["expression"] for case in RECORDED["cases"]]
    release = RELEASES[name]
    answers = theirs(built(release), expressions)
    pairs = zip(expressions, answers, strict=True)
    wrong = [(one, answer, got) for one, answer in pairs if (got := ours(release, one)) != answer]
    assert [one for one in wrong if not UNORDERED.search(one[0])] == []


@pytest.mark.parametrize("name", RELEASES)
def test_the_functions_are_those_of_the_release(name: str) -> None:
    release = RELEASES[name]
    printed = subprocess.run([str(built(release)), "declarations"], capture_output=True, text=True, check=True).stdout
    # Declared but disabled: former names of operators.
    old = ("in", "_in_", "__not_strictly_false__")
    declared = {tuple(line.split()[index] for index in (0, 2)) for line in printed.splitlines()}
    known = functions(Features.of(release).stored_expressions)
    listed = {(one.function, _id(name, one.id)) for overloads in known.values() for one in overloads}
    assert listed == {pair for pair in declared if pair[0] not in old}


def _id(release: str, overload: str) -> str:
    """One overload was renamed in 1.37."""
    return "dra_includes_dyn_dyn" if release == "1.36" and overload == "list_includes_dyn_dyn" else overload
