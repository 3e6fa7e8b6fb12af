"""Builds images with buildah, on a base of Debian's packages, because a registry may not be reachable."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.interop.cache import CACHE

ROOT = Path(__file__).parents[2]
_BASE = "localhost/dranode-test-base"
_PACKAGES = "python3,python3-venv,ca-certificates"
ENVIRONMENT = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
# Variables that this machine may need to reach its package index.
_HOST_FILES = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]


def why_no_image() -> str:
    """Return why no image can be built here; empty if one can."""
    missing = [program for program in ("buildah", "mmdebstrap") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        return f"building an image needs root and {' and '.join(missing) or 'nothing else'}"
    return ""


def buildah(*words: str) -> str:
    answer = subprocess.run(["buildah", *words], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert answer.returncode == 0, answer.stderr[-4000:]
    return answer.stdout.strip()


def build(context: Path, tag: str, *options: str) -> str:
    """Build an image without cached layers.

    Returns:
        Its identity: the digest of its configuration, which holds the digests of its layers.
    """
    volumes = [word for path in _HOST_FILES for word in ("--volume", f"{path}:{path}:ro")]
    buildah(
        "bud",
        "--quiet",
        "--layers=false",
        "--no-cache",
        "--timestamp=0",
        *volumes,
        *options,
        "--tag",
        tag,
        str(context),
    )
    (image,) = json.loads(buildah("images", "--json", tag))
    return str(image["id"])


def base_image() -> str:
    """Return the name of a Debian image with Python, which is made once."""
    context = CACHE / "image-base"
    if not (context / "Dockerfile").exists():
        context.mkdir(parents=True, exist_ok=True)
        made = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", "bookworm"]
        subprocess.run([*made, str(context / "base.tar")], check=True)
        (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
    build(context, _BASE)
    return _BASE
