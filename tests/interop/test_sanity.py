"""The sanity suite before a driver that others wrote, built by its package's name where the module proxy has it.

`make interop` runs it; where Go is missing or the module cannot be had, it is skipped with what was said. A program
that was built by hand is taken instead: SANITY_EXAMPLE_DRIVER=/path/to/dra-example-kubeletplugin.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PROGRAM: Final = Path(sys.executable).with_name("dranode")
PACKAGE: Final = "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"
BUILT: Final = os.environ.get("SANITY_EXAMPLE_DRIVER", "")
# What docs/sanity.md says of it; whatever else is not kept is news.
KNOWN: Final = {"configuration-subrequest"}
_REASON: Final = "" if os.environ.get("INTEROP") or BUILT else "run by `make interop`"

pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_REASON), reason=_REASON)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if BUILT:
        return Path(BUILT)
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    folder = tmp_path_factory.mktemp("go")
    command = ["go", "install", f"{PACKAGE}@latest"]
    environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be had: {done.stderr.strip()[-300:]}")
    return folder / "dra-example-kubeletplugin"


def test_the_example_driver_keeps_what_the_manual_says(driver: Path) -> None:
    options = ["--skip", "slices", "--quiet", "1", "-o", "json"]
    places = ["--cdi-root", "{cdi}", "--kubelet-registrar-directory-path", "{registry}"]
    data = ["--kubelet-plugins-directory-path", "{plugins}", "--pod-uid", "{pod_uid}", "--node-name", "{node}"]
    command = [str(driver), "--kubeconfig", "{kubeconfig}", *places, *data, "--healthcheck-port", "-1"]
    done = subprocess.run([PROGRAM, "sanity", *options, "--", *command], check=False, capture_output=True, text=True)
    checks = json.loads(done.stdout)["checks"]
    broken = {check["id"] for check in checks if (check["verdict"], check["level"]) == ("failed", "MUST")}
    assert broken <= KNOWN
    assert sum(check["verdict"] == "passed" for check in checks) > 80
