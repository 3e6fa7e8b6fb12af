"""The kubectl plug-in as krew installs it."""

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from release import archives
from release.project import version
from tests.fakes.kustomize import DEPLOY

KREW = DEPLOY / "krew"


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(archives, "DIST", tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    wheel = tmp_path / f"dranode-{version()}-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    archives.plugin(wheel)
    return tmp_path


def test_the_archive_holds_the_launcher_and_the_wheel(dist: Path) -> None:
    with tarfile.open(dist / "kubectl-dranode.tar.gz") as archive:
        members = {member.name: member.mode for member in archive}
    wheel = f"dranode-{version()}-py3-none-any.whl"
    assert members == {"kubectl-dranode": 0o755, wheel: 0o644, "run.lock": 0o644, "LICENSE": 0o644}


def test_the_manifest_has_the_version_and_the_checksum(dist: Path) -> None:
    manifest = yaml.safe_load((dist / "dranode.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("dranode", f"v{version()}")
    assert platform["sha256"] == hashlib.sha256((dist / "kubectl-dranode.tar.gz").read_bytes()).hexdigest()
    assert (platform["bin"], platform["uri"].rpartition("/")[2]) == ("kubectl-dranode", "kubectl-dranode.tar.gz")


def test_the_launcher_creates_its_environment_once_and_runs_the_plugin(dist: Path) -> None:
    tools, log = dist / "tools", dist / "log"
    tools.mkdir()
    # A python3 that creates an environment as venv does, with a python in it that logs its arguments.
    python = tools / "python3"
    made = f'printf \'#!/bin/sh\\necho "$@" >> {log}\\n\' > "$4/bin/python"'
    steps = ("#!/bin/sh", '[ "$2" = -c ] && exit 0', 'mkdir -p "$4/bin"', made, 'chmod +x "$4/bin/python"')
    python.write_text("\n".join(steps))
    # What krew installs is a link, and the readlink of an older macOS has no options.
    (tools / "readlink").write_text('#!/bin/sh\n[ $# = 1 ] && exec /usr/bin/readlink "$1"\n')
    for name in ("kubectl-dranode", "kubectl_complete-dranode"):
        (tools / name).symlink_to("../plugin/kubectl-dranode")
    for tool in (python, tools / "readlink"):
        tool.chmod(0o755)
    with tarfile.open(dist / "kubectl-dranode.tar.gz") as archive:
        archive.extractall(dist / "plugin", filter="data")
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(dist)}

    def run(name: str = "kubectl-dranode") -> list[str]:
        log.write_text("")
        subprocess.run([tools / name, "claims", "-A"], env=environment, check=True)
        return log.read_text().splitlines()

    first, second = run(), run()
    libraries, own = (line.split() for line in first if "pip install" in line)
    # Only libraries come from an index, and pip compares them with the hashes of the release.
    assert {"--require-hashes", "--no-deps", str(dist / "plugin" / "run.lock")} < set(libraries)
    assert {"--no-index", "--no-deps", str(dist / "plugin" / f"dranode-{version()}-py3-none-any.whl")} < set(own)
    assert first[-1].endswith("run_plugin() claims -A")
    assert second == ["-I -c import dranode.tools", first[-1]]
    assert run("kubectl_complete-dranode")[-1].endswith("complete_words() claims -A")
    # The Python that the environment was made with is gone after an upgrade.
    (made_python,) = dist.glob(".cache/kubectl-dranode/*/bin/python")
    made_python.unlink()
    made_python.symlink_to(dist / "python3.11")
    assert run() == first
    assert list(made_python.parents[2].iterdir()) == [made_python.parents[1]]


def test_a_python_that_is_too_old_is_named_with_the_version_that_is_needed(dist: Path) -> None:
    for name in ("python3", *(f"python3.{minor}" for minor in range(11, 16))):
        (dist / name).write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.6\n')
        (dist / name).chmod(0o755)
    environment = {"PATH": f"{dist}:{os.environ['PATH']}", "HOME": str(dist)}
    done = subprocess.run([KREW / "kubectl-dranode"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "kubectl dranode: Python 3.11 or newer is needed, and python3 is Python 3.9.6\n",
    )


def test_the_lock_in_the_archive_has_a_hash_for_every_library(dist: Path) -> None:
    with tarfile.open(dist / "kubectl-dranode.tar.gz") as archive:
        member = archive.extractfile("run.lock")
        assert member is not None
        text = member.read().decode()
    pinned = [entry for entry in text.replace("\\\n", " ").splitlines() if entry and not entry.startswith((" ", "#"))]
    assert len(pinned) > 5
    assert [entry for entry in pinned if "==" not in entry or "--hash=sha256:" not in entry] == []


def test_the_launcher_runs_the_plugin_under_kubectls_name() -> None:
    (line,) = (text for text in (KREW / "kubectl-dranode").read_text().splitlines() if text.startswith("exec"))
    code = line.partition('-c "')[2].partition('"')[0].replace("$run", "run_plugin")
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: kubectl dranode [OPTIONS] COMMAND")
