"""The site: every page has its place, every link leads somewhere, and the schemas match what the drivers accept."""

import re
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

import dranode.api
import dranode.driver
from dranode.driver.cli.serve import command as serve
from release import reference, site
from release.configurations import CONFIGURATIONS, fields, schema
from release.project import ROOT
from release.tables import TABLES, with_tables


def navigation(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    return [name for value in (part.values() if isinstance(part, dict) else part) for name in navigation(value)]


def test_every_page_of_the_manual_is_in_the_navigation_once() -> None:
    named = navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    manual = {path.relative_to(site.MANUAL).as_posix() for path in site.MANUAL.rglob("*.md")}
    assert len(named) == len(set(named))
    assert manual <= set(named)
    others = {name for name in named if not name.startswith("reference/")} - manual
    assert others == {"index.md", "examples.md", *(f"{name}.md" for name in site.TOP)}


def test_links_in_the_tree_become_links_of_the_site() -> None:
    text = "[a](docs/install.md#x) [b](examples/cpu-numa.yaml) [c](examples) [d](tests/crash) [e](#here) [f](README.md)"
    assert site.relinked(text, ROOT) == (
        "[a](install.md#x) [b](examples.md#cpu-numayaml) [c](examples.md) d [e](#here) [f](index.md)"
    )


def test_links_to_and_from_a_folder_of_the_manual_are_converted() -> None:
    assert site.relinked("[a](docs/decisions/nri.md)", ROOT) == "[a](decisions/nri.md)"
    text = "[a](../install.md#x) [b](ledger.md) [c](../../ARCHITECTURE.md) [d](../../examples) [e](../../README.md)"
    assert site.relinked(text, site.MANUAL / "decisions") == (
        "[a](../install.md#x) [b](../decisions/ledger.md) [c](../ARCHITECTURE.md) [d](../examples.md) [e](../index.md)"
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
    return [each for each in found if each.get("kind") in CONFIGURATIONS]


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_the_schemas_accept_the_examples_and_no_typo(kind: str) -> None:
    validator = jsonschema.Draft202012Validator(schema(kind))
    validator.check_schema(schema(kind))
    of_kind = [each for each in configurations() if each["kind"] == kind]
    assert of_kind
    for each in of_kind:
        assert not [error.message for error in validator.iter_errors(each)]
        assert [error.message for error in validator.iter_errors({**each, "treads": "any"})]
        assert [error.message for error in validator.iter_errors({**each, "apiVersion": "dra.cpu/v0"})]


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_every_field_of_a_configuration_has_a_description(kind: str) -> None:
    rows = {name: (value, what) for name, value, what in fields(schema(kind), kind)}
    assert rows
    assert not [name for name, row in rows.items() if not all(row)]


def test_every_option_of_serve_is_on_the_page_of_options_with_its_flags_and_variables() -> None:
    page = reference.options()
    shown = {}
    for part in page.split("\n### ")[1:]:
        facts = dict(re.findall(r"^- ([^:]+): (.+)$", part, re.MULTILINE))
        codes = {name: re.findall(r"`([^`]+)`", facts.get(name, "")) for name in ("Flag", "Variable")}
        shown[tuple(sorted(codes["Flag"]))] = set(codes["Variable"])
        assert part.splitlines()[2].strip(), "it says what it does"
    taken = {
        tuple(sorted((*each.opts, *each.secondary_opts))): set(each.envvar or ())
        for each in serve.params
        if isinstance(each, click.Option) and each.name not in ("config", "help")
    }
    assert shown == taken
    assert "`DRANODE_CONFIG`" in page


@pytest.mark.parametrize("page", sorted(site.MANUAL.glob("*.md")), ids=lambda page: page.name)
def test_the_tables_of_the_pages_are_up_to_date(page: Path) -> None:
    assert with_tables(page.read_text()) == page.read_text()


def test_every_metric_is_in_a_table_by_the_name_that_is_scraped() -> None:
    page = (site.MANUAL / "metrics.md").read_text()
    assert {f"<!-- table: {name} -->" for name in TABLES if name.startswith("metrics")} <= {*page.splitlines()}
    shown = re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) ", page, re.MULTILINE)
    assert {name.removesuffix("_total") for name, _ in shown} == set(reference.metric_rows())
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in shown)


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *site.MANUAL.rglob("*.md")], ids=lambda page: page.name)
def test_a_fence_has_a_language_and_at_most_a_title(page: Path) -> None:
    # Behind other words the site's Markdown opens no block: the code becomes text, and mkdocs reports nothing.
    fences = re.findall(r"^ *(?:```|~~~)(.*)$", page.read_text(), re.MULTILINE)
    assert [words for words in fences if not re.fullmatch(r'(\w+( title="[^"]+")?)?', words)] == []
    assert len(fences) % 2 == 0


def test_every_name_that_drivers_import_is_on_their_page_once_with_its_fields() -> None:
    page = site.names_for_drivers()
    assert "driver.ClaimRef\n    options:\n      show_if_no_docstring: true\n" in page
    names = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
    assert sorted(name.rpartition(".")[2] for name in names) == sorted(
        {*dranode.driver.__all__, *dranode.api.__all__, "check_plugin"}
    )
