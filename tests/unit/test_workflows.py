"""The workflows are safe, and run every row of real clusters."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.interop.control_plane import VERSIONS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"


def document(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    return {str(key): value for key, value in yaml.safe_load(path.read_text()).items()}


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


def test_zizmor_finds_nothing() -> None:
    program = Path(sys.executable).with_name("zizmor")
    answer = subprocess.run(
        [program, "--offline", "--quiet", ROOT / ".github"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout


def test_the_tree_has_no_binaries() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    executable = {".so", ".exe", ".pyc", ".whl", ".jar", ".o", ".a", ".dll", ".dylib"}
    assert [name for name in listed if Path(name).suffix in executable] == []
