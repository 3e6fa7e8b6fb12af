"""Builds the image as an OCI archive with docker's buildx or buildah, whichever is installed."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from release import archives
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
    """Build the image that the DaemonSet runs; the same commit on the same base gives the same image.

    Three variables change how. BASE: a base other than the Dockerfile's, such as a mirror's.
    IMAGE_PLATFORMS: `linux/amd64,linux/arm64` for one archive with both; by default this machine's platform.
    IMAGE_OPTIONS: more arguments for the engine, such as a volume with the configuration of the package index.
    """
    path = DIST / f"dranode-image-{version()}.tar"
    named = f"dranode:{version()}"
    values = {"VERSION": version(), "REVISION": commit()}
    if base := os.environ.get("BASE"):
        values["BASE"] = base
    arguments = [f"--build-arg={name}={value}" for name, value in values.items()]
    arguments += shlex.split(os.environ.get("IMAGE_OPTIONS", ""))
    platforms = os.environ.get("IMAGE_PLATFORMS", "")
    arguments += [f"--platform={platforms}"] if platforms else []
    if _docker():
        output = f"--output=type=oci,dest={path},rewrite-timestamp=true"
        attestations = ("--sbom=true", "--provenance=mode=max")
        dated = f"--build-arg=SOURCE_DATE_EPOCH={epoch()}"
        run("docker", "buildx", "build", *arguments, *attestations, dated, output, str(ROOT))
        archives.settle(path)
        return path
    target = ("--manifest", named) if platforms else ("--tag", named)
    # buildah would add the image to an existing list of this name.
    subprocess.run(["buildah", "rmi", "--force", named], capture_output=True, check=False)
    run("buildah", "bud", "--layers=false", f"--timestamp={epoch()}", *arguments, *target, str(ROOT))
    push = ("manifest", "push", "--all") if platforms else ("push",)
    run("buildah", *push, "--quiet", named, f"oci-archive:{path}:{named}")
    archives.settle(path)
    return path


def describe(path: Path) -> str:
    """Return a line that says how large the image is, and by which engine and on which base it was built."""
    engine = "docker" if _docker() else "buildah"
    platforms = os.environ.get("IMAGE_PLATFORMS") or "this machine's platform"
    base = os.environ.get("BASE") or "the base of the Dockerfile"
    return f"by {engine} for {platforms} on {base}: {path.stat().st_size / (1 << 20):.1f} MiB"
