"""The site: every page has its place, every link leads somewhere, and the schemas say what the drivers take."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
import yaml

from release import site
from release.project import ROOT


def navigation(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    return [name for value in (part.values() if isinstance(part, dict) else part) for name in navigation(value)]


def test_every_page_of_the_manual_is_in_the_navigation_once() -> None:
    named = navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    manual = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert len(named) == len(set(named))
    assert manual <= set(named)
    others = {name for name in named if "/" not in name} - manual
    assert others == {"index.md", "examples.md", *(f"{name}.md" for name in site.TOP)}


def test_links_of_the_tree_become_links_of_the_site() -> None:
    text = "[a](docs/install.md#x) [b](examples/cpu-numa.yaml) [c](examples) [d](tests/crash) [e](#here) [f](README.md)"
    assert site.relinked(text, ROOT) == (
        "[a](install.md#x) [b](examples.md#cpu-numayaml) [c](examples.md) d [e](#here) [f](index.md)"
    )


def test_every_linked_example_has_its_heading() -> None:
    anchors = set(re.findall(r"\{ #(\S+) \}", site.examples()))
    texts = [site.relinked(page.read_text(), page.parent) for page in (ROOT / "docs").glob("*.md")]
    links = {anchor for text in texts for anchor in re.findall(r"examples\.md#([^)]+)\)", text)}
    assert links
    assert links <= anchors


def configurations() -> list[dict[str, Any]]:
    """Every opaque configuration of the examples."""
    found = []
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            spec = (document or {}).get("spec") or {}
            devices = (spec.get("spec") or spec).get("devices") or {}
            entries = [*(spec.get("config") or ()), *(devices.get("config") or ())]
            found += [entry["opaque"]["parameters"] for entry in entries]
    return [each for each in found if each.get("kind") in site.CONFIGURATIONS]


@pytest.mark.parametrize("kind", site.CONFIGURATIONS)
def test_the_schemas_take_what_the_examples_say_and_no_typo(kind: str) -> None:
    validator = jsonschema.Draft202012Validator(site.schema(kind))
    validator.check_schema(site.schema(kind))
    of_kind = [each for each in configurations() if each["kind"] == kind]
    assert of_kind
    for each in of_kind:
        assert not [error.message for error in validator.iter_errors(each)]
        assert [error.message for error in validator.iter_errors({**each, "treads": "any"})]
        assert [error.message for error in validator.iter_errors({**each, "apiVersion": "dra.cpu/v0"})]
