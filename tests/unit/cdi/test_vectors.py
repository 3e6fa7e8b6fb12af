"""Every document of the vectors gets the verdict of the Go library's newest release, v1.1.1."""

import json
from pathlib import Path
from typing import Any

import pytest

from dranode.cdi.rules import validate

NEWEST = "v1.1.1 (containerd 2.4.2)"
_VECTORS = Path(__file__).parents[2] / "vectors"
# Where libyaml differs from its port to Go, in documents that nobody writes.
DIFFERENT = {"anchor given twice", "name: '!!timestamp 2001-13-01'"}


def _load(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((_VECTORS / name).read_text())["vectors"]
    return vectors


def _is_loaded(vector: dict[str, Any]) -> bool:
    outcome = vector["outcome"][NEWEST]
    return (outcome if isinstance(outcome, str) else outcome["result"]) == "accepted"


def _content(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["content_hex"]) if "content_hex" in vector else vector["content"].encode()


@pytest.mark.parametrize(("name", "number"), [("cdi.json", 106), ("cdi-yaml.json", 309)])
def test_the_verdict_is_that_of_the_newest_go_library(name: str, number: int) -> None:
    vectors = _load(name)
    assert len(vectors) == number
    wrong = {vector["case"] for vector in vectors if validate(_content(vector)).ok != _is_loaded(vector)}
    assert wrong <= DIFFERENT
