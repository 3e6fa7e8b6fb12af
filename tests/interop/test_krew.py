"""The kubectl plug-in's archive and manifest in krew's own validator, which installs them with krew."""

import functools
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from release import archives
from release.project import version
from tests.interop.cache import CACHE

KREW = "v0.4.4"
PROGRAMS = ("krew", "validate-krew-manifest")

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def programs() -> Path:
    if not os.environ.get("INTEROP"):
        pytest.skip("INTEROP names no runtime; see `make interop`")
    for tool in ("go", "git"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = CACHE / f"krew-{KREW}"
    programs = [f"sigs.k8s.io/krew/cmd/{name}" for name in PROGRAMS]
    if not all((folder / "bin" / name).exists() for name in PROGRAMS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # They are built from a scratch module, as containerd's programs are.
        for step in (
            ["mod", "init", "dranode.test/scratch"],
            ["get", *(f"{each}@{KREW}" for each in programs)],
            ["build", "-o", f"{folder / 'bin'}/", *programs],
        ):
            done = subprocess.run(["go", *step], cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"krew cannot be built: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin"


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return what `make release` writes for krew, with an address that serves the archive."""
    monkeypatch.setattr(archives, "DIST", tmp_path)
    wheel = tmp_path / f"dranode-{version()}-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    archives.plugin(wheel)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        manifest = tmp_path / "dranode.yaml"
        address = f"http://127.0.0.1:{server.server_address[1]}"
        manifest.write_text(manifest.read_text().replace(f"https://releases.example/dranode/v{version()}", address))
        yield tmp_path
        server.shutdown()


def test_krews_validator_accepts_manifest_and_archive(programs: Path, dist: Path) -> None:
    # The validator calls krew through kubectl.
    kubectl = dist / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f'#!/bin/sh\nshift\nexec {programs / "krew"} "$@"\n')
    kubectl.chmod(0o755)
    environment = {**os.environ, "PATH": f"{kubectl.parent}:{os.environ['PATH']}", "HOME": str(dist)}
    done = subprocess.run(
        [programs / "validate-krew-manifest", "-manifest", dist / "dranode.yaml"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr  # it fails without a LICENSE, and with another name of the manifest
    assert "structural validation OK" in done.stderr
