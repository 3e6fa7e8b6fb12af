"""Runs the CDI library's page from top to bottom: it prints what it shows, and needs nothing else of this project."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "cdi.md").read_text()
CODE = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
MODULES = """
import sys
others = {name.split(".")[1] for name in sys.modules if name.startswith("dranode.")} - {"cdi"}
assert not others, others
"""


def test_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE + MODULES], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"It prints `([^`]*)`", PAGE)
    assert len(promised) == 1
    assert all(text in done.stdout for text in promised)
    assert "('LAMP=lamp0',)" in done.stdout
    assert 'False devices[0].name: "lamp 0"' in done.stdout
