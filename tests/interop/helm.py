"""Builds Helm from its module."""

import os
import subprocess
from pathlib import Path

from tests.interop.cache import CACHE

CHART = Path(__file__).parents[2] / "deploy" / "chart"
_MODULE = "helm.sh/helm/v3/cmd/helm@v3.19.0"


def build() -> Path:
    """Return the program, which is built once."""
    program = CACHE / "bin" / "helm"
    if not program.exists():
        subprocess.run(["go", "install", _MODULE], check=True, env={**os.environ, "GOBIN": str(program.parent)})
    return program
