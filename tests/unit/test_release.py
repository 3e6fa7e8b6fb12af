"""What a release is made of, as far as it shows without building one."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ALLOWED = re.compile(
    r"Apache|MIT|BSD|ISC|PSF|Python Software Foundation|MPL-2\.0|Mozilla|Unlicense|LGPL", re.IGNORECASE
)


def locked(name: str) -> list[str]:
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return re.findall(r"^([a-z0-9_.-]+)==", text, re.MULTILINE)


def licence(name: str) -> str:
    facts = distribution(name).metadata.json
    classifiers = [each for each in facts.get("classifier", ()) if each.startswith("License")]
    return f"{facts.get('license_expression') or ''} {' '.join(classifiers)} {str(facts.get('license') or '')[:200]}"


@pytest.mark.parametrize("name", sorted(set(locked("run")) - {"tzdata"}))
def test_every_package_that_runs_has_a_licence_that_lets_it_be_passed_on(name: str) -> None:
    assert ALLOWED.search(licence(name)), licence(name)


def test_the_locks_agree_on_every_package() -> None:
    def pinned(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / f"{name}.lock").read_text()
        return dict(re.findall(r"^([a-z0-9_.-]+)==(\S+)", text, re.MULTILINE))

    node, run, dev = pinned("serve"), pinned("run"), pinned("dev")
    assert node
    assert node.items() <= run.items() <= dev.items()


def test_one_version_names_package_chart_manifests_and_change_log() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {version}
    assert f"dranode:{version}" in (ROOT / "deploy" / "daemonset.yaml").read_text()
    assert f"## {version} " in (ROOT / "CHANGELOG.md").read_text()
