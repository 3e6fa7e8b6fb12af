"""Modules of the kubernetes package, alone and as a part of it; each in a Python of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_LOAD = """
import json, sys
from dranode.driver.kube.package import submodules
{before}
rest, loader = submodules("client.rest", "config.{loader}")
print(json.dumps({{
    "loaded": sorted(name for name in sys.modules if name.split(".")[0] == "kubernetes"),
    "heavy": sorted({{"requests", "websocket", "kubernetes.dynamic"}} & sys.modules.keys()),
    "classes": [rest.RESTClientObject.__name__, loader.__name__],
    **({after}),
}}))
"""


def run(before: str = "", after: str = "{}", loader: str = "incluster_config") -> Any:
    code = _LOAD.format(before=before, after=after, loader=loader)
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_modules_come_without_the_package_and_leave_nothing_behind() -> None:
    told = run()
    assert told["classes"] == ["RESTClientObject", "kubernetes.config.incluster_config"]
    assert told["loaded"] == []
    assert told["heavy"] == []


def test_kubeconfigs_are_read_without_the_package_too() -> None:
    told = run(after='{"function": callable(loader.load_kube_config)}', loader="kube_config")
    assert told["function"]
    assert told["loaded"] == []


def test_an_ordinary_import_afterwards_is_whole() -> None:
    after = '{"api": __import__("kubernetes.client").client.CoreV1Api.__name__}'
    assert run(after=after)["api"] == "CoreV1Api"


def test_a_package_that_does_not_bear_it_is_loaded_whole() -> None:
    # As if a later version kept its modules elsewhere: the parents are not found on their own.
    told = run(before='import dranode.driver.kube.package as p; p._PARENTS = (*p._PARENTS, "kubernetes.moved")')
    assert told["classes"][0] == "RESTClientObject"
    assert "kubernetes.dynamic" in told["heavy"]


def test_a_package_that_is_loaded_already_is_used_as_it_is() -> None:
    told = run(before="import kubernetes.client", after='{"same": sys.modules["kubernetes.client.rest"] is rest}')
    assert told["same"]
    assert "kubernetes.dynamic" in told["heavy"]
