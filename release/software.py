"""Lists the image's Python packages with their licenses: bill of materials and notices."""

from importlib.metadata import Distribution, distributions
from pathlib import Path

from release.project import DIST, ROOT, run, tool, version

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


def bill(packages: Path) -> Path:
    """Write the bill of materials of the image's Python packages as CycloneDX, validated.

    That of the image's base is in the image's attestations, which BuildKit makes.

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
    """Write the license texts of all packages of the image but ours, one after the other."""
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
    terms = str(facts.get("license_expression") or facts.get("license") or "see below")
    head = f"{package.name} {package.version}: {terms.splitlines()[0]}"
    return "\n\n".join([f"{'=' * len(head)}\n{head}\n{'=' * len(head)}", *texts, ""])
