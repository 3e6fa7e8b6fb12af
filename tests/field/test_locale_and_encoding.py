"""Bug reports of terminals, locales and files that do not use UTF-8."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("dranode")
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: a, namespace: größe}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}
"""


def ran(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [PROGRAM, *arguments], env={**os.environ, **environment}, capture_output=True, timeout=300, check=False
    )


def test_a_picture_uses_only_characters_that_the_terminal_has() -> None:
    drawn = ran("topology", "--machine", "sockets=1,cores=2", PYTHONIOENCODING="ascii")
    assert drawn.returncode == 0, drawn.stderr
    assert b"NUMA 0" in drawn.stdout


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_output_for_programs_is_utf_8_in_every_locale(tmp_path: Path, form: str) -> None:
    (tmp_path / "claim.yaml").write_text(CLAIM, encoding="utf-8")
    answer = ran("check", str(tmp_path / "claim.yaml"), "-o", form, PYTHONIOENCODING="latin-1")
    assert "größe" in answer.stdout.decode("utf-8")
