"""Every import contract fails on a planted violation: one copy of the tree, one run of the linter."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("api", "cdi", "cpu", "driver", "gpu", "memory", "proto", "sanity", "show", "sim", "tools")

# Contract -> (file, statement, the linter's message). Imports in functions and for type checkers count too.
PLANTED = {
    "Layers: a part imports those below it": [
        ("cdi/rules.py", "from dranode.api import names", "cdi.rules -> .*api.names"),
        ("api/names.py", "from dranode.driver.claims import held", "api.names -> .*claims.held"),
        ("driver/kube/errors.py", "from dranode.show import terminal", "kube.errors -> .*show.terminal"),
        ("show/terminal.py", "from dranode.sim.local import show", "show.terminal -> .*sim.local.show"),
        ("cpu/grouped.py", "from dranode.sim.queues import values", "cpu.grouped -> .*sim.queues.values"),
        ("gpu/inventory.py", "def later():\n    from dranode.cpu import options", "gpu.inventory -> .*cpu.options"),
        ("memory/counts.py", "from dranode.tools.cli import cdi", "memory.counts -> .*tools.cli.cdi"),
        ("sim/local/show.py", "from dranode.sanity import claims", "sim.local.show -> .*sanity.claims"),
        ("sanity/breach.py", "from dranode.tools.readers import host", "sanity.breach -> .*tools.readers.host"),
    ],
    "Layers of the node driver": [
        ("driver/machine/folder.py", "from dranode.driver.node import ledger", "machine.folder -> .*node.ledger"),
        ("driver/kube/errors.py", "from dranode.driver.kubelet import sockets", "kube.errors -> .*kubelet.sockets"),
        (
            "driver/process/locks.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dranode.driver.serve import service",
            "process.locks -> .*serve.service",
        ),
        (
            "driver/slices/plan.py",
            "from dranode.driver.pinning import containers",
            "slices.plan -> .*pinning.containers",
        ),
    ],
    "Layers of the tools": [
        ("tools/readers/host.py", "from dranode.tools.kubectl import plugin", "readers.host -> .*kubectl.plugin"),
    ],
    "Layers of the simulator": [
        ("sim/cel/operations.py", "from dranode.sim.allocator import pools", "cel.operations -> .*allocator.pools"),
    ],
    "No cycles": [
        (
            "driver/claims/answers.py",
            "from dranode.driver.claims import prepare",
            r"allowed in dranode\.driver\.claims\.",
        ),
    ],
    "The sanity suite judges drivers from outside": [
        ("sanity/claims.py", "from dranode.driver.slices import plan", "sanity.claims -> .*slices.plan"),
    ],
    "Deciding modules import nothing that acts": [
        ("driver/claims/prepare.py", "import sqlite3", "claims.prepare -> sqlite3"),
        ("driver/slices/plan.py", "def later():\n    import urllib.request", "slices.plan -> urllib"),
        ("cpu/picking/pick.py", "from dranode.cpu import sysfs", "cpu.picking.pick -> .*cpu.sysfs"),
        ("sim/allocator/search.py", "import time", "allocator.search -> time"),
    ],
    "Protobuf and gRPC stay with kubelet, NRI and the stand-in kubelets": [
        ("driver/local/store.py", "from dranode.proto import dra_v1_pb2", "local.store -> .*proto.dra_v1_pb2"),
        ("driver/serve/probes.py", "import grpc", "serve.probes -> grpc"),
    ],
}


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The linter's output for the tree with every violation planted."""
    copy = tmp_path_factory.mktemp("planted")
    for part in PARTS:
        shutil.copytree(ROOT / part, copy / "dranode" / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for violations in PLANTED.values():
        for file, statement, _ in violations:
            path = copy / "dranode" / file
            path.write_text(f"{path.read_text()}\n{statement}\n")
    program = Path(sys.executable).with_name("lint-imports")
    answer = subprocess.run([program, "--no-cache"], cwd=copy, capture_output=True, text=True, check=False)
    assert answer.returncode == 1, answer.stderr
    return " ".join(answer.stdout.split())


@pytest.mark.parametrize("contract", PLANTED)
def test_a_planted_violation_breaks_its_contract(verdict: str, contract: str) -> None:
    assert re.search(f"{re.escape(contract)} ?BROKEN", verdict), verdict
    missing = [pattern for _, _, pattern in PLANTED[contract] if not re.search(pattern, verdict)]
    assert missing == []


def test_every_contract_has_a_planted_violation(verdict: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert [contract["name"] for contract in contracts] == list(PLANTED)
    assert "KEPT" not in verdict
