"""Bug reports of configurations that were read in another way than their authors meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.fakes.apiserver import api_server


def test_a_kubeconfig_may_come_from_another_program(tmp_path: Path) -> None:
    """A shell turns `<(command)` into a pipe, which can be read only once."""
    program = Path(sys.executable).with_name("dranode")
    with api_server() as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        asked = f"{program} explain pod/app --kubeconfig <(cat {kubeconfig})"
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=300, check=False)
    assert "there is no pod default/app" in done.stdout, done.stderr


def test_a_kubeconfig_that_is_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("dranode")
    asked = f"mkfifo {tmp_path}/pipe; {program} explain pod/app --kubeconfig {tmp_path}/pipe"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=300, check=False)
    assert "it is a named pipe" in done.stderr
