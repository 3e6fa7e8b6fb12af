"""Every document of the vectors: the verdict of the library that counts, and which releases the warnings name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dranode.cdi.loader.document import load_spec
from dranode.cdi.loader.validate import validate

REFERENCE = "05ae4b5 (containerd 2.4 dev)"
_VECTORS = Path(__file__).parents[2] / "vectors"


def _load(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((_VECTORS / name).read_text())["vectors"]
    return vectors


def _content(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["content_hex"]) if "content_hex" in vector else vector["content"].encode()


def _results(vector: dict[str, Any]) -> dict[str, str]:
    return {name: seen if isinstance(seen, str) else seen["result"] for name, seen in vector["outcome"].items()}


GIVEN = _load("cdi.json")
OBSERVED = _load("cdi-yaml.json")


def test_the_vectors_are_all_here() -> None:
    assert (len(GIVEN), len(OBSERVED)) == (106, 309)


@pytest.mark.parametrize("vector", GIVEN + OBSERVED, ids=lambda vector: vector["case"])
def test_the_verdict_is_the_librarys_and_warnings_name_the_releases_that_differ(
    vector: dict[str, Any],
) -> None:
    results = _results(vector)
    loads = results.pop(REFERENCE) == "accepted"
    verdict = validate(_content(vector))
    assert verdict.ok == loads, [str(problem) for problem in verdict.problems]
    named = {name: warning for name in results for warning in verdict.warnings if name in warning}
    differing = {name: result for name, result in results.items() if loads and result != "accepted"}
    assert set(named) == set(differing)
    assert len(verdict.warnings) == len(named)
    assert all(("crashes" in named[name]) == (result == "crash") for name, result in differing.items())


def _without_zeros(value: Any) -> Any:
    # The library writes no field that is empty or zero.
    if isinstance(value, dict):
        kept = {key: _without_zeros(inner) for key, inner in value.items()}
        return {
            key: inner for key, inner in kept.items() if inner or (inner == 0 and key in ("uid", "gid", "fileMode"))
        }
    return [_without_zeros(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("vector", [each for each in OBSERVED if "read" in each], ids=lambda vector: vector["case"])
def test_what_is_read_is_what_the_library_reads(vector: dict[str, Any]) -> None:
    spec = msgspec.to_builtins(load_spec(_content(vector)).spec)
    assert _without_zeros(json.loads(json.dumps(spec))) == _without_zeros(vector["read"])
