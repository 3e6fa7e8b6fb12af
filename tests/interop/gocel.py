"""Builds a release's CEL environment from Kubernetes' modules, and compares its answers with ours."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dranode.api.documents import decode
from dranode.api.resource import Device
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import Release
from dranode.sim.cel.expression import Selector, device_variables
from dranode.sim.cel.syntax import CELCompileError, CELRuntimeError
from tests.interop.cache import CACHE
from tests.interop.expressions import DRIVER

SOURCE: Final = Path(__file__).with_name("cel") / "main.go"
DEVICE: Final[dict[str, Any]] = {
    "name": "gpu-0",
    "attributes": {
        "model": {"string": "h100-sxm"},
        "numa": {"int": 1},
        "neg": {"int": -3},
        "big": {"int": 9007199254740993},
        "version": {"version": "1.10.0"},
        "rc": {"version": "2.0.0-rc.1"},
        "healthy": {"bool": True},
        "broken": {"bool": False},
        "label": {"string": "42"},
        "addr": {"string": "10.1.2.3"},
        "words": {"string": "alpha,beta,gamma"},
        "topology.example.com/rack": {"string": "r2"},
    },
    "capacity": {"memory": {"value": "80Gi"}, "frac": {"value": "1500m"}, "net.example.com/bw": {"value": "10G"}},
}
# The module versions; the allocator's module contains the environment of its release.
_MODULES: Final = {"1.38-alpha": "v0.38.0-alpha.0"}


def built(release: Release) -> Path:
    """Return a program that evaluates in the release's environment, built once for each module version and source."""
    version = _MODULES.get(release.name, f"v0.{release.version.removeprefix('1.')}")
    folder = CACHE / "cel" / version
    program = folder / "cel"
    if program.exists() and program.stat().st_mtime > SOURCE.stat().st_mtime:
        return program
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, folder)
    module = f"module cel\n\ngo 1.24\n\nrequire k8s.io/dynamic-resource-allocation {version}\n"
    (folder / "go.mod").write_text(module)
    command = ["go", "build", "-mod=mod", "-o", str(program), "."]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "GOFLAGS": "-mod=mod"})
    return program


def theirs(program: Path, expressions: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the release's scheduler says about each expression and the device."""
    asked = {"features": ["ConsumableCapacity"], "devices": [{"driver": DRIVER, "device": DEVICE}]}
    lines = "".join(json.dumps({**asked, "expression": one}) + "\n" for one in expressions)
    done = subprocess.run([str(program)], input=lines, capture_output=True, text=True, check=True)
    return [verdict(json.loads(line)) for line in done.stdout.splitlines()]


def verdict(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared: whether it compiles, its estimated cost, its result, and its actual cost."""
    if answer.get("error"):
        return {"compiles": False}
    (result,) = answer["results"]
    if result.get("error"):
        return {"compiles": True, "maxCost": answer["maxCost"], "fails": True}
    return {"compiles": True, "maxCost": answer["maxCost"], "result": result["value"], "cost": result["cost"]}


def ours(release: Release, expression: str) -> dict[str, Any]:
    """Return the same for our evaluator."""
    known = Features.of(release).stored_expressions
    try:
        selector = Selector(expression, known)
    except CELCompileError:
        return {"compiles": False}
    answer = {"compiles": True, "maxCost": selector.max_cost}
    try:
        value, cost = selector.program.evaluate(device_variables(DRIVER, decode(Device, DEVICE), lists=known.lists))
    except CELRuntimeError:
        return {**answer, "fails": True}
    return {**answer, "result": value, "cost": cost} if isinstance(value, bool) else {**answer, "fails": True}
