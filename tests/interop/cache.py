"""The folder in which the tests keep what they build and download."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parents[2] / ".cache" / "interop"
