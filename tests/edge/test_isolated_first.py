"""The manual's claim that prefers `isolcpus=` CPUs in individual mode, where the scheduler picks the CPUs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.machine import CPU, write_machine
from tests.fakes.program import run_program

PAGE = Path(__file__).parents[2] / "docs" / "isolation.md"


def template() -> dict[str, Any]:
    """The manual's claim template."""
    found = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]
    (one,) = (document for document in found if document["kind"] == "ResourceClaimTemplate")
    return dict(one)


def claims(folder: Path, count: int, *options: str) -> dict[str, str]:
    """What claims of the manual's template get in individual mode, one after another."""
    spec = template()["spec"]["spec"]
    documents = [
        {**template(), "kind": "ResourceClaim", "metadata": {"name": f"claim-{number}"}, "spec": spec}
        for number in range(count)
    ]
    (folder / "claims.yaml").write_text(yaml.safe_dump_all(documents))
    arguments = ["--machine", "machine", "--cpu-device-mode", "individual", *options, "-o", "json", "claims.yaml"]
    done = run_program("local", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return {claim["name"]: claim["cpus"] for claim in json.loads(done.stdout)["claims"]}


@pytest.mark.parametrize(
    ("isolated", "options", "got"),
    [
        ("4-7,12-15", (), ["4,12", "5,13", "6,14"]),
        ("5,13", (), ["5,13", "0,8", "1,9"]),
        # Without isolcpus= the attribute is missing, which is not an error of the selector.
        ("", (), ["0,8", "1,9", "2,10"]),
        ("4-7,12-14", ("--threads", "full-core"), ["4-5,12-13", "0-1,8-9", "2-3,10-11"]),
    ],
)
def test_the_manuals_claim_gets_isolated_cpus_first_if_the_scheduler_picks(
    tmp_path: Path, isolated: str, options: tuple[str, ...], got: list[str]
) -> None:
    write_machine(tmp_path / "machine", "sockets=1,cores=8,threads=2")
    (tmp_path / "machine" / CPU / "isolated").write_text(f"{isolated}\n")
    assert list(claims(tmp_path, len(got), *options).values()) == got
