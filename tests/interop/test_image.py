"""The built image: reproducible, only what `serve` needs, and the variants of the manual."""

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.interop.engine import ENVIRONMENT, ROOT, base_image, build, buildah, why_no_image

LIMIT_MIB = 48
REASON = why_no_image() if os.environ.get("INTEROP") else "make interop builds the image"
pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(REASON), reason=REASON)]


@pytest.fixture(scope="module")
def base() -> str:
    return base_image()


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
    assert not parts & {"pip", "setuptools", "kubernetes", "tests", "pytest"}
    assert not [name for name in packages if name.endswith("direct_url.json")]


def test_the_node_commands_run_in_the_image(image: str) -> None:
    assert run(image, "dranode", "serve", "--help").returncode == 0
    published = run(image, "dranode", "slices", "--machine", "sockets=1,numa=1,cores=2,threads=2", "-o", "json")
    assert [each["spec"]["driver"] for each in json.loads(published.stdout)["items"]] == ["dra.cpu"]
    # No driver runs and nothing is mounted: the command reports faults, without a traceback.
    judged = run(image, "dranode", "doctor")
    assert judged.returncode == 1
    assert "Traceback" not in judged.stderr + judged.stdout


def test_the_image_runs_the_demo_and_has_no_pip(image: str) -> None:
    shown = run(image, "dranode", "demo")
    assert shown.returncode == 0, shown.stderr
    assert run(image, "python3", "-m", "pip").returncode != 0


def test_the_image_proves_a_driver(image: str) -> None:
    command = ["dranode", "serve", "--machine", "sockets=1,numa=2,cores=4,threads=2", "--nri-socket", "none"]
    command += [
        "--kubeconfig",
        "{kubeconfig}",
        "--kubelet-root",
        "{kubelet}",
        "--cdi-dir",
        "{cdi}",
        "--node-name",
        "{node}",
    ]
    focus = ["--focus", "prepare-*", "--focus", "cdi-resolves", "--quiet", "1"]
    proved = run(image, "dranode", "sanity", *focus, "--", *command, "--http-address", "none")
    assert proved.returncode == 0, proved.stdout + proved.stderr
    assert "prepare-answers" in proved.stdout


def test_the_debug_variant_runs_the_demo(debug: str) -> None:
    shown = run(debug, "dranode", "demo")
    assert shown.returncode == 0, shown.stderr


def test_the_manuals_lines_add_nvml_to_the_image(image: str, debug: str, tmp_path: Path) -> None:
    document = (ROOT / "docs" / "install.md").read_text()
    (lines,) = [text.split("```")[0] for text in document.split("```dockerfile\n")[1:]]
    assert len(lines.splitlines()) == 3
    (tmp_path / "Dockerfile").write_text(lines.replace("dranode:0.1.0-debug", debug).replace("dranode:0.1.0", image))
    build(tmp_path, "localhost/dranode-test-driver")
    assert run("localhost/dranode-test-driver", "python3", "-c", "import pynvml, dranode.driver").returncode == 0
