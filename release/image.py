"""The image as an OCI archive, by docker's buildx or by buildah, whichever this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from release.project import DIST, ROOT, commit, epoch, run, version

_NO_ENGINE = "building it needs docker with buildx and a running daemon, or buildah"


def why_not() -> str:
    """Return why this machine cannot build the image; empty if it can."""
    return "" if _docker() or shutil.which("buildah") else _NO_ENGINE


def _docker() -> bool:
    if shutil.which("docker") is None:
        return False
    answers = [
        subprocess.run(["docker", *words], capture_output=True, check=False) for words in (["info"], ["buildx", "ls"])
    ]
    return not any(answer.returncode for answer in answers)


def build() -> Path:
    """Build the image that the DaemonSet runs; the same commit on the same base gives the same layers.

    The variable BASE names another base than the Dockerfile's, such as the same by its digest.
    """
    path = DIST / f"dranode-image-{version()}.tar"
    named = f"dranode:{version()}"
    values = {"VERSION": version(), "REVISION": commit()}
    if base := os.environ.get("BASE"):
        values["BASE"] = base
    arguments = [f"--build-arg={name}={value}" for name, value in values.items()]
    if _docker():
        output = f"--output=type=oci,dest={path},rewrite-timestamp=true"
        run("docker", "buildx", "build", *arguments, f"--build-arg=SOURCE_DATE_EPOCH={epoch()}", output, str(ROOT))
    else:
        run("buildah", "bud", "--layers=false", f"--timestamp={epoch()}", *arguments, "--tag", named, str(ROOT))
        run("buildah", "push", "--quiet", named, f"oci-archive:{path}:{named}")
    return path
