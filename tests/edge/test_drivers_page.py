"""The page about writing a driver: its files work as a driver, its commands run, its manifests fit deploy/."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.edge.test_docs import BLOCK, PROGRAM, ROOT, Block, matches, sessions

PAGE = ROOT / "docs" / "drivers.md"
BLOCKS = [Block(PAGE, *found) for found in BLOCK.findall(PAGE.read_text())]
FILES = {block.title: block.text for block in BLOCKS if block.title}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The empty folder, filled with every file of the page."""
    made = tmp_path_factory.mktemp("fans")
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the page; a package is installed beside the others, not among them."""
    match shlex.split(command):
        case ["python", *rest]:
            words = [sys.executable, *rest]
        case ["pip", "install", "dranode-0.1.0-py3-none-any.whl", "."]:
            offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
            words = [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", "site", "."]
        case ["dranode", *rest]:
            words = [str(PROGRAM), *rest]
        case _:
            words = ["sh", "-c", command]
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_every_block_of_the_page_is_a_file_or_a_session() -> None:
    assert {block.language for block in BLOCKS if not block.title} == {"console", "sh"}
    assert {Path(name).suffix for name in FILES} == {".toml", ".py", ".yaml", ""}


def test_the_page_goes_from_an_empty_folder_to_a_local_run(folder: Path) -> None:
    for block in (block for block in BLOCKS if block.language == "console"):
        for command, expected in sessions(block):
            done = run(folder, command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            assert matches(expected, done.stdout.splitlines()), (command, done.stdout)
    # The page says that a machine must be copied before a driver can write to it.
    refused = run(folder, "dranode local --machine machine.yaml --drivers fans -o json claims.yaml")
    assert refused.returncode == 1
    assert "a captured or made-up machine cannot be written to" in refused.stdout


MANIFESTS = ("daemonset.yaml", "rbac.yaml", "admission-slices.yaml")


def deployed(kind: str) -> Any:
    documents = (
        document for path in MANIFESTS for document in yaml.safe_load_all((ROOT / "deploy" / path).read_text())
    )
    return next(document for document in documents if document["kind"] == kind)


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for patch in yaml.safe_load(FILES["kustomization.yaml"])["patches"]:
        yield from ((patch["target"]["kind"], operation) for operation in yaml.safe_load(patch["patch"]))
    yield from (("DaemonSet", operation) for operation in yaml.safe_load(FILES["writable.yaml"]))


@pytest.mark.parametrize(("kind", "operation"), list(operations()), ids=str)
def test_a_patch_of_the_page_fits_the_manifests(kind: str, operation: dict[str, Any]) -> None:
    place = deployed(kind)
    *folders, last = operation["path"].strip("/").split("/")
    for part in folders:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if operation["op"] == "add":
        assert (last, isinstance(place, list)) == ("-", True)
    else:
        assert isinstance(place[last], type(operation["value"]))
    if last == "resourceNames":
        assert place["resourceNames"] == ["dra.cpu", "dra.gpu", "dra.memory"]
    if kind == "ValidatingAdmissionPolicy":
        assert place[last] == '["dra.cpu", "dra.gpu", "dra.memory"]'


def test_the_image_of_the_page_is_built_on_ours() -> None:
    ours, theirs = (ROOT / "Dockerfile").read_text(), FILES["Dockerfile"]
    base = re.search(r"^ARG BASE=(\S+)", ours, re.MULTILINE)
    assert base is not None
    assert re.findall(r"^FROM (\S+)", theirs, re.MULTILINE) == [
        base[1],
        deployed("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["image"],
    ]
    minor = re.search(r"python:(3\.\d+)", base[1])
    assert minor is not None
    assert f"/opt/dranode/lib/python{minor[1]}/site-packages" in theirs
    assert "python3 -m venv --without-pip /opt/dranode" in ours
