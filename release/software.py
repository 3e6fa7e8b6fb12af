"""Lists the image's packages with their owners and licences: bills of materials and notices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.writer.json.json_writer import write_document_to_file

from release.oci import BasePackage
from release.project import DIST, ROOT, StepError, commit, epoch, run, tool, version

# What an identifier of SPDX cannot have.
_IN_NAMES = re.compile(r"[^A-Za-z0-9.-]+")
_LICENCE_FILES = ("licen", "copying", "notice", "authors")


def environment(wheel: Path) -> Path:
    """Install what the image holds into a folder of its own, and return that folder's site-packages."""
    folder = ROOT / ".cache" / "release" / "node"
    python = str(folder / "bin" / "python")
    uv = tool("uv")
    run(uv, "venv", "--quiet", "--clear", "--python", tool("python"), str(folder))
    run(
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--no-deps",
        "--require-hashes",
        "-r",
        "requirements/serve.lock",
    )
    run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", str(wheel))
    return next((folder / "lib").glob("python3*/site-packages"))


def bills(packages: Path, base: Iterable[BasePackage]) -> Path:
    """Write the bill of materials as CycloneDX and, with the same packages, as SPDX; both are validated.

    Args:
        packages: the folder with the image's Python packages.
        base: what the image's base holds.

    Returns:
        The SPDX document's path.
    """
    cyclone = DIST / f"dranode-{version()}.cdx.json"
    python = str(packages.parents[2] / "bin" / "python")
    run(
        tool("cyclonedx-py"), "environment", "--pyproject", "pyproject.toml", "--output-reproducible", "--validate",
        "-o", str(cyclone), python,
    )  # fmt: skip
    document = json.loads(cyclone.read_text())
    document["components"] += [_component(each) for each in base]
    text = json.dumps(document, indent=2)
    if fault := JsonStrictValidator(SchemaVersion.from_version(document["specVersion"])).validate_str(text):
        raise StepError(f"{cyclone.name} is no CycloneDX document: {fault}")
    cyclone.write_text(text)
    path = DIST / f"dranode-{version()}.spdx.json"
    write_document_to_file(_spdx(document), str(path), validate=True)
    return path


def _component(package: BasePackage) -> dict[str, Any]:
    return {"type": "library", "bom-ref": package.purl, **asdict(package)}


def _spdx(cyclone: dict[str, list[dict[str, str]]]) -> Document:
    own = Package("SPDXRef-dranode", "dranode", SpdxNoAssertion(), version=version(), files_analyzed=False)
    others = [_package(each) for each in cyclone["components"] if each["name"] != "dranode"]
    created = CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=f"dranode-{version()}",
        document_namespace=f"urn:dranode:{version()}:{commit()}",
        creators=[Actor(ActorType.TOOL, "dranode-release")],
        created=datetime.fromtimestamp(int(epoch()), UTC).replace(tzinfo=None),
    )
    described = Relationship("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, own.spdx_id)
    needed = [Relationship(own.spdx_id, RelationshipType.DEPENDS_ON, each.spdx_id) for each in others]
    return Document(created, packages=[own, *others], relationships=[described, *needed])


def _package(component: dict[str, str]) -> Package:
    address = ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", component["purl"])
    return Package(
        f"SPDXRef-{_IN_NAMES.sub('-', component['purl'].removeprefix('pkg:'))}",
        component["name"],
        SpdxNoAssertion(),
        version=component["version"],
        files_analyzed=False,
        external_references=[address],
    )


def notices(packages: Path) -> Path:
    """Write the licence texts of all packages of the image but ours, one after the other."""
    path = DIST / "THIRD-PARTY-NOTICES.txt"
    theirs = [each for each in distributions(path=[str(packages)]) if each.name != "dranode"]
    path.write_text("\n".join(_notice(each) for each in sorted(theirs, key=lambda each: each.name.lower())))
    return path


def _notice(package: Distribution) -> str:
    texts = [
        file.read_text()
        for file in package.files or ()
        if ".dist-info" in str(file) and file.name.lower().startswith(_LICENCE_FILES)
    ]
    facts = package.metadata.json
    licence = str(facts.get("license_expression") or facts.get("license") or "see below")
    head = f"{package.name} {package.version}: {licence.splitlines()[0]}"
    return "\n\n".join([f"{'=' * len(head)}\n{head}\n{'=' * len(head)}", *texts, ""])
