"""The sanity suite against other projects' drivers, built by their packages' names if the module proxy has them.

`make interop` runs it. Without Go or a module, the tests are skipped with the reason. Programs that were built by hand
can be named instead: SANITY_EXAMPLE_DRIVER=/path/to/dra-example-kubeletplugin, SANITY_CPU_DRIVER=...
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes.machine import write_machine
from tests.interop.go_program import CPU_DRIVER, CPU_DRIVER_VERSION, NoProgramError, go_program
from tests.interop.nri_stand_in import nri_stand_in

PROGRAM: Final = Path(sys.executable).with_name("dranode")
EXAMPLE: Final = "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"
# The failures that docs/sanity.md lists; any other failure is new.
EXAMPLE_BREAKS: Final = {"configuration-subrequest"}
CPU_BREAKS: Final = {"prepare-share-id", "prepare-long-names"}
# Its folders and the paths of runtime and CPUs are fixed, so each run gets its own by mounts.
_IN_ITS_FOLDERS: Final = """
mkdir -p /var/run/nri /var/run/cdi
mount --bind "$1" /var/run/nri && mount --bind "$2" /var/run/cdi && mount --bind "$3" /sys/devices/system || exit 3
shift 3
exec "$@"
"""
_BUILT: Final = os.environ.get("SANITY_EXAMPLE_DRIVER") or os.environ.get("SANITY_CPU_DRIVER")
_REASON: Final = "" if os.environ.get("INTEROP") or _BUILT else "run by `make interop`"

pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_REASON), reason=_REASON)]


def built(package: str, version: str, variable: str, folder: Path) -> Path:
    """Return the program of a package."""
    if by_hand := os.environ.get(variable):
        return Path(by_hand)
    try:
        return go_program(package, version, folder)
    except NoProgramError as error:
        pytest.skip(str(error))


def judged(options: list[str], command: list[str]) -> list[dict[str, Any]]:
    """Return the outcome of every check."""
    suite = [str(PROGRAM), "sanity", *options, "--quiet", "1", "-o", "json", "--", *command]
    done = subprocess.run(suite, check=False, capture_output=True, text=True)
    checks: list[dict[str, Any]] = json.loads(done.stdout)["checks"]
    return checks


def broken(checks: list[dict[str, Any]]) -> dict[str, str]:
    """Return what was seen for each MUST that failed."""
    return {check["id"]: check["text"] for check in checks if (check["verdict"], check["level"]) == ("failed", "MUST")}


def test_the_example_driver_fails_only_the_checks_that_the_manual_lists(tmp_path: Path) -> None:
    driver = built(EXAMPLE, "latest", "SANITY_EXAMPLE_DRIVER", tmp_path)
    places = ["--cdi-root", "{cdi}", "--kubelet-registrar-directory-path", "{registry}"]
    data = ["--kubelet-plugins-directory-path", "{plugins}", "--pod-uid", "{pod_uid}", "--node-name", "{node}"]
    command = [str(driver), "--kubeconfig", "{kubeconfig}", *places, *data, "--healthcheck-port", "-1"]
    checks = judged(["--skip", "slices"], command)
    assert broken(checks).keys() <= EXAMPLE_BREAKS, broken(checks)
    assert sum(check["verdict"] == "passed" for check in checks) > 80


@pytest.mark.skipif(os.geteuid() != 0, reason="it mounts folders where the driver looks, which needs root")
def test_dra_driver_cpu_fails_only_the_checks_that_the_manual_lists(tmp_path: Path) -> None:
    driver = built(CPU_DRIVER, CPU_DRIVER_VERSION, "SANITY_CPU_DRIVER", tmp_path)
    write_machine(tmp_path / "machine", "sockets=2,numa=2,cores=4,threads=2")
    (tmp_path / "nri").mkdir()
    own = ["unshare", "--mount", "sh", "-c", _IN_ITS_FOLDERS, "sh", str(tmp_path / "nri"), "{cdi}"]
    own.append(str(tmp_path / "machine/sys/devices/system"))
    places = ["-kubeconfig", "{kubeconfig}", "-kubelet-root-dir", "{kubelet}", "-hostname-override", "{node}"]
    with nri_stand_in(tmp_path / "nri" / "nri.sock"):
        checks = judged([], [*own, str(driver), *places, "-bind-address", "127.0.0.1:0"])
    assert broken(checks).keys() <= CPU_BREAKS, broken(checks)
    assert sum(check["verdict"] == "passed" for check in checks) > 140
