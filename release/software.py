"""Lists the image's Python packages with their licenses: bill of materials and notices."""

from importlib.metadata import Distribution, distributions
from pathlib import Path

from release.project import DIST, ROOT, run, tool, version

_LICENCE_FILES = ("licen", "copying", "notice", "authors")


def environment(wheel: Path) -> Path:
    """Install the image's packages into a folder of their own, and return its site-packages."""
    folder = ROOT / ".cache" / "release" / "node"
    python = str(folder / "bin" / "python")
    uv = tool("uv")
    run(uv, "venv", "--quiet", "--clear", "--python", tool("python"), str(folder))
    install = (uv, "pip", "install", "--quiet", "--python", python, "--no-deps")
    run(*install, "--require-hashes", "-r", "requirements/serve.lock")
    run(*install, str(wheel))
    return next((folder / "lib").glob("python3*/site-packages"))


def bill(packages: Path) -> Path:
    """Write the bill of materials of the image's Python packages as CycloneDX, validated.

    The packages of the image's base are in the image's attestations, which BuildKit creates.

    Args:
        packages: the folder with the packages.
    """
    path = DIST / f"dranode-{version()}.cdx.json"
    python = str(packages.parents[2] / "bin" / "python")
    run(
        tool("cyclonedx-py"), "environment", "--pyproject", "pyproject.toml", "--output-reproducible", "--validate",
        "-o", str(path), python,
    )  # fmt: skip
    return path


def notices(packages: Path) -> Path:
    """Write the license texts of all packages of the image except ours."""
    path = DIST / "THIRD-PARTY-NOTICES.txt"
    theirs = [package for package in distributions(path=[str(packages)]) if package.name != "dranode"]
    path.write_text("\n".join(map(_notice, sorted(theirs, key=lambda package: package.name.lower()))))
    return path


def _notice(package: Distribution) -> str:
    texts = [
        file.read_text()
        for file in package.files or ()
        if ".dist-info" in str(file) and file.name.lower().startswith(_LICENCE_FILES)
    ]
    facts = package.metadata.json
    terms = str(facts.get("license_expression") or facts.get("license") or "see below")
    head = f"{package.name} {package.version}: {terms.splitlines()[0]}"
    return "\n\n".join([f"{'=' * len(head)}\n{head}\n{'=' * len(head)}", *texts, ""])
