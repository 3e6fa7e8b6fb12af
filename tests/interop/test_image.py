"""The image built for real: the same bytes twice, what `serve` needs and no more, and what its users put on top.

Needs root, buildah and mmdebstrap; the base is made from Debian's packages, since no registry may be at hand.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.interop.containerd import CACHE

ROOT = Path(__file__).parents[2]
BASE = "localhost/dranode-test-base"
PACKAGES = "python3,python3-venv,ca-certificates"
LIMIT_MIB = 45
ENVIRONMENT = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
# What this machine needs to reach its package index, if it needs anything.
HOST_FILES = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]


def _why_not() -> str:
    if not os.environ.get("INTEROP"):
        return "make interop builds the image"
    missing = [program for program in ("buildah", "mmdebstrap") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        return f"building an image needs root and {' and '.join(missing) or 'nothing else'}"
    return ""


pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_why_not()), reason=_why_not())]


def buildah(*words: str) -> str:
    answer = subprocess.run(["buildah", *words], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert answer.returncode == 0, answer.stderr[-4000:]
    return answer.stdout.strip()


def build(context: Path, tag: str, *options: str) -> str:
    """Build an image without any layer kept from before.

    Returns:
        Its identity: the digest of its configuration, which holds the digests of its layers.
    """
    volumes = [word for path in HOST_FILES for word in ("--volume", f"{path}:{path}:ro")]
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


@pytest.fixture(scope="module")
def base() -> str:
    """A Debian with Python, made once."""
    context = CACHE / "image-base"
    if not (context / "Dockerfile").exists():
        context.mkdir(parents=True, exist_ok=True)
        made = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm"]
        subprocess.run([*made, str(context / "base.tar")], check=True)
        (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
    build(context, BASE)
    return BASE


@pytest.fixture(scope="module")
def image(base: str) -> str:
    tag = "localhost/dranode-test"
    build(ROOT, tag, "--build-arg", f"BASE={base}")
    return tag


@pytest.fixture(scope="module")
def debug(base: str) -> str:
    tag = "localhost/dranode-test-debug"
    build(ROOT, tag, "--target=debug", "--build-arg", f"BASE={base}")
    return tag


def run(image: str, *words: str) -> subprocess.CompletedProcess[str]:
    container = buildah("from", "--pull=never", image)
    try:
        command = ["buildah", "run", container, "--", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    finally:
        buildah("rm", container)


def test_two_builds_give_the_same_bytes(base: str, image: str) -> None:
    (first,) = json.loads(buildah("images", "--json", image))
    assert build(ROOT, "localhost/dranode-test-again", "--build-arg", f"BASE={base}") == first["id"]


def test_the_image_holds_what_serve_needs_and_no_more(image: str, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    buildah("push", "--quiet", image, f"oci-archive:{archive}")
    with tarfile.open(archive) as blobs:
        blobs.extractall(tmp_path, filter="data")
    (index,) = json.loads((tmp_path / "index.json").read_text())["manifests"]
    blob = tmp_path / "blobs" / "sha256"
    manifest = json.loads((blob / index["digest"].removeprefix("sha256:")).read_text())
    layer = blob / manifest["layers"][-1]["digest"].removeprefix("sha256:")
    with tarfile.open(layer) as files:
        members = files.getmembers()
    assert sum(member.size for member in members) < LIMIT_MIB * 2**20
    packages = {name for member in members for name in member.name.split("site-packages/")[1:]}
    assert "dranode/driver/serve/__init__.py" in packages
    assert "dranode/driver/serve/__pycache__/__init__.cpython-311.pyc" in packages
    parts = {Path(name).parts[0] for name in packages}
    assert not parts & {"pip", "setuptools", "kubernetes", "cel_expr_python", "tests", "pytest"}
    assert not [name for name in packages if name.endswith("direct_url.json")]


def test_the_node_commands_run_in_the_image(image: str) -> None:
    assert run(image, "dranode", "serve", "--help").returncode == 0
    published = run(image, "dranode", "slices", "--machine", "sockets=1,numa=1,cores=2,threads=2", "-o", "json")
    assert [each["spec"]["driver"] for each in json.loads(published.stdout)] == ["dra.cpu"]
    # Nothing serves and nothing is mounted: faults, not a traceback.
    judged = run(image, "dranode", "doctor")
    assert judged.returncode == 1
    assert "Traceback" not in judged.stderr + judged.stdout


def test_a_command_that_needs_more_says_where_to_run_it(image: str) -> None:
    refused = run(image, "dranode", "demo")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[0] == (
        "dranode: this command needs the Python module cel_expr_python, which this installation leaves out: run it "
        "from the image's debug variant or from `pip install dranode`"
    )
    assert run(image, "python3", "-m", "pip").returncode != 0


def test_the_debug_variant_runs_the_demo(debug: str) -> None:
    shown = run(debug, "dranode", "demo")
    assert shown.returncode == 0, shown.stderr


def test_nvml_goes_into_the_image_by_the_lines_of_the_manual(image: str, debug: str, tmp_path: Path) -> None:
    document = (ROOT / "docs" / "install.md").read_text()
    (lines,) = [text.split("```")[0] for text in document.split("```dockerfile\n")[1:]]
    assert len(lines.splitlines()) == 3
    (tmp_path / "Dockerfile").write_text(lines.replace("dranode:0.1.0-debug", debug).replace("dranode:0.1.0", image))
    build(tmp_path, "localhost/dranode-test-driver")
    assert run("localhost/dranode-test-driver", "python3", "-c", "import pynvml, dranode.driver").returncode == 0
