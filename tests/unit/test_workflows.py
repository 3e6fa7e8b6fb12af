"""The repository's automation: pinned, with few permissions, and with the files that visitors look for first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.project import PYTHONS
from tests.interop.control_plane import VERSIONS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))


def document(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    return {str(key): value for key, value in yaml.safe_load(path.read_text()).items()}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_no_permissions_and_jobs_only_read_unless_they_say_why(path: Path) -> None:
    workflow = document(path)
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert job["permissions"]["contents"] == "read"
        # A hosted runner stops a job after six hours; nobody waits for nightly jobs.
        assert job["timeout-minutes"] <= (360 if path.stem == "nightly" else 120)


def test_the_image_runs_in_every_release_that_is_built_to_be_run() -> None:
    nodes = document(FOLDER / "e2e.yml")["jobs"]["kind"]["strategy"]["matrix"]["node"]
    assert [re.fullmatch(r"v(\d+\.\d+)\.\d+@sha256:[0-9a-f]{64}", node)[1] for node in nodes] == list(VERSIONS)  # type: ignore[index]


def test_the_tests_run_on_every_python_on_which_the_wheel_is_tried() -> None:
    job = document(FOLDER / "ci.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"] == {"python": list(PYTHONS)}
    steps = document(FOLDER / "release.yml")["jobs"]["build"]["steps"]
    (asked,) = (step["with"]["python-version"] for step in steps if "actions/setup-python" in step.get("uses", ""))
    # The last one is the one called `python`.
    assert asked.split() == list(reversed(PYTHONS))


def test_every_row_of_real_clusters_runs_weekly_in_its_own_job() -> None:
    workflow = document(FOLDER / "clusters.yml")
    (cron,) = (each["cron"] for each in workflow["True"]["schedule"])
    assert re.fullmatch(r"\d+ \d+ \* \* \d", cron)
    job = workflow["jobs"]["row"]
    rows = job["strategy"]["matrix"]["row"]
    (made,) = re.findall(r"^CLUSTER_ROWS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rows == made.split()
    assert sorted({row.partition("/")[0] for row in rows}) == list(VERSIONS)
    assert job["steps"][-1]["run"].endswith('make interop-cluster ROWS="$ROW"')
    assert job["env"] == {"ROW": "${{ matrix.row }}"}


def test_static_analysis_checks_every_change_of_code_and_workflows() -> None:
    workflow = document(FOLDER / "codeql.yml")
    assert {"push", "pull_request", "schedule"} <= set(workflow["True"])
    job = workflow["jobs"]["analyze"]
    assert job["permissions"] == {"contents": "read", "security-events": "write"}
    assert job["strategy"]["matrix"] == {"language": ["python", "actions"]}
    steps = [step["uses"].partition("@") for step in job["steps"]]
    actions = {name: version for name, _, version in steps if name.startswith("github/codeql-action/")}
    assert set(actions) == {"github/codeql-action/init", "github/codeql-action/analyze"}
    assert len(set(actions.values())) == 1


def test_zizmor_finds_nothing() -> None:
    program = Path(sys.executable).with_name("zizmor")
    answer = subprocess.run(
        [program, "--offline", "--quiet", ROOT / ".github"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout


def test_zizmor_finds_planted_mistakes(tmp_path: Path) -> None:
    text = (FOLDER / "ci.yml").read_text()
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    (tmp_path / ".github" / "workflows" / "ci.yml").write_text(re.sub(r"@[0-9a-f]{40} # v7.0.1", "@main", text))
    program = Path(sys.executable).with_name("zizmor")
    answer = subprocess.run([program, "--offline", "--quiet", tmp_path], capture_output=True, text=True, check=False)
    assert answer.returncode != 0


def test_the_tree_has_no_binaries() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    executable = {".so", ".exe", ".pyc", ".whl", ".jar", ".o", ".a", ".dll", ".dylib"}
    assert [name for name in listed if Path(name).suffix in executable] == []
